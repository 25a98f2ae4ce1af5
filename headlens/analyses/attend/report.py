"""How runs of `headlens attend` are shown."""

from __future__ import annotations

from headlens.analyses.attend.figures import drawn_names, layer_figures
from headlens.maps.stored_maps import read_maps
from headlens.pages.attention_page import AttentionView
from headlens.pages.command_report import CommandReport, Figures
from headlens.pages.head_cards import HeadFacts
from headlens.runs.reading import RecordedRun


def _heads(run: RecordedRun) -> HeadFacts:
    """Returns the attention maps of a run, whose sentences are numbered, in the state that was asked for."""
    return HeadFacts(maps=[sentence for sentence in read_maps(run, lambda _: run.models[0]) if not sentence.state])


def _attention(run: RecordedRun) -> AttentionView | None:
    """Returns the view of the sentences, in all their states."""
    maps = read_maps(run, str)
    recorded, count = _states(run), max((sentence.state for sentence in maps), default=0) + 1
    # Runs of earlier versions record no states.
    states = recorded if len(recorded) == count else run.models[:1]
    return AttentionView(states, maps, len(run.models) == 1) if maps and len(states) == count else None


def _states(run: RecordedRun) -> list[str]:
    """Returns the recorded names of the states, of the unchanged model last; none for runs of earlier versions."""
    recorded = run.record.get("states")
    return [*map(str, recorded)] if isinstance(recorded, list) else []


def attend_figures(run: RecordedRun) -> Figures:
    """Draws the maps that the run keeps, of the layer and the heads that it was asked for."""
    layer, head, heads = (run.argument(name, None) for name in ("layer", "head", "heads"))
    names = drawn_names(_states(run), len(run.models)) or run.models
    return layer_figures(read_maps(run, str), names, layer, head, heads or ())


# The page shows the pictures that lie in the folder: those of an interrupted run are there before its maps are.
REPORT = CommandReport("attend", heads=_heads, attention=_attention)
