"""The plan of any request."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headlens.analyses.planning.plan import Plan
from headlens.runs.progress import Reporter, SilentReporter


def plan_of(request: Any, reporter: Reporter | None = None) -> Plan:
    """What would be done for a request, how large that is, and about how long it takes. Nothing is written.

    The plan of a request stands in `plan.py` beside its options.

    Args:
        request: of any command that runs a model.
        reporter: shows progress.

    Raises:
        InputError: whatever is wrong with models, files and options that can be seen before the work begins.
    """
    kind = type(request)
    plans = import_module(f"{kind.__module__.rpartition('.')[0]}.plan").PLANS
    plan: Plan = plans[kind](request, reporter or SilentReporter())
    return plan
