"""The plan of any request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headlens.experiments.reporter import Reporter, Silent
from headlens.experiments.run_ablate import AblateRequest
from headlens.experiments.run_attend import AttendRequest
from headlens.experiments.run_classify import ClassifyRequest
from headlens.experiments.run_compact import CompactRequest
from headlens.experiments.run_dam import DamRequest
from headlens.experiments.run_fine_tune import FineTuneRequest
from headlens.experiments.run_masks import MasksRequest
from headlens.experiments.run_prune import PruneRequest
from headlens.experiments.run_relevance import RelevanceRequest
from headlens.experiments.run_sparsefinder import SparsefinderRequest
from headlens.experiments.run_train import TrainRequest
from headlens.plans.analyses import ablate_plan, attend_plan, classify_plan, compact_plan, relevance_plan
from headlens.plans.plan import Plan
from headlens.plans.trainings import (
    dam_plan,
    fine_tune_plan,
    masks_plan,
    prune_plan,
    sparsefinder_plan,
    train_plan,
)

_PLANS: dict[type, Callable[[Any, Reporter], Plan]] = {
    AblateRequest: ablate_plan,
    AttendRequest: attend_plan,
    ClassifyRequest: classify_plan,
    CompactRequest: compact_plan,
    DamRequest: dam_plan,
    FineTuneRequest: fine_tune_plan,
    MasksRequest: masks_plan,
    PruneRequest: prune_plan,
    RelevanceRequest: relevance_plan,
    SparsefinderRequest: sparsefinder_plan,
    TrainRequest: train_plan,
}


def plan_of(request: Any, reporter: Reporter | None = None) -> Plan:
    """What would be done for a request, how large that is, and about how long it takes. Nothing is written.

    Args:
        request: of any command that runs a model.
        reporter: shows progress.

    Raises:
        InputError: whatever is wrong with models, files and options that can be seen before the work begins.
    """
    return _PLANS[type(request)](request, reporter or Silent())
