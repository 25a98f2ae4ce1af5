"""The plan of `headlens masks`."""

from __future__ import annotations

from headlens.analyses.masks.options import MasksRequest
from headlens.analyses.masks.recipe import study_cases
from headlens.attention_masks.named_masks import LearnedDegrees
from headlens.planning.plan import MASKED, Plan, Planner, TrainingSteps
from headlens.runs.progress import Reporter


def masks_plan(request: MasksRequest, reporter: Reporter) -> Plan:
    """Patterns are counted at once; each case of a study is a training."""
    study = request.study
    if study is None:
        planner = Planner("masks", reporter)
        planner.notes.append(
            f"Nothing is trained: {len(request.chosen())} patterns are counted and drawn, which takes seconds."
        )
        return planner.plan()
    planner = Planner("masks", reporter, study.training.precision)
    planner.model(study.model, study.model_options)
    learned, held_out = planner.training_set(study.training_set, offline=study.model_options.offline)
    planned = study_cases(study, request.pattern)
    loop, runs = TrainingSteps.of(study.training, learned), len(planned)
    planner.add(loop.work(f"train {runs} cases", each=MASKED, times=runs))
    drawn = study.degrees.draws * sum(isinstance(case.mask, LearnedDegrees) for case in planned)
    further = planner.further_sets(study.also_on, study.training_set.data, offline=study.model_options.offline)
    planner.measure([held_out, *further], each=runs + drawn)
    if study.parser != "gold":
        planner.notes.append(
            f"The time of {study.parser} is not in the estimate: it parses each text once, beforehand."
        )
    return planner.plan()


PLANS = {MasksRequest: masks_plan}
