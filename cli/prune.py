"""`headlens prune`: gates that close heads while the task is learned."""

from __future__ import annotations

import shlex

from headlens.analyses.prune.options import COMMAND, PruneRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Models")
def prune(request: PruneRequest, screen: Screen) -> None:
    """Prune heads with learned gates: training closes the gates of heads that the model does not need.

    Examples: headlens prune · headlens prune ./my-classifier --task sst2 --data train.tsv --dev-data dev.tsv
    """
    from headlens.analyses.prune.recipe import run_prune

    from .tables import prune_tables

    run = run_prune(request, screen)
    screen.show(*prune_tables(run.tables))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))
