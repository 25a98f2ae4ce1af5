"""`headlens prune`: gates that close heads while the task is learned."""

from __future__ import annotations

import shlex

from . import options as o
from . import task_options as t
from .gate_groups import GateGroup, LessonGroup, RolesGroup, SweepTrainingGroup
from .groups import LoadGroup, RunGroup, ThresholdsGroup, grouped


@grouped
def prune(
    load: LoadGroup,
    lesson: LessonGroup,
    gates: GateGroup,
    training: SweepTrainingGroup,
    roles: RolesGroup,
    thresholds: ThresholdsGroup,
    output: RunGroup,
    model: o.ModelArgument = "demo",
    task: t.TaskOption = "paraphrase",
    figures: o.FiguresOption = True,
) -> None:
    """Prune heads by gates that are learned: train a model on until the heads it can go without are closed.

    Examples: headlens prune · headlens prune ./my-classifier --task sst2 --data train.tsv --dev-data dev.tsv
    """
    from headlens.analyses.prune.recipe import PruneRequest, run_prune

    from .tables import prune_tables

    request = PruneRequest(
        model=model,
        lesson=lesson.lesson(task),
        sweep=gates.sweep(),
        gates=gates.options(),
        training=training.options(),
        roles=roles.options(),
        model_options=load.options(),
        figures=figures,
        place=output.place(),
        thresholds=thresholds.options(),
    )
    if output.planned(request):
        return
    screen = output.screen()
    run = run_prune(request, screen)
    screen.show(*prune_tables(run.tables))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))
