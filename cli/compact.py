"""`headlens compact`: a smaller model without some of its heads."""

from __future__ import annotations

import shlex

from headlens.analyses.compact.options import COMMAND, CompactRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Models")
def compact(request: CompactRequest, screen: Screen) -> None:
    """Cut attention heads out of a model: a smaller, faster checkpoint, equal to the model with these heads at 0.

    Example: headlens compact demo --heads encoder.3.1,encoder.4.0 --out small
    """
    from headlens.analyses.compact.recipe import run_compact

    from .tables import compact_screen_table

    run = run_compact(request, screen)
    screen.show(compact_screen_table(run.table))
    screen.notes([f"Self-check against the model with these heads at 0: {run.difference}.", *run.notes])
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "classify", str(run.folder)]))
