"""`headlens masks`: fixed attention patterns."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from . import options as o
from .groups import OutputGroup, grouped

PatternOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="A pattern such as 'window:3|global:1' or bigbird:keys=3, also written as a file; can be given again.",
        show_default="those of the SparseBERT paper, without files",
        rich_help_panel=o.MASK,
    ),
]
LengthOption = Annotated[
    int, typer.Option(metavar="N", help="Tokens for which patterns are counted and drawn.", rich_help_panel=o.MASK)
]


@grouped
def masks(
    output: OutputGroup,
    pattern: PatternOption = None,
    length: LengthOption = 128,
    no_diagonal: o.NoDiagonalOption = False,
    figures: o.FiguresOption = True,
) -> None:
    """Count and draw fixed attention patterns, with and without the diagonal, and write them as mask files.

    Examples: headlens masks · headlens masks --pattern "window:3|global:1|random:2" --length 64
    """
    from headlens.experiments.run_masks import MasksRequest, run_masks

    from .tables import sparsity_summary

    request = MasksRequest(tuple(pattern or ()), length, no_diagonal, figures, output.place())
    screen = output.screen()
    run = run_masks(request, screen)
    screen.show(sparsity_summary(run.table))
    screen.notes(run.notes)
    use = request.pattern[0] if request.pattern else "star"
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "ablate", "--mask", use]))
