"""`headlens train`: a task from its examples, language and translation models from text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated

import typer

from . import options as o
from . import task_options as t
from . import training_options as tr
from .groups import LoadGroup, MaskGroup, RunGroup, TaskGroup, TextGroup, TrainingGroup, grouped

TrainedModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Checkpoint to go on from, or new:bert-small, new:albert-small, new:marian-small (also -tiny, -base), or "
        "by layers, heads, width: new:marian-3x8x128.",
    ),
]


@grouped
def train(
    load: LoadGroup,
    masking: MaskGroup,
    text: TextGroup,
    examples: TaskGroup,
    training: TrainingGroup,
    output: RunGroup,
    model: TrainedModel = "demo",
    task: t.TaskOption = "mlm",
    dev_data: t.DevDataOption = None,
    corpus: o.CorpusOption = "demo",
    column: o.ColumnOption = None,
    target_column: o.TargetColumnOption = None,
    split: o.SplitOption = "train",
    dev: t.DevOption = None,
    dev_target: t.DevTargetOption = None,
    attention: tr.AttentionOption = None,
    bleu: tr.BleuOption = 0,
    figures: o.FiguresOption = True,
) -> None:
    """Train a model: a task from its examples, masked tokens of text, or translation.

    Example: headlens train bert-base-uncased --task sst2 --data train.tsv --dev-data dev.tsv
    """
    from headlens.analyses.training.task_recipe import FineTuneRequest, run_fine_tune
    from headlens.analyses.training.text_recipe import TrainRequest, run_train
    from headlens.corpora.sources import CorpusOptions

    from .tables import training_tables

    wanted: TrainRequest | FineTuneRequest
    if task in {"mlm", "translation"}:
        given = {"data": examples.data, "columns": examples.columns, "min-words": examples.min_words}
        _refuse(task, {**given, "dev-data": dev_data}, "--corpus")
        wanted = TrainRequest(
            model=model,
            corpus=corpus,
            corpus_options=CorpusOptions(examples.target, column, target_column, split, examples.limit, load.offline),
            dev=dev,
            dev_target=dev_target,
            text=text.options(task),
            bleu=bleu,
            training=training.options(),
            mask=masking.options(),
            attention=attention,
            model_options=load.options(),
            figures=figures,
            place=output.place(),
        )
    else:
        corpora = {"column": column, "target-column": target_column, "dev": dev, "dev-target": dev_target}
        of_text = {"label-smoothing": text.label_smoothing != 0.1, "mask-share": text.mask_share != 0.15}
        of_text["next-sentence"] = text.next_sentence
        wrong = {"corpus": corpus != "demo", "target": examples.target, "bleu": bleu, **corpora, **of_text}
        _refuse(task, wrong, "--data")
        wanted = FineTuneRequest(
            examples.of(task),
            model=model,
            dev_data=dev_data,
            dev_share=text.dev_share,
            longest=text.longest,
            vocabulary=text.vocabulary,
            training=training.options(),
            mask=masking.options(),
            attention=attention,
            model_options=load.options(),
            figures=figures,
            place=output.place(),
        )
    if output.planned(wanted):
        return
    screen = output.screen()
    run = run_train(wanted, screen) if isinstance(wanted, TrainRequest) else run_fine_tune(wanted, screen)
    screen.show(*training_tables(run))
    screen.notes(run.notes)
    following = ["headlens", "classify", str(run.folder / "model")]
    if dev_data is not None:
        following = ["headlens", "ablate", str(run.folder / "model"), "--task", task, "--data", dev_data]
    following += masking.options().as_options()
    screen.finish(run.summary(), run.files, shlex.join(following))


def _refuse(task: str, given: Mapping[str, object], instead: str) -> None:
    """Refuse what a task would not look at."""
    from headlens.errors import OptionError

    for name, value in given.items():
        if value:
            raise OptionError(f"--{name} is not for --task {task}.", f"Name its data with {instead}.")
