"""`headlens classify`: what every head does."""

from __future__ import annotations

import shlex

from headlens.analyses.classify.options import COMMAND, ClassifyRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Analyses")
def classify(request: ClassifyRequest, screen: Screen) -> None:
    """Show what every attention head does (confidence, positions, syntax, rare words) and name its role.

    Examples: headlens classify · headlens classify bert-base-uncased albert-base-v2 --corpus en_ewt-ud-test.conllu
    """
    from headlens.analyses.classify.recipe import ClassifyRun, run_classify

    from .tables import classify_tables, relevance_tables

    def show(run: ClassifyRun) -> None:
        screen.say(run.findings)
        screen.show(*classify_tables(run.tables, request.options.thresholds.min_instances))
        if "relevance" in run.tables:
            screen.show(*relevance_tables(run.tables))
        screen.notes(run.notes)

    run = run_classify(request, screen, measured=show)
    report = shlex.join(["headlens", "report", str(run.folder)])
    attend = shlex.join(["headlens", "attend", request.models[0], "A sentence of yours."])
    screen.finish(run.summary(), run.files, f"{report}, or {attend}")
