"""`headlens train-dam`: masks of attention that are learned together with a model."""

from __future__ import annotations

import shlex

from . import dam_options as d
from . import gate_options as g
from . import options as o
from . import task_options as t
from . import training_options as tr
from .dam_groups import LearnedMaskGroup, MaskLessonGroup, MaskTrainingGroup
from .groups import LoadGroup, RunGroup, grouped
from .train import TrainedModel


@grouped
def train_dam(
    load: LoadGroup,
    lesson: MaskLessonGroup,
    mask: LearnedMaskGroup,
    training: MaskTrainingGroup,
    output: RunGroup,
    model: TrainedModel = "demo",
    task: t.TaskOption = "paraphrase",
    lambdas: d.PenaltiesOption = "0.001,0.01,0.1",
    window: d.WindowOption = 1,
    vocabulary: tr.VocabularyOption = 8000,
    figures: o.FiguresOption = True,
) -> None:
    """Learn which positions attention needs: train a model together with masks, and see how sparse they can be.

    Examples: headlens train-dam · headlens train-dam new:bert-small --task mlm --corpus books.txt --steps 5000
    """
    from headlens.analyses.dam.recipe import DamRequest, run_dam

    from .tables import dam_tables

    request = DamRequest(
        model=model,
        lesson=lesson.lesson(task),
        dam=mask.options(lesson.longest),
        lambdas=g.split_numbers("--lambdas", lambdas),
        window=window,
        vocabulary=vocabulary,
        training=training.options(),
        model_options=load.options(),
        figures=figures,
        place=output.place(),
    )
    if output.planned(request):
        return
    screen = output.screen()
    run = run_dam(request, screen)
    screen.show(*dam_tables(run.tables))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))
