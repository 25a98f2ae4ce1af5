"""`headlens report`: figures again, and a page."""

from __future__ import annotations

from headlens.analyses.report.options import COMMAND, ReportRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Results", plans=False)
def report(request: ReportRequest, screen: Screen) -> None:
    """Redraw the figures of one or more runs from their tables, and write a single self-contained page, report.html.

    Examples: headlens report runs/classify-demo-20261121-103000 · headlens report FIRST SECOND --out comparison
    """
    from headlens.analyses.report.recipe import run_report
    from headlens.pages.page_tables import summary_table

    run = run_report(request, screen)
    screen.show(summary_table("On the page", run.rows()))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, f"open {run.page} in a browser")
