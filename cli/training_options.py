"""Options about training, each with its help line and its group."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from . import options as o

AttentionOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What turns scores into attention weights: softmax, entmax15 or sparsemax, which give exact zeros, or "
        "entmax:ALPHA; the checkpoint keeps it.",
        show_default="that of the model",
        rich_help_panel=o.TRAINING,
    ),
]
GuessedShareOption = Annotated[
    float, typer.Option(help="Share of the tokens that are to be guessed, for mlm.", rich_help_panel=o.TRAINING)
]
NextSentenceOption = Annotated[
    bool,
    typer.Option(
        "--next-sentence",
        help="For mlm: also learn whether the second half of a block follows the first, as BERT does (ALBERT: whether "
        "the two are swapped).",
        rich_help_panel=o.TRAINING,
    ),
]
VocabularyOption = Annotated[
    int, typer.Option(metavar="N", help="Pieces of a new model's own vocabulary.", rich_help_panel=o.TRAINING)
]
LongestOption = Annotated[
    int | None,
    typer.Option(
        min=4,
        metavar="N",
        help="Tokens of a block, of a side of a pair, or of an example.",
        show_default="128; of an example what the model reads",
        rich_help_panel=o.TRAINING,
    ),
]
SmoothingOption = Annotated[float, typer.Option(help="Label smoothing of translation.", rich_help_panel=o.TRAINING)]
BleuOption = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Held-out pairs to translate at the end, for BLEU and chrF.",
        rich_help_panel=o.TRAINING,
    ),
]
DevShareOption = Annotated[
    float,
    typer.Option(
        help="Share of the text or data that is held out without --dev, --dev-data.", rich_help_panel=o.TRAINING
    ),
]
EpochsOption = Annotated[float, typer.Option(help="Passes over the corpus.", rich_help_panel=o.TRAINING)]
StepsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Updates, instead of --epochs.", rich_help_panel=o.TRAINING)
]
AccumulateOption = Annotated[int, typer.Option(metavar="N", help="Batches of an update.", rich_help_panel=o.TRAINING)]
LearningRateOption = Annotated[float, typer.Option(help="The highest.", rich_help_panel=o.TRAINING)]
WarmupOption = Annotated[
    float, typer.Option(help="Updates until then; below 1 a share of all.", rich_help_panel=o.TRAINING)
]
ScheduleOption = Annotated[
    Literal["linear", "constant", "inverse-sqrt"], typer.Option(help="What follows.", rich_help_panel=o.TRAINING)
]
WeightDecayOption = Annotated[float, typer.Option(help="Of AdamW, on matrices.", rich_help_panel=o.TRAINING)]
ClipOption = Annotated[float, typer.Option(help="Largest norm of a gradient; 0: any.", rich_help_panel=o.TRAINING)]
PrecisionOption = Annotated[
    Literal["no", "bf16", "fp16"], typer.Option(help="Type of the forward pass.", rich_help_panel=o.TRAINING)
]
LogEveryOption = Annotated[
    int, typer.Option(metavar="N", help="Updates per row of log.csv.", rich_help_panel=o.TRAINING)
]
EvaluateEveryOption = Annotated[
    int, typer.Option(metavar="N", help="Updates between evaluations; 0: every epoch.", rich_help_panel=o.TRAINING)
]
PatienceOption = Annotated[
    int,
    typer.Option(
        metavar="N", help="Evaluations without a better one before the end; 0: any.", rich_help_panel=o.TRAINING
    ),
]
