"""`headlens relevance`: what every head contributes to the output."""

from __future__ import annotations

import shlex

from headlens.analyses.relevance.options import COMMAND, RelevanceRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Analyses")
def relevance(request: RelevanceRequest, screen: Screen) -> None:
    """Measure what every attention head contributes to the output, by layer-wise relevance propagation.

    Example: headlens relevance ./my-classifier --corpus dev.tsv --column sentence --relevance-target class:positive
    """
    from headlens.analyses.relevance.recipe import run_relevance

    from .tables import relevance_tables

    run = run_relevance(request, screen)
    screen.show(*relevance_tables(run.tables))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))
