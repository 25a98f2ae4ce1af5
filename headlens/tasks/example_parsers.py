"""From rows to examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headlens.corpora.cell_text import list_names
from headlens.errors import CorpusError, OptionError
from headlens.tasks.examples import AnswerSpan, Question, TaskExample, TextExample
from headlens.tasks.row_readers import TaskRow

Columns = Mapping[str, str]


class Labels(Protocol):
    """Interface of label formats: a format converts the cell of a row to the number of a label."""

    def read(self, row: TaskRow, column: str) -> float | None:
        """Its number; None if there is none."""


class ExampleReader(ABC):
    """Makes examples of rows whose columns play roles."""

    @property
    @abstractmethod
    def roles(self) -> tuple[str, ...]:
        """Names of the roles; a user maps columns to these."""

    @abstractmethod
    def examples(self, row: TaskRow, columns: Columns) -> Iterator[TaskExample | None]:
        """Examples of a row; None for one without a label, or with an empty text.

        Raises:
            CorpusError: with the line: a column that is not there, an unknown label, a cell of the wrong kind.
        """


@dataclass(frozen=True)
class TextReader(ExampleReader):
    """Texts and maybe a label.

    Args:
        texts: roles of the columns of text.
        labels: how the label is written; None for tasks without.
    """

    texts: tuple[str, ...]
    labels: Labels | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the text roles in order, followed by `label` if the task has labels."""
        return self.texts if self.labels is None else (*self.texts, "label")

    def examples(self, row: TaskRow, columns: Columns) -> Iterator[TextExample | None]:
        """Yield one example for the row; None if its label is missing or any of its texts is empty."""
        texts = tuple(row.text(columns[role]) for role in self.texts)
        label = None if self.labels is None else self.labels.read(row, columns["label"])
        unlabelled = self.labels is not None and label is None
        yield None if unlabelled or not all(texts) else TextExample(str(row.number), texts, label)


@dataclass(frozen=True)
class EndingReader(ExampleReader):
    """SWAG: a sentence, the beginning of the next one, and its possible endings.

    Args:
        labels: how the right ending is written.
        count: of endings.
    """

    labels: Labels
    count: int = 4

    @property
    def roles(self) -> tuple[str, ...]:
        """`first`, `second`, `ending0` …, `label`."""
        return "first", "second", *(f"ending{i}" for i in range(self.count)), "label"

    def examples(self, row: TaskRow, columns: Columns) -> Iterator[TextExample | None]:
        """One; the beginning of the second sentence may be empty."""
        first, second, *endings = (row.text(columns[role]) for role in self.roles[:-1])
        label = self.labels.read(row, columns["label"])
        texts = (first, *(f"{second} {ending}".strip() for ending in endings))
        yield None if label is None or not first or not all(endings) else TextExample(str(row.number), texts, label)


@dataclass(frozen=True)
class QuestionReader(ExampleReader):
    """SQuAD: articles with paragraphs with questions, as in its files, or one question a row, as in `datasets`."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Those of `datasets`; the official files need none."""
        return "question", "context", "answers"

    def examples(self, row: TaskRow, columns: Columns) -> Iterator[Question | None]:
        """Yield all questions of an article, or the one of a row; None where the question or its context is empty."""
        if "paragraphs" in row.cells:
            for paragraph in _parts(row, row.cells, "paragraphs"):
                context = _text(row, paragraph, "context")
                for question in _parts(row, paragraph, "qas"):
                    answers = [] if question.get("is_impossible") else _parts(row, question, "answers")
                    key = str(question.get("id", row.number))
                    yield _question(row, key, _text(row, question, "question"), context, _list(row, answers))
            return
        key = str(row.cells.get("id", row.number))
        context = _text(row, {"context": row.value(columns["context"])}, "context")
        wanted = _answers(row, row.value(columns["answers"]))
        yield _question(row, key, row.text(columns["question"]), context, wanted)


def _question(row: TaskRow, key: str, question: str, context: str, answers: tuple[AnswerSpan, ...]) -> Question | None:
    """None without a question or a context."""
    for answer in answers:
        if answer.start is not None and context[answer.start : answer.start + len(answer.text)] != answer.text:
            raise row.error(
                f"question {key}: the answer {answer.text[:40]!r} is not at character {answer.start} of its context.",
                "Starts count characters from 0.",
            )
    return Question(key, question.strip(), context, answers) if question.strip() and context.strip() else None


def _answers(row: TaskRow, cell: Any) -> tuple[AnswerSpan, ...]:
    """{"text": […], "answer_start": […]}, a list of {"text": …, "answer_start": …}, or one text."""
    if cell is None or cell == "":
        return ()
    if isinstance(cell, str):
        return (AnswerSpan(cell),)
    if isinstance(cell, Mapping) and isinstance(cell.get("text"), Sequence):
        texts, starts = cell["text"], cell.get("answer_start")
        if starts is None or len(starts) != len(texts):
            starts = [None] * len(texts)
        return _list(row, [{"text": t, "answer_start": s} for t, s in zip(texts, starts, strict=True)])
    return _list(row, cell)


def _list(row: TaskRow, cell: Any) -> tuple[AnswerSpan, ...]:
    if not isinstance(cell, Sequence) or not all(isinstance(a, Mapping) for a in cell):
        raise row.error("answers are no list of texts with their starts.", 'Write [{"text": …, "answer_start": …}].')
    found = []
    for answer in cell:
        start = answer.get("answer_start")
        if start is not None and (not isinstance(start, int) or start < 0):
            raise row.error(f"the start {start!r} of an answer is no place.", "Starts count characters from 0.")
        found.append(AnswerSpan(_text(row, answer, "text"), start))
    return tuple(found)


def _parts(row: TaskRow, cells: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    part = cells.get(name)
    if not isinstance(part, list) or not all(isinstance(p, dict) for p in part):
        raise row.error(f"{name!r} is missing or no list of objects.", "Give a file in SQuAD's format.")
    return part


def _text(row: TaskRow, cells: Mapping[str, Any], name: str) -> str:
    text = cells.get(name)
    if not isinstance(text, str):
        raise row.error(f"{name!r} is missing or no text.", "Give a file in SQuAD's format.")
    return text


def choose_columns(row: TaskRow, roles: Sequence[str], known: Sequence[Sequence[str]], given: Columns) -> Columns:
    """Which column plays which role.

    Args:
        row: the first one.
        roles: to be filled.
        known: columns of layouts that the task's data sets come in, in the order of the roles; the first of which the
            row has all is taken.
        given: what the user says, which goes before.

    Raises:
        OptionError: for a role that the task does not have.
        CorpusError: if no layout fits.
    """
    unknown = sorted(set(given) - set(roles))
    if unknown:
        raise OptionError(f"--columns {unknown[0]}=…: there is no such role.", f"Roles: {', '.join(roles)}.")
    for layout in known:
        columns = dict(zip(roles, layout, strict=True)) | dict(given)
        if all(_has(row, column) for column in columns.values()):
            return columns
    if all(role in given for role in roles):  # a column is missing: reading it tells which
        return given
    missing = next((column for column in given.values() if not _has(row, column)), None)
    if missing is not None:
        raise row.error(f"there is no column {missing!r}.", f"Columns: {list_names(row.cells)}.")
    wanted = ",".join(f"{role}=COLUMN" for role in roles if role not in given)
    message = f"which columns are {', '.join(roles)}?"
    raise CorpusError(
        message, f"Say so with --columns {wanted}. Columns: {list_names(row.cells)}.", path=row.place, line=row.line
    )


def _has(row: TaskRow, column: str) -> bool:
    if column in row.cells:
        return True
    cells: Any = row.cells
    for name in column.split("."):
        if not isinstance(cells, Mapping) or name not in cells:
            return False
        cells = cells[name]
    return True


def parse_columns(text: str) -> dict[str, str]:
    """Read `text=sentence,label=class`.

    Raises:
        OptionError: if it is not written like this.
    """
    pairs = [part.partition("=") for part in text.split(",")]
    columns = {role.strip(): column.strip() for role, _, column in pairs}
    if not all(columns) or not all(columns.values()) or len(columns) < len(pairs):
        raise OptionError(f"--columns {text}: not understood.", "Write ROLE=COLUMN,ROLE=COLUMN, each role once.")
    return columns
