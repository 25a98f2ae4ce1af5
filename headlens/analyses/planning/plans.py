"""The plan of any request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headlens.analyses.ablate.options import AblateRequest
from headlens.analyses.attend.options import AttendRequest
from headlens.analyses.classify.options import ClassifyRequest
from headlens.analyses.compact.options import CompactRequest
from headlens.analyses.dam.options import DamRequest
from headlens.analyses.masks.options import MasksRequest
from headlens.analyses.planning.analyses import ablate_plan, attend_plan, classify_plan, compact_plan, relevance_plan
from headlens.analyses.planning.plan import Plan
from headlens.analyses.planning.trainings import (
    dam_plan,
    fine_tune_plan,
    masks_plan,
    prune_plan,
    sparsefinder_plan,
    train_plan,
)
from headlens.analyses.prune.options import PruneRequest
from headlens.analyses.relevance.options import RelevanceRequest
from headlens.analyses.sparsefinder.options import SparsefinderRequest
from headlens.analyses.training.options import FineTuneRequest, TrainRequest
from headlens.runs.progress import Reporter, SilentReporter

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
    return _PLANS[type(request)](request, reporter or SilentReporter())
