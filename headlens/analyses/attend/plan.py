"""The plan of `headlens attend`."""

from __future__ import annotations

from headlens.analyses.attend.options import AttendRequest
from headlens.analyses.planning.plan import Plan, Planner, Work
from headlens.errors import counted
from headlens.runs.progress import Reporter


def attend_plan(request: AttendRequest, reporter: Reporter) -> Plan:
    """A pass for each sentence; figures take most of the time."""
    planner = Planner("attend", reporter)
    model = planner.model(request.model, request.model_options)
    words = sum(len(text.split()) for text in (*request.text, *request.target_text))
    layers = sum(count for count, _ in model.stacks.values())
    planner.add(Work(f"attention on {counted(len(request.text), 'sentence')}", tokens=words * 1.3, fixed=1.5 * layers))
    return planner.plan()


PLANS = {AttendRequest: attend_plan}
