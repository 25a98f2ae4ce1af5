"""Predictions for test sets without labels: `--predict` of every command that has a model of a task."""

from __future__ import annotations

from dataclasses import replace

from headlens.models.loading import LoadedModel
from headlens.runs.run import Run
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.predictions import UnlabelledRows, predict, read_unlabelled
from headlens.tasks.task import Task
from headlens.tasks.task_options import TaskData


def predicted_rows(source: str | None, data: TaskData, *, offline: bool) -> UnlabelledRows | None:
    """Reads the rows that are to be predicted, if any are; errors as in `read_unlabelled`."""
    return None if source is None else read_unlabelled(source, data, offline=offline)


def write_predictions(
    run: Run, loaded: LoadedModel, task: Task, rows: UnlabelledRows, options: EvaluationOptions
) -> list[str]:
    """Writes the predictions of a model for a test set, and returns what to know about them; errors as in `predict`.

    For the process that writes.
    """
    with run.reporter.status(f"predicting {rows.name}"):
        predictions = predict(task, loaded, rows, replace(options, warn=run.warn))
    with run.file(predictions.file) as path:
        path.write_text(predictions.text, encoding="utf-8")
    return list(predictions.notes)
