"""How runs of `headlens attend` are shown."""

from __future__ import annotations

from headlens.analyses.attend.figures import layer_figures
from headlens.analyses.attend.stored_maps import read_maps
from headlens.pages.command_report import CommandReport, Figures
from headlens.pages.head_cards import HeadFacts
from headlens.runs.reading import RecordedRun


def _heads(run: RecordedRun) -> HeadFacts:
    """Returns the attention maps of a run, whose sentences are numbered."""
    model = run.models[0]
    return HeadFacts(maps=read_maps(run, lambda _: model))


def attend_figures(run: RecordedRun) -> Figures:
    """Draws the maps that the run keeps, of the layer and the head that it was asked for."""
    layer, head = (run.argument(name, None) for name in ("layer", "head"))
    return layer_figures(read_maps(run, str), layer, head)


# The page shows the pictures that lie in the folder: those of an interrupted run are there before its maps are.
REPORT = CommandReport("attend", heads=_heads)
