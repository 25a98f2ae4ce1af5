"""`headlens attend`: attention maps of given sentences."""

from __future__ import annotations

import shlex

from headlens.analyses.attend.options import COMMAND, AttendRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Analyses")
def attend(request: AttendRequest, screen: Screen) -> None:
    """Draw the attention maps of given sentences: a figure per layer, or one head large.

    Example: headlens attend demo --text "The cat that I saw sleeps." --layer 2
    """
    from headlens.analyses.attend.recipe import run_attend

    run = run_attend(request, screen)
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "classify", request.model]))
