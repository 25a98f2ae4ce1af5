"""The plan of `headlens train-dam`."""

from __future__ import annotations

from headlens.analyses.dam.options import DamRequest
from headlens.learning.new_models import hints_at_new
from headlens.learning.open_training_set import suited_training_set
from headlens.learning.training_options import TEXT
from headlens.planning.plan import MASKED, Plan, Planner, TrainingSteps
from headlens.runs.progress import Reporter


def dam_plan(request: DamRequest, reporter: Reporter) -> Plan:
    """A training with a mask for each penalty, and one without where not the mask alone is trained."""
    planner = Planner("train-dam", reporter, request.training.precision)
    longest = request.training_set.longest or 128
    with hints_at_new(request.model):
        planner.model(request.model, request.model_options, vocabulary=request.vocabulary, longest=max(longest, 512))
    offline = request.model_options.offline
    training_set = suited_training_set(request.training_set, planner.models[0].model, offline=offline)
    learned, held_out = planner.training_set(training_set, offline=offline)
    length = longest if training_set.data.task in TEXT else None
    loop, runs = TrainingSteps.of(request.training, learned, length), len(request.lambdas) * (1 + request.dam.controls)
    planner.add(loop.work(f"train with a mask, {runs} times", each=MASKED, times=runs))
    measured = 1 + runs
    if "all" not in (request.learning.freeze or ()):
        planner.add(loop.work("train without a mask"))
        measured += 1
    planner.measure([held_out], each=measured)
    return planner.plan()


PLANS = {DamRequest: dam_plan}
