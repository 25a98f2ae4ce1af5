"""Readers that make examples of rows: which column plays which role, and what labels mean."""

from __future__ import annotations

import math
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headlens.corpora.table import has_cell, list_names
from headlens.errors import CorpusError, OptionError, counted
from headlens.tasks.class_names import meanings, number_of
from headlens.tasks.examples import AnswerSpan, Question, TaskExample, TextExample
from headlens.tasks.row_readers import TaskRow

Columns = Mapping[str, str]
UNLABELLED = ("", "-", "-1", "hidden")
_WHOLE = re.compile(r"(-?[0-9]{1,9})\.0*")


class ExampleReader(ABC):
    """Makes examples of rows whose columns play roles."""

    @property
    @abstractmethod
    def roles(self) -> tuple[str, ...]:
        """Names of the roles; a user maps columns to these."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of labels, in the order of their numbers; empty for readers of other data."""
        return ()

    def parts(self, row: TaskRow) -> Iterator[TaskRow]:
        """Yields a row as rows of one example each: here the row itself.

        Raises:
            CorpusError: if a row of several examples is not built as such.
        """
        yield row

    @abstractmethod
    def example(self, row: TaskRow, columns: Columns) -> TaskExample | None:
        """Returns the example of a row; None if it has no label, or an empty text.

        Raises:
            CorpusError: with the line: a column that is not there, an unknown label, a cell of the wrong kind.
        """


@dataclass(frozen=True)
class TextReader(ExampleReader):
    """Reads texts and, for tasks that have one, a label.

    Args:
        texts: roles of the columns of text.
        labels: format of the label; None for tasks without labels.
    """

    texts: tuple[str, ...]
    labels: ClassLabels | OwnLabels | ScoreLabels | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of labels, in the order of their numbers; empty for scores and without labels."""
        return self.labels.names if isinstance(self.labels, ClassLabels) else ()

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the text roles in order, followed by `label` if the task has labels."""
        return self.texts if self.labels is None else (*self.texts, "label")

    def example(self, row: TaskRow, columns: Columns) -> TextExample | None:
        """Returns the example of a row; None if its label is missing or any of its texts is empty."""
        texts = tuple(row.text(columns[role]) for role in self.texts)
        label = None if self.labels is None else self.labels.read(row, columns["label"])
        unlabelled = self.labels is not None and label is None
        return None if unlabelled or not all(map(str.strip, texts)) else TextExample(str(row.number), texts, label)


@dataclass(frozen=True)
class ContrastReader(TextReader):
    """Reads texts of which the last two are a right one and a wrong one, and puts these in an order that they draw.

    So a model that prefers neither, or gives all examples the same answer, is right in about half of them.
    """

    def example(self, row: TaskRow, columns: Columns) -> TextExample | None:
        """Returns the example of a row, its label the place of the right text; None if one is empty or both same."""
        if (example := super().example(row, columns)) is None:
            return None
        *before, right, wrong = example.texts
        if right == wrong:
            return None
        swapped = zlib.crc32("\x1f".join(example.texts).encode()) & 1
        return replace(example, texts=(*before, *((wrong, right) if swapped else (right, wrong))), label=float(swapped))


@dataclass(frozen=True)
class EndingReader(ExampleReader):
    """Reads SWAG: a sentence, the beginning of the next one, and its possible endings.

    Where one column plays the roles of all endings, it holds a list of them; the label is the number of the right one.
    """

    roles = ("first", "second", "ending0", "ending1", "ending2", "ending3", "label")

    def example(self, row: TaskRow, columns: Columns) -> TextExample | None:
        """Returns the example of a row; the beginning of its second sentence may be empty."""
        first, second, *places = (columns[role] for role in self.roles[:-1])
        in_list = len(set(places)) == 1
        endings = row.texts(places[0], len(places)) if in_list else [row.text(place) for place in places]
        label = ClassLabels(("0", "1", "2", "3")).read(row, columns["label"])
        sentence, beginning = row.text(first), row.text(second)
        # Without a beginning an ending begins with a space, as in the example script of transformers (run_swag.py).
        texts = (sentence, *(f"{beginning} {ending}" for ending in endings))
        blank = not all(map(str.strip, (sentence, *endings)))
        return None if label is None or blank else TextExample(str(row.number), texts, label)


@dataclass(frozen=True)
class QuestionReader(ExampleReader):
    """Reads SQuAD: articles with paragraphs with questions, as in its files, or one question a row (`datasets`).

    Args:
        no_answer: whether a question may have no answer (SQuAD 2.0); without that it has no label.
    """

    no_answer: bool = False
    roles = ("question", "context", "answers")  # columns of `datasets`; SQuAD's own files have none of them

    def parts(self, row: TaskRow) -> Iterator[TaskRow]:
        """Yields the questions of an article as rows of their own; a row that is no article as it is."""
        if "paragraphs" not in row.cells:
            yield row
            return
        for paragraph in _parts(row, row.cells, "paragraphs"):
            context = _text(row, paragraph, "context")
            for qa in _parts(row, paragraph, "qas"):
                answers = [] if qa.get("is_impossible") else _parts(row, qa, "answers")
                question = _text(row, qa, "question")
                yield replace(row, cells={**qa, "question": question, "context": context, "answers": answers})

    def example(self, row: TaskRow, columns: Columns) -> Question | None:
        """Returns the question of a row; None if it or its context is empty, or it has no answer where it needs one.

        Raises:
            CorpusError: also where answers are not in the context, or not where they are said to be.
        """
        key = str(row.cells.get("id", row.number))
        question, context = row.text(columns["question"]), row.text(columns["context"])
        column = columns["answers"]
        cell = row.value(column)
        # What stands in the context is a text, whatever it looks like.
        answers = _answers(row, cell if isinstance(cell, str) and cell in context else row.nested(column))
        for text, start in ((answer.text, answer.start) for answer in answers):
            if start is not None and not context.startswith(text, start):
                message = f"question {key}: the answer {text[:40]!r} is not at character {start} of its context."
                raise row.error(message, "Starts count characters from 0.")
        # The first one is what a model learns.
        answers.sort(key=lambda answer: answer.text not in context)
        if answers and answers[0].text not in context:
            message = f"question {key}: the answer {answers[0].text[:40]!r} is not in its context."
            raise row.error(message, "Answers must be copied verbatim from the context.")
        if not question.strip() or not context.strip() or not (answers or self.no_answer):
            return None
        return Question(key, question, context, tuple(answers))


def _answers(row: TaskRow, cell: Any) -> list[AnswerSpan]:
    """Reads answers: {"text": …, "answer_start": …}, of one or of lists; a list of such, or of texts; or one text."""
    if isinstance(cell, str):
        cell = [cell.strip()]
    elif isinstance(cell, Mapping):
        texts, starts = (part if isinstance(part, list) else [part] for part in map(cell.get, ("text", "answer_start")))
        starts = starts if "answer_start" in cell and starts != [None] else [None] * len(texts)
        if len(starts) != len(texts):
            message = f"{counted(len(texts), 'text')} of answers, but {counted(len(starts), 'start')}."
            raise row.error(message, "Every text needs exactly one start.")
        cell = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    cell = [] if cell is None else cell
    if not isinstance(cell, list) or not all(isinstance(answer, str | Mapping) for answer in cell):
        raise row.error("answers are not a list of texts with their starts.", 'Write [{"text": …, "answer_start": …}].')
    spans = [_span(row, {"text": answer} if isinstance(answer, str) else answer) for answer in cell]
    return [span for span in spans if span.text.strip()]


def _span(row: TaskRow, answer: Mapping[str, Any]) -> AnswerSpan:
    start = answer.get("answer_start")
    if isinstance(start, float) and start.is_integer():  # as pandas writes a column with gaps
        start = int(start)
    if start is not None and (not isinstance(start, int) or isinstance(start, bool) or start < 0):
        raise row.error(f"the start {start!r} of an answer is not a position.", "Starts count characters from 0.")
    return AnswerSpan(_text(row, answer, "text"), start)


def _parts(row: TaskRow, cells: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Returns a list of objects in SQuAD's nested format: paragraphs, questions or answers."""
    parts = cells.get(name)
    if not isinstance(parts, list) or not all(isinstance(p, dict) for p in parts):
        raise row.error(f"{name!r} is missing or not a list of objects.", "Give a file in SQuAD's format.")
    return parts


def _text(row: TaskRow, cells: Mapping[str, Any], name: str) -> str:
    if not isinstance(text := cells.get(name), str):
        raise row.error(f"{name!r} is missing or not a text.", "Give a file in SQuAD's format.")
    return text


def choose_columns(row: TaskRow, roles: Sequence[str], layouts: Sequence[Sequence[str]], requested: Columns) -> Columns:
    """Finds which column plays which role.

    Args:
        row: the first row.
        roles: roles to be filled.
        layouts: columns of layouts that the task's data sets come in, in the order of the roles; the first of which the
            row has all is taken.
        requested: columns that the user names by role, which go before those of a layout.

    Raises:
        OptionError: for a role that the task does not have.
        CorpusError: if no layout fits.
    """
    if unknown := sorted(set(requested) - set(roles)):
        raise OptionError(f"--columns {unknown[0]}=…: there is no such role.", f"Roles: {', '.join(roles)}.")
    for layout in layouts:
        columns = dict(zip(roles, layout, strict=True)) | dict(requested)
        if all(has_cell(row.cells, column) for column in columns.values()):
            return columns
    if all(role in requested for role in roles):  # a column is missing: reading it tells which
        return requested
    missing = next((column for column in requested.values() if not has_cell(row.cells, column)), None)
    if missing is not None:
        raise row.without(missing)
    option = ",".join(f"{role}=COLUMN" for role in roles if role not in requested)
    advice = f"Name them with --columns {option}. Columns: {list_names(row.cells)}."
    raise CorpusError(f"which columns are {', '.join(roles)}?", advice, path=row.place, line=row.line)


def parse_columns(text: str) -> dict[str, str]:
    """Reads columns by role, written as `text=sentence,label=class`.

    Raises:
        OptionError: if it is not written like this.
    """
    pairs = [part.partition("=") for part in text.split(",")]
    columns = {role.strip(): column.strip() for role, _, column in pairs}
    if not all(columns) or not all(columns.values()) or len(columns) < len(pairs):
        raise OptionError(f"--columns {text}: not understood.", "Write ROLE=COLUMN,ROLE=COLUMN, each role once.")
    return columns


@dataclass(frozen=True)
class ClassLabels:
    """Classes by name, in any spelling that is known, or by number.

    Args:
        names: names of the classes in the order of the task's numbers.
        order: the class of every number of the data; None where the data numbers its classes as the task does.
    """

    names: tuple[str, ...]
    order: tuple[int, ...] | None = None

    def read(self, row: TaskRow, column: str) -> float | None:
        """Returns the number of a class; None where the cell is one of `UNLABELLED`.

        Raises:
            CorpusError: with the line: no such class.
        """
        cell = row.value(column)
        key = str(cell).lower() if isinstance(cell, bool) else _written(cell)
        if key in UNLABELLED:
            return None
        if key in self.names:
            return float(self.names.index(key))
        if (number := number_of(key)) is not None and number < len(self.names):
            return float(self.order[number] if self.order else number)
        matching = [number for number, name in enumerate(self.names) if meanings(key) & meanings(name)]
        if len(matching) == 1:
            return float(matching[0])
        raise row.error(f"{column!r} has the unknown label {_short(cell)}.", f"Labels: {self.numbers}.")

    def is_number(self, cell: Any) -> bool:
        """Whether a cell gives its class by nothing but a number."""
        key = _written(cell)
        return not isinstance(cell, bool) and key not in self.names and number_of(key) is not None

    @property
    def numbers(self) -> str:
        """The numbers of the data with the names of their classes, for messages."""
        order = self.order or range(len(self.names))
        return ", ".join(f"{number} ({self.names[place]})" for number, place in enumerate(order))


@dataclass(frozen=True)
class OwnLabels:
    """Classes by the names that the data has for them.

    Args:
        names: the classes in the order of their numbers; without any, labels are numbered as they come.
        numbers: names that a data set gives to the numbers in its cells; empty for none.
        seen: numbers of the labels that came, where there are no `names`.
    """

    names: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    seen: dict[str, int] = field(default_factory=dict, compare=False)

    def read(self, row: TaskRow, column: str) -> float | None:
        """Returns the number of a class; None where the cell is empty, or the -1 of a data set that names its numbers.

        Raises:
            CorpusError: with the line: a class that is none of the names, or a cell of the wrong kind.
        """
        if isinstance(cell := row.value(column), list | Mapping):
            raise row.error(f"{column!r} holds a {type(cell).__name__}, not a class.", "Write one name or number.")
        name = str(cell) if isinstance(cell, bool) else _written(cell, str.strip)
        if self.numbers and isinstance(cell, int):
            name = self.numbers[cell] if 0 <= cell < len(self.numbers) else ""
        if not name:
            return None
        if not self.names:
            return float(self.seen.setdefault(name, len(self.seen)))
        if name not in self.names:
            message = f"{column!r} has the label {_short(name)}, which is none of the classes."
            raise row.error(message, f"Classes: {', '.join(self.names)}.")
        return float(self.names.index(name))


@dataclass(frozen=True)
class ScoreLabels:
    """Numbers within a range.

    Args:
        low, high: ends of the range, included.
    """

    low: float = 0.0
    high: float = 5.0

    def read(self, row: TaskRow, column: str) -> float | None:
        """Returns the score; None where the cell is one of `UNLABELLED`.

        Raises:
            CorpusError: with the line: no number, or one out of range.
        """
        cell = row.value(column)
        if (key := _written(cell)) in UNLABELLED:
            return None
        try:
            number = float(key)
        except ValueError:
            number = math.nan  # within no range
        if not self.low <= number <= self.high:
            advice = f"Scores are numbers from {self.low:g} to {self.high:g}."
            raise row.error(f"{column!r} has the unknown score {_short(cell)}.", advice)
        return number


def _written(cell: Any, trimmed: Callable[[str], str] = lambda text: text.strip().lower()) -> str:
    """Returns a cell as files write it; 1.0 as 1, since pandas makes floats of columns with gaps, also as text."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, bool):
        return str(int(cell))
    text = trimmed(str(cell))
    match = _WHOLE.fullmatch(text)
    return text if match is None else str(int(match[1]))


def _short(cell: Any) -> str:
    """Returns a cell for an error message, long text cut."""
    return repr(list_names([cell])) if isinstance(cell, str) else list_names([str(cell)])
