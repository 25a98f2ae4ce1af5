"""Predictions of classes and scores for test sets without labels, in GLUE's form: `--predict` of every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from headlens.errors import CorpusError, OptionError, counted
from headlens.models.loading import LoadedModel
from headlens.tasks.catalogue import find_task
from headlens.tasks.classification import OwnClassification, Regression, SequenceClassification
from headlens.tasks.evaluation import EvaluationOptions, records_of
from headlens.tasks.example_parsers import TextReader, choose_columns
from headlens.tasks.example_sources import DataOptions, MemoryExamples, SourceCounts
from headlens.tasks.examples import TextExample, texts_of
from headlens.tasks.open_task import columns_by_role, open_rows
from headlens.tasks.reader import Reader
from headlens.tasks.task import Task
from headlens.tasks.task_options import CLASS_TASKS, TaskData

# Columns that number the rows of a test set: GLUE's own, that of QQP, and that of `datasets`.
_INDEX = ("index", "id", "idx")
_GLUE = {task.name: task for task in CLASS_TASKS}


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


def read_test_sets(sources: Sequence[str], data: TaskData, *, offline: bool = False) -> dict[str, MemoryExamples]:
    """Reads test sets, by the names of their tasks.

    Args:
        sources: each `SOURCE`, or `TASK=SOURCE` of another task with the same classes.
        data: the task of the model, and the columns that its data has.
        offline: never ask the hub.

    Raises:
        OptionError: for a task with other classes, or two test sets of a task; also as in `predicted_rows`.
        CorpusError: as in `predicted_rows`.
    """
    named = [data.of_same_classes(text, "--predict") for text in sources]
    for place, other in enumerate(named):
        if other.task in [before.task for before in named[:place]]:
            message = f"--predict names two test sets of {other.task}, whose predictions would have the same file."
            raise OptionError(message, "Name each by its task, such as mnli-mm=FILE.")
    return {other.task: predicted_rows(other.data[0], other, offline=offline) for other in named}


def predicted_rows(source: str, data: TaskData, *, offline: bool = False) -> MemoryExamples:
    """Reads the rows of a test set, all of them, in order; labels are not needed, and not looked at.

    The ids of the examples are what the test set calls its rows, or else their numbers from 0; their label is 0, which
    no prediction depends on.

    Args:
        source: a file, or `hub:NAME`, of which the task's part for tests is read.
        data: the task, and the columns that its data has.
        offline: never ask the hub.

    Raises:
        OptionError: for a task that has no classes or scores.
        CorpusError: with the line: a row that cannot be read, no columns of texts, no row at all.
    """
    columns = {role: column for role, column in columns_by_role(data).items() if role != "label"}
    entry = find_task(data.task, columns)
    split = entry.split.replace("validation", "test")
    rows = open_rows(entry, source, DataOptions(columns, split, offline=offline))
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
            if not any(map(str.strip, texts)):  # told here, before a model is trained for hours
                raise row.error("there is no text to make predictions for.", "Every row needs one.")
            index = next((str(row.value(name)) for name in _INDEX if name in row.cells), str(row.number - 1))
            yield TextExample(_cell(index), texts, 0.0)

    if not (read := tuple(examples())):
        raise CorpusError("there is nothing to predict: it is empty.", "Give a test set.", path=source)
    return MemoryExamples(read, rows.name)


def _cell(text: str) -> str:
    """A text as it fits between tabs."""
    return " ".join(text.split())


def predict(task: Task, loaded: LoadedModel, rows: MemoryExamples, options: EvaluationOptions) -> Predictions:
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
    counts = SourceCounts()
    records, _, _ = records_of(task, loaded, rows, reader, counts, options)
    if counts.too_long:
        # Rows that are too long are cut: those left out have no text, or none that the tokenizer knows.
        raise CorpusError(
            f"{counted(counts.too_long, 'row')} without any text to read, and every row needs a prediction.",
            "Write a text into each row.",
            path=rows.name,
        )
    cut = sum(not reader.fits(len(reader.encode(*texts_of(example))["input_ids"])) for example in rows.examples)
    predicted = records[:, task.columns.index("predicted")]
    written = zip((example.id for example in rows.examples), _written(task, predicted.tolist()), strict=True)
    notes = (f"Of {rows.name}, {counted(cut, 'row')} longer than {reader.limit_text} {_CUT}",) if cut else ()
    file = {"stsb": "STS-B", **{name: known.submission for name, known in _GLUE.items()}}.get(task.name)
    return Predictions(f"{file or 'predictions'}.tsv", tuple(written), notes)


_CUT = "had its end cut off for the prediction, as every row needs one."


def _written(task: Task, predicted: Sequence[float]) -> list[str]:
    """Predictions as GLUE takes them: numbers or names of classes, scores from 0 to 5 with three decimals."""
    if isinstance(task, Regression):
        return [f"{score:.3f}" for score in np.clip(predicted, 0.0, 5.0)]
    by_number = task.name in _GLUE and _GLUE[task.name].submits_numbers
    return [str(int(number)) if by_number else _cell(task.labels[int(number)]) for number in predicted]


def write_predictions(
    task: Task,
    loaded: LoadedModel,
    test_sets: Mapping[str, MemoryExamples],
    options: EvaluationOptions,
    file: Callable[[str], AbstractContextManager[Path]],
) -> list[str]:
    """Writes the predictions of a model for test sets, and returns what to know about them; errors as in `predict`.

    Args:
        task: the task, with its classes.
        loaded: a model that was trained for it.
        test_sets: by the names of their tasks, which have the same classes.
        options: see `predict`.
        file: gives a temporary path for the file of a name.
    """
    notes: list[str] = []
    for name, rows in test_sets.items():
        named = task if name == task.name else replace(cast("SequenceClassification", task), name=name)
        predictions = predict(named, loaded, rows, options)
        with file(predictions.file) as path:
            path.write_text(predictions.text, encoding="utf-8")
        notes += predictions.notes
    return notes
