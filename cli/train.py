"""`headlens train`: a task from its examples, language and translation models from text."""

from __future__ import annotations

import shlex

from headlens.analyses.training.options import COMMAND, FineTuneRequest, TrainRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Models")
def train(request: TrainRequest | FineTuneRequest, screen: Screen) -> None:
    """Train a model on labelled examples of a task, on masked language modelling, or on translation.

    Example: headlens train bert-base-uncased --task sst2 --data train.tsv --dev-data dev.tsv
    """
    from headlens.analyses.training.recipe import run_training

    from .tables import training_tables

    run = run_training(request, screen)
    screen.show(*training_tables(run))
    screen.notes(run.notes)
    following = ["headlens", "classify", str(run.folder / "model")]
    if isinstance(request, FineTuneRequest) and request.dev_data is not None:
        following = ["headlens", "ablate", str(run.folder / "model"), *request.data.as_options(request.dev_data)]
    screen.finish(run.summary(), run.files, shlex.join([*following, *request.mask.as_options()]))
