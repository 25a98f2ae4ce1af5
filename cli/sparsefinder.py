"""`headlens sparsefinder`: which attention weights entmax will leave at zero."""

from __future__ import annotations

import shlex

from headlens.analyses.sparsefinder.options import COMMAND, SparsefinderRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Analyses")
def sparsefinder(request: SparsefinderRequest, screen: Screen) -> None:
    """Predict which attention weights of an entmax model will be zero, and measure how good the predictions are.

    Examples: headlens sparsefinder · headlens sparsefinder runs/entmax/model --corpus en_ewt-ud-test.conllu
    """
    from headlens.analyses.sparsefinder.recipe import run_sparsefinder

    from .tables import sparsefinder_tables

    run = run_sparsefinder(request, screen)
    screen.show(*sparsefinder_tables(run.tables))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))
