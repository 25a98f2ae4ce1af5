"""`headlens train`: language and translation models on text."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from . import options as o
from .groups import LoadGroup, OutputGroup, TextGroup, TrainingGroup, grouped

TrainedModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Checkpoint to go on from, or new:bert-small, new:albert-small, new:marian-small (also -tiny, -base).",
    ),
]
DevOption = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="What the model is evaluated on.",
        show_default="a part of the corpus",
        rich_help_panel=o.CORPUS,
    ),
]
DevTargetOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Translations of --dev.", rich_help_panel=o.CORPUS)
]


@grouped
def train(
    load: LoadGroup,
    text: TextGroup,
    training: TrainingGroup,
    output: OutputGroup,
    model: TrainedModel = "demo",
    corpus: o.CorpusOption = "demo",
    target: o.TargetOption = None,
    column: o.ColumnOption = None,
    target_column: o.TargetColumnOption = None,
    split: o.SplitOption = "train",
    limit: o.LimitOption = None,
    dev: DevOption = None,
    dev_target: DevTargetOption = None,
    figures: o.FiguresOption = True,
) -> None:
    """Train a model: masked tokens of text, or translation, from random weights or from a checkpoint.

    Example: headlens train new:albert-small --corpus books.txt --steps 20000
    """
    from headlens.corpora.sources import CorpusOptions
    from headlens.experiments.run_train import TrainRequest, run_train

    from .tables import training_tables

    request = TrainRequest(
        model=model,
        corpus=corpus,
        corpus_options=CorpusOptions(target, column, target_column, split, limit, load.offline),
        dev=dev,
        dev_target=dev_target,
        text=text.options(),
        training=training.options(),
        model_options=load.options(),
        figures=figures,
        place=output.place(),
    )
    screen = output.screen()
    run = run_train(request, screen)
    screen.show(*training_tables(run.state.log, run.state.evaluations))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "classify", str(run.folder / "model")]))
