"""`headlens masks`: fixed attention patterns, and models that are trained under them."""

from __future__ import annotations

import shlex

from headlens.analyses.masks.options import COMMAND, MasksRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Analyses")
def masks(request: MasksRequest, screen: Screen) -> None:
    """Count and draw fixed attention patterns, write them as mask files and, with --task, train models under them.

    Examples: headlens masks · headlens masks --pattern "window:3|global:1|random:2" --length 64
    · headlens masks demo --task sst2 --data train.tsv --dev-data dev.tsv --pattern star --pattern bigbird --seeds 3
    · headlens masks demo --task paraphrase --graph neighbour --graph random --layers all --layers last:3
    """
    from headlens.analyses.masks.recipe import run_masks

    from .tables import sparsity_tables, study_tables

    run = run_masks(request, screen)
    screen.show(*sparsity_tables(run.tables["sparsity"]), *study_tables(run.tables))
    screen.notes(run.notes)
    use = request.pattern[0] if request.pattern else "star"
    ablation = ["ablate", "--mask", use, *["--no-diagonal"] * request.no_diagonal]
    after = ablation if request.study is None else ["report", str(run.folder)]
    screen.finish(run.summary(), run.files, shlex.join(["headlens", *after]))
