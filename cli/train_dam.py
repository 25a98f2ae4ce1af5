"""`headlens train-dam`: masks of attention that are learned together with a model."""

from __future__ import annotations

import shlex

from headlens.analyses.dam.options import COMMAND, DamRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Models")
def train_dam(request: DamRequest, screen: Screen) -> None:
    """Learn which positions attention needs: train a model together with sparse attention masks.

    Examples: headlens train-dam · headlens train-dam new:bert-small --task mlm --corpus books.txt --steps 5000
    """
    from headlens.analyses.dam.recipe import run_dam

    from .tables import dam_tables

    run = run_dam(request, screen)
    screen.show(*dam_tables(run.tables))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))
