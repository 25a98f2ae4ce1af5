"""`headlens masks`: fixed attention patterns, and models that are trained under them."""

from __future__ import annotations

import shlex

from . import mask_options as m
from . import options as o
from .dam_groups import MaskTrainingGroup
from .gate_groups import LessonGroup
from .groups import LoadGroup, RunGroup, grouped
from .mask_groups import Study, StudyGroup


@grouped
def masks(
    load: LoadGroup,
    lesson: LessonGroup,
    own: StudyGroup,
    training: MaskTrainingGroup,
    output: RunGroup,
    model: m.StudyModel = "demo",
    task: m.StudyTaskOption = None,
    pattern: m.PatternOption = None,
    length: m.LengthOption = 128,
    no_diagonal: m.NoDiagonalOption = False,
    figures: o.FiguresOption = True,
) -> None:
    """Count and draw fixed attention patterns, write them as mask files, and with --task train models under them.

    Examples: headlens masks · headlens masks --pattern "window:3|global:1|random:2" --length 64
    · headlens masks demo --task sst2 --data train.tsv --dev-data dev.tsv --pattern star --pattern bigbird --seeds 3
    · headlens masks demo --task paraphrase --graph neighbour --graph random --layers all --layers last:3
    """
    from headlens.analyses.masks.recipe import MasksRequest, run_masks

    from .tables import sparsity_tables, study_tables

    study = Study(task, model, lesson, own, training, load).request()
    request = MasksRequest(tuple(pattern or ()), length, no_diagonal, study, figures, output.place())
    if output.planned(request):
        return
    screen = output.screen()
    run = run_masks(request, screen)
    screen.show(*sparsity_tables(run.tables["sparsity"]), *study_tables(run.tables))
    screen.notes(run.notes)
    use = request.pattern[0] if request.pattern else "star"
    after = ["report", str(run.folder)] if study else ["ablate", "--mask", use, *["--no-diagonal"] * no_diagonal]
    screen.finish(run.summary(), run.files, shlex.join(["headlens", *after]))
