"""Predictions of classes and scores for rows without labels, in the form in which GLUE takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headlens.errors import CorpusError, OptionError, counted
from headlens.models.loading import LoadedModel
from headlens.tasks.classification import OwnClassification, Regression, SequenceClassification
from headlens.tasks.evaluation import EvaluationOptions, records_of
from headlens.tasks.example_parsers import TextReader, choose_columns
from headlens.tasks.example_sources import MemoryExamples, SourceCounts
from headlens.tasks.examples import TextExample
from headlens.tasks.open_task import columns_by_role, open_rows
from headlens.tasks.reader import Reader
from headlens.tasks.row_readers import TaskRow
from headlens.tasks.task import Task
from headlens.tasks.task_options import CLASS_TASKS, TaskData

# Columns that number the rows of a test set: GLUE's own, that of QQP, and that of `datasets`.
_INDEX = ("index", "id", "idx")
_GLUE = {task.name: task for task in CLASS_TASKS}


@dataclass(frozen=True)
class UnlabelledRows:
    """The rows of a test set, all of them, in order.

    Args:
        examples: texts of the rows; their ids are what the test set calls its rows, or else their numbers from 0, and
            their label is 0, which no prediction depends on.
        name: name of the file or data set.
    """

    examples: tuple[TextExample, ...]
    name: str


@dataclass(frozen=True)
class Predictions:
    """Predictions for a test set.

    Args:
        file: name of the file that GLUE expects, such as `SST-2.tsv`.
        rows: index and prediction of every row.
        notes: what to know about them.
    """

    file: str
    rows: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Content of the file: a header and a line for each row, tabs between the two cells."""
        return "".join(f"{index}\t{prediction}\n" for index, prediction in (("index", "prediction"), *self.rows))


def read_unlabelled(source: str, data: TaskData, *, offline: bool = False) -> UnlabelledRows:
    """Reads the texts of a test set; labels are not needed, and not looked at.

    Args:
        source: a file, or `hub:NAME`, of which the split `test` is read.
        data: the task, and the columns that its data has.
        offline: never ask the hub.

    Raises:
        OptionError: for a task that has no classes or scores.
        CorpusError: with the line: a row that cannot be read, no columns of texts, no row at all.
    """
    columns = {role: column for role, column in columns_by_role(data).items() if role != "label"}
    entry, rows = open_rows(data.task, source, columns, "test", offline=offline)
    if not isinstance(entry.task, SequenceClassification | Regression) or not isinstance(entry.reader, TextReader):
        raise OptionError(
            f"--predict is not for --task {data.task}.",
            f"It is for classes and scores: {', '.join([*_GLUE, 'stsb', OwnClassification().name])}.",
        )
    roles = entry.reader.texts
    layouts = list(dict.fromkeys(layout[: len(roles)] for layout in entry.layouts))

    def examples() -> Iterator[TextExample]:
        by_role = None
        for row in rows:
            if isinstance(row, CorpusError):
                raise row
            by_role = by_role or choose_columns(row, roles, layouts, columns)
            texts = tuple(row.text(by_role[role]) for role in roles)
            if not any(texts):  # told here, before a model is trained for hours
                raise row.error("there is no text to make predictions for.", "Every row needs one.")
            yield TextExample(_index(row), texts, 0.0)

    read = tuple(examples())
    if not read:
        raise CorpusError("there is nothing to predict: it is empty.", "Give a test set.", path=source)
    return UnlabelledRows(read, rows.name)


def _index(row: TaskRow) -> str:
    """What the test set calls a row; its number from 0 where it has no such column."""
    column = next((name for name in _INDEX if name in row.cells), None)
    return str(row.number - 1) if column is None else _cell(str(row.value(column)))


def _cell(text: str) -> str:
    """A text as it fits between tabs."""
    return " ".join(text.split())


def predict(task: Task, loaded: LoadedModel, rows: UnlabelledRows, options: EvaluationOptions) -> Predictions:
    """Runs a model over a test set.

    Every row gets a prediction: of a text that is longer than the model reads its first tokens count, of a pair those
    that are left when the longer text loses its last ones, which a note tells.

    Args:
        task: the task, with its classes.
        loaded: a model that was trained for it.
        rows: the test set.
        options: batches, and a limit of tokens below the model's own.

    Raises:
        CorpusError: for a row without anything to read.
        OptionError: a model that is not for this task.
        ModelError: no tokenizer, no memory for a single example, or outputs that are not finite.
    """
    reader = replace(Reader.of(loaded, task.labels, options.max_length, task.outputs), cuts=True)
    source, counts = MemoryExamples(rows.examples, rows.name), SourceCounts()
    records, _, _ = records_of(task, loaded, source, reader, counts, options)
    if counts.too_long:
        # Rows that are too long are cut: those left out have no text, or none that the tokenizer knows.
        raise CorpusError(
            f"{counted(counts.too_long, 'row')} without any text to read, and every row needs a prediction.",
            "Write a text into each row.",
            path=rows.name,
        )
    cut = sum(not reader.fits(len(reader.encode(*example.texts)["input_ids"])) for example in rows.examples)
    predicted = records[:, task.columns.index("predicted")]
    written = zip((example.id for example in rows.examples), _written(task, predicted.tolist()), strict=True)
    notes = [] if not cut else [f"Of {rows.name}, {counted(cut, 'row')} longer than {reader.told_limit} {_CUT}"]
    return Predictions(f"{_file(task)}.tsv", tuple(written), tuple(notes))


_CUT = "had its end cut off for the prediction, as every row needs one."


def _file(task: Task) -> str:
    """The name of GLUE's file, or `predictions` for a task that is none of GLUE's."""
    known = _GLUE.get(task.name)
    return "STS-B" if task.name == "stsb" else (known and known.submission) or "predictions"


def _written(task: Task, predicted: Sequence[float]) -> list[str]:
    """Predictions as GLUE takes them: numbers or names of classes, scores from 0 to 5 with three decimals."""
    if isinstance(task, Regression):
        return [f"{score:.3f}" for score in np.clip(predicted, 0.0, 5.0)]
    by_number = task.name in _GLUE and _GLUE[task.name].submits_numbers
    return [str(int(number)) if by_number else _cell(task.labels[int(number)]) for number in predicted]
