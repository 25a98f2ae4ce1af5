"""Options of `train-dam` alone, each with its help line and its group."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .options import OUTPUT, TRAINING

MASK = "Mask"

PenaltiesOption = Annotated[
    str, typer.Option(metavar="NUMBERS", help="Strengths λ of the penalty, a run each.", rich_help_panel=MASK)
]
StructuredOption = Annotated[
    bool,
    typer.Option(
        "--structured/--unstructured",
        help="A number for each offset, first and last token always active; or for each pair of positions.",
        rich_help_panel=MASK,
    ),
]
PerLayerOption = Annotated[
    bool, typer.Option("--per-layer/--shared", help="Masks for every layer, or shared by layers.", rich_help_panel=MASK)
]
FormOption = Annotated[
    Literal["additive", "multiplicative", "renormalised"],
    typer.Option(
        help="Add -c (1 - M) to scores, or multiply weights by M, also with sums of 1 again.", rich_help_panel=MASK
    ),
]
MaskedLayersOption = Annotated[
    str | None,
    typer.Option(
        metavar="LAYERS",
        help="Layers that are masked: 6-11, 0,2,4-6, first:3, last:3.",
        show_default="all",
        rich_help_panel=MASK,
    ),
]
StrengthOption = Annotated[float, typer.Option(metavar="NUMBER", help="c of the additive form.", rich_help_panel=MASK)]
MaskDiagonalOption = Annotated[
    bool, typer.Option("--diagonal/--no-diagonal", help="Whether a token may look at itself.", rich_help_panel=MASK)
]
NoiseOption = Annotated[
    Literal["training", "always", "never"],
    typer.Option(help="When M is drawn; never with --soft is soft importance.", rich_help_panel=MASK),
]
TemperatureOption = Annotated[
    float, typer.Option(metavar="NUMBER", help="τ of the Gumbel-sigmoid.", rich_help_panel=MASK)
]
FinalTemperatureOption = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="τ at the end.", show_default="the same throughout", rich_help_panel=MASK),
]
StraightOption = Annotated[
    bool,
    typer.Option("--straight-through/--soft", help="M is 0 or 1, or anything between.", rich_help_panel=MASK),
]
MaskPenaltyOption = Annotated[
    Literal["sum", "mean"],
    typer.Option(help="λ times the sum of M over heads and positions, or their mean.", rich_help_panel=MASK),
]
MaskRateOption = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        help="Highest learning rate of α.",
        show_default="24 / updates, at most 0.5",
        rich_help_panel=MASK,
    ),
]
MaskFreezeOption = Annotated[
    str | None,
    typer.Option(
        metavar="PARTS",
        help="Parts that are not trained, comma-separated: encoder, decoder, embeddings, head, all, none.",
        show_default="none; of the embedded task all",
        rich_help_panel=MASK,
    ),
]
MaskLongestOption = Annotated[
    int, typer.Option(metavar="N", help="Tokens of the mask and of the longest text.", rich_help_panel=TRAINING)
]
WindowOption = Annotated[
    int, typer.Option(metavar="N", help="Offsets that count as neighbourhood in tables.", rich_help_panel=OUTPUT)
]
