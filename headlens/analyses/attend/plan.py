"""The plan of `headlens attend`."""

from __future__ import annotations

from headlens.analyses.attend.options import AttendRequest
from headlens.errors import counted
from headlens.planning.plan import Plan, Planner, Work
from headlens.runs.progress import Reporter


def attend_plan(request: AttendRequest, reporter: Reporter) -> Plan:
    """A pass for each sentence; figures take most of the time."""
    planner = Planner("attend", reporter)
    words = sum(len(text.split()) for text in (*request.text, *request.target_text))
    for name in filter(None, (request.model, request.second)):
        model = planner.model(name, request.model_options)
        layers = sum(map(len, model.stacks.values())) if request.figures else 0
        planner.add(
            Work(f"attention on {counted(len(request.text), 'sentence')}", tokens=words * 1.3, fixed=1.5 * layers)
        )
    return planner.plan()


PLANS = {AttendRequest: attend_plan}
