"""`headlens report`: figures again, and a page."""

from __future__ import annotations

from typing import Any

from .command import analysis
from .screen import Screen


@analysis("Results", plans=False)
def report(run: Any, _: Any, screen: Screen) -> str:
    """Redraw the figures of one or more runs from their tables, and write a single self-contained page, report.html.

    Examples: headlens report runs/classify-demo-20261121-103000 · headlens report FIRST SECOND --out comparison
    """
    screen.table("On the page", run.rows())
    return f"open {run.page} in a browser"
