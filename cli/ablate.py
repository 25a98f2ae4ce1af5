"""`headlens ablate`: what a task loses without heads."""

from __future__ import annotations

import shlex

from headlens.analyses.ablate.options import COMMAND, AblateRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Analyses")
def ablate(request: AblateRequest, screen: Screen) -> None:
    """Measure what a task loses without each attention head, and with many heads pruned.

    Examples: headlens ablate · headlens ablate ./my-classifier --task sst2 --data dev.tsv --prune 3,10,20,30
    """
    from headlens.analyses.ablate.overviews import findings_of
    from headlens.analyses.ablate.recipe import run_ablate

    from .tables import ablation_tables

    run = run_ablate(request, screen)
    screen.say(findings_of(run.tables))
    screen.show(*ablation_tables(run.tables, run.models))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))
