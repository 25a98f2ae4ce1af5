"""`train`: a task from its examples, or language and translation models from text."""

from __future__ import annotations

from headlens.analyses.training.options import FineTuneRequest, TrainRequest
from headlens.analyses.training.task_recipe import run_fine_tune
from headlens.analyses.training.text_recipe import run_train
from headlens.analyses.training.training_run import TrainRun
from headlens.runs.progress import Reporter


def run_training(request: TrainRequest | FineTuneRequest, reporter: Reporter | None = None) -> TrainRun:
    """Trains the model on text or on the examples of a task, and writes the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    return run_train(request, reporter) if isinstance(request, TrainRequest) else run_fine_tune(request, reporter)
