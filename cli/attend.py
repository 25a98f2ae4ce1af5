"""`headlens attend`: attention maps of given sentences."""

from __future__ import annotations

import shlex

from headlens.analyses.attend.options import COMMAND, AttendRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Analyses")
def attend(request: AttendRequest, screen: Screen) -> None:
    """Show where every head looks in given sentences: an interactive page, and one figure per layer.

    Arguments with a space are sentences. Examples: headlens attend "The cat that I saw sleeps." ·
    headlens attend bert-base-uncased "One sentence." "Another one." --without encoder.2.8
    """
    from headlens.analyses.attend.recipe import run_attend

    run = run_attend(request, screen)
    screen.notes(run.notes)
    classify = shlex.join(["headlens", "classify", request.model])
    screen.finish(run.summary(), run.files, f"open {run.folder / 'attention.html'} in a browser, or {classify}")
