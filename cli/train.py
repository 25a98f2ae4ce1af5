"""`headlens train`: a task from its examples, language and translation models from text."""

from __future__ import annotations

import shlex

from headlens.analyses.training.options import FineTuneRequest, TrainRequest, train_request

from .command import command
from .screen import Screen


@command("Models", TrainRequest, FineTuneRequest, make=train_request)
def train(request: TrainRequest | FineTuneRequest, screen: Screen) -> None:
    """Train a model: a task from its examples, masked tokens of text, or translation.

    Example: headlens train bert-base-uncased --task sst2 --data train.tsv --dev-data dev.tsv
    """
    from headlens.analyses.training.task_recipe import run_fine_tune
    from headlens.analyses.training.text_recipe import run_train

    from .tables import training_tables

    run = run_train(request, screen) if isinstance(request, TrainRequest) else run_fine_tune(request, screen)
    screen.show(*training_tables(run))
    screen.notes(run.notes)
    following = ["headlens", "classify", str(run.folder / "model")]
    if isinstance(request, FineTuneRequest) and request.dev_data is not None:
        data = ["--task", request.data.task, "--data", request.dev_data]
        following = ["headlens", "ablate", str(run.folder / "model"), *data]
    screen.finish(run.summary(), run.files, shlex.join([*following, *request.mask.as_options()]))
