"""Which heads close when, as a film."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from headlens.analyses.prune.map_figure import GATES, paint_gates, panel_of
from headlens.analyses.prune.sweep_runs import GatedRun, gated_runs, open_heads
from headlens.plots.cell_drawing import BAR_SLOT, add_bars
from headlens.plots.export import Animation
from headlens.plots.head_grid import Panel, each, flow, has_numbers, head_grid_figure

MOST_FRAMES = 20


def gate_films(gates: pd.DataFrame) -> Iterator[tuple[str, Animation | None]]:
    """The gates of every run from the first update to the last, its stacks side by side.

    Args:
        gates: rows of `gates.csv`, of one model or several.

    Yields:
        `closing` (`closing_1` and so on where there are several runs, from weak to strong penalties), and the film;
        None for a run that has no numbers.
    """
    runs = gated_runs(gates)
    for number, run in enumerate(runs, 1):
        name = "closing" if len(runs) == 1 else f"closing_{number}"
        yield name, _film(run) if has_numbers(run.rows, "gate") else None


def _film(run: GatedRun) -> Animation:
    steps = _frames(run)
    rows = flow([(run.model, item) for item in _panels(run, steps[0])])
    title = f"Gates of {run.model}, {run.label}" if run.model else f"Gates, {run.label}"
    sheet = head_grid_figure(rows, f"{title}\n{_state(run, steps[0])}", side=BAR_SLOT + 0.15, tallest_cell=0.24)
    add_bars(sheet, GATES)
    words = sheet.figure.texts[0]
    first_lines = words.get_text().rpartition("\n")[0]

    def draw(frame: int) -> None:
        words.set_text(f"{first_lines}\n{_state(run, steps[frame])}")
        for (axes, _), item in zip(each(sheet, rows), _panels(run, steps[frame]), strict=True):
            for old in list(axes.collections):
                old.remove()
            paint_gates(axes, item)

    return Animation(sheet.figure, len(steps), draw)


def _frames(run: GatedRun) -> list[int]:
    """The updates that are shown: all, or some evenly among them with the first and the last."""
    places = np.linspace(0, len(run.steps) - 1, min(MOST_FRAMES, len(run.steps)))
    return [int(step) for step in run.steps[places.round().astype(int)]]


def _panels(run: GatedRun, step: int) -> list[Panel]:
    rows = run.at(step)
    return [panel_of(rows[rows["stack"] == stack], stack) for stack in run.stacks]


def _state(run: GatedRun, step: int) -> str:
    rows = run.at(step)
    return f"step {step:,}: {open_heads(rows)} of {len(rows)} heads open"
