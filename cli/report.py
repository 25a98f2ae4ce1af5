"""`headlens report`: figures again, and a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from .groups import OutputGroup, grouped
from .options import OUTPUT, names

RunsArgument = Annotated[
    list[Path],
    typer.Argument(metavar="RUN", help="Run folders; several are shown side by side on one page.", show_default=False),
]


FormatOption = Annotated[
    str,
    typer.Option(
        metavar="LIST", help="What figures are written as: png (in any case), svg, pdf.", rich_help_panel=OUTPUT
    ),
]
WidthOption = Annotated[
    Literal["full", "column"],
    typer.Option(
        help="What figures are drawn for: a page from margin to margin (7 inches), or one of its two columns (3.3).",
        rich_help_panel=OUTPUT,
    ),
]
LatexOption = Annotated[
    bool, typer.Option("--latex", help="Write the tables that are read first for LaTeX, too.", rich_help_panel=OUTPUT)
]


@dataclass(frozen=True)
class ReportGroup(OutputGroup):
    """Where the page goes, and what is printed."""

    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the page and its figures.",
            show_default="the run itself; of several runs/report-<run>-<time>",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    format: FormatOption = "png,svg"
    latex: LatexOption = False
    width: WidthOption = "full"


@grouped
def report(runs: RunsArgument, output: ReportGroup) -> None:
    """Draw the figures of runs again from their tables, and write one self-contained page, report.html.

    Examples: headlens report runs/classify-demo-20261121-103000 · headlens report FIRST SECOND --out comparison
    """
    from headlens.analyses.report.recipe import ReportRequest, run_report
    from headlens.pages.console import summary_table

    request = ReportRequest(
        runs=tuple(runs),
        format=names(output.format),
        latex=output.latex,
        width=output.width,
        place=output.place(),
    )
    screen = output.screen()
    made = run_report(request, screen)
    screen.show(summary_table("On the page", made.rows()))
    screen.notes(made.notes)
    screen.finish(made.summary(), made.files, f"open {made.page} in a browser")
