"""Options of `prune` alone, each with its help line and its group."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .options import OUTPUT, ROLES, TRAINING, names

GATES = "Gates"
SCRATCH = "From scratch"

LambdasOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Strengths λ of the penalty, a run each.",
        show_default="0.03,0.1,0.3",
        rich_help_panel=GATES,
    ),
]
TargetHeadsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Search for the λ that leaves so many heads with gates, instead of --lambdas.",
        show_default=False,
        rich_help_panel=GATES,
    ),
]
MostRunsOption = Annotated[int, typer.Option(metavar="N", help="Runs of that search.", rich_help_panel=GATES)]
GatesOption = Annotated[
    str | None,
    typer.Option(
        metavar="STACKS",
        help="Stacks whose heads have gates, comma-separated: encoder, decoder, cross.",
        show_default="all of the model",
        rich_help_panel=GATES,
    ),
]
FreezeOption = Annotated[
    str | None,
    typer.Option(
        metavar="PARTS",
        help="Parts that are not trained, comma-separated: encoder, decoder, embeddings, head, all, none.",
        show_default="none; of the embedded task all",
        rich_help_panel=GATES,
    ),
]
PenaltyOption = Annotated[
    Literal["mean", "sum"],
    typer.Option(help="λ times the mean over attention modules of open gates, or their sum.", rich_help_panel=GATES),
]
GateStartOption = Annotated[
    float, typer.Option(metavar="NUMBER", help="log α at first; from 2.4 on a gate is 1.", rich_help_panel=GATES)
]
GateRateOption = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        help="Highest learning rate of log α.",
        show_default="24 / updates, at most 0.5",
        rich_help_panel=GATES,
    ),
]
SaveOption = Annotated[
    Literal["compacted", "folded"],
    typer.Option(
        help="Cut heads out, or leave zeros so that plain from_pretrained reads the models.", rich_help_panel=OUTPUT
    ),
]
FromScratchOption = Annotated[
    bool,
    typer.Option(
        "--from-scratch", help="Also train models of the same shapes from random weights.", rich_help_panel=SCRATCH
    ),
]
ScratchStepsOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Their updates.", show_default="as many as the others", rich_help_panel=SCRATCH),
]
ScratchRateOption = Annotated[float, typer.Option(help="Their highest learning rate.", rich_help_panel=SCRATCH)]
RolesCorpusOption = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Sentences on which `classify` names the roles of heads, before and after.",
        show_default="no roles",
        rich_help_panel=ROLES,
    ),
]
RolesTargetOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Their translations.", show_default=False, rich_help_panel=ROLES)
]
HeldShareOption = Annotated[
    float | None,
    typer.Option(
        help="Share that is held out without --dev, --dev-data.",
        show_default="0.1; half of the embedded task",
        rich_help_panel=TRAINING,
    ),
]


def split_numbers(option: str, text: str | float) -> tuple[float, ...]:
    """Split a comma-separated option into numbers; a single one may come from a file as a number."""
    try:
        return tuple(float(part) for part in names(str(text)))
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text!r} is no list of numbers. Write 0.03,0.1,0.3.") from error


def split_list(text: str | None) -> tuple[str, ...] | None:
    """Split a comma-separated option; None where it is not given, none for `none`."""
    return None if text is None else tuple(name for name in names(text) if name != "none")
