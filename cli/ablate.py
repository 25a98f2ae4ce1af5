"""`headlens ablate`: what a task loses without heads."""

from __future__ import annotations

import shlex

from . import options as o
from . import task_options as t
from .classify import ModelsArgument
from .groups import AblationGroup, LoadGroup, MaskGroup, PruningGroup, RunGroup, TaskGroup, grouped


@grouped
def ablate(
    load: LoadGroup,
    masking: MaskGroup,
    examples: TaskGroup,
    ablation: AblationGroup,
    pruning: PruningGroup,
    output: RunGroup,
    models: ModelsArgument = None,
    task: t.TaskOption = "paraphrase",
    figures: o.FiguresOption = True,
) -> None:
    """Tell what every attention head is worth: a task without each of them, and with many pruned.

    Examples: headlens ablate · headlens ablate ./my-classifier --task sst2 --data dev.tsv --prune 3,10,20,30
    """
    from headlens.analyses.ablate.recipe import AblateRequest, run_ablate

    from .tables import ablation_tables

    request = AblateRequest(
        models=tuple(models or ["demo"]),
        data=examples.of(task),
        options=ablation.options(),
        pruning=pruning.options(),
        mask=masking.options(),
        model_options=load.options(),
        figures=figures,
        place=output.place(),
    )
    if output.planned(request):
        return
    screen = output.screen()
    run = run_ablate(request, screen)
    screen.show(*ablation_tables(run.tables, run.models))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))
