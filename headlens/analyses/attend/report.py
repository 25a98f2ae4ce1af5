"""How runs of `headlens attend` are shown."""

from __future__ import annotations

from headlens.analyses.attend.stored_maps import read_maps
from headlens.pages.command_report import CommandReport
from headlens.pages.head_cards import HeadFacts
from headlens.runs.reading import RecordedRun


def _heads(run: RecordedRun) -> HeadFacts:
    """Returns the attention maps of a run, whose sentences are numbered."""
    model = run.models[0]
    return HeadFacts(maps=read_maps(run, lambda _: model))


REPORT = CommandReport("attend", heads=_heads)
