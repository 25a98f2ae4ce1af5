"""How many heads every layer keeps, by the penalty on open gates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.analyses.prune.map_figure import GateScale
from headlens.analyses.prune.sweep_runs import GatedRun, gated_runs, penalty_text
from headlens.heads import STACKS
from headlens.plots.axis_labels import FAMILY, drawable_text
from headlens.plots.cell_drawing import BAR_SLOT, add_bars, paint
from headlens.plots.head_grid import Grid, Panel, each, float_column, flow, has_numbers, head_grid_figure
from headlens.plots.style import INK, PALE, SMALLEST_SIZE, TICK_SIZE

_ALL = "all"
_ABREAST = 36  # columns of a line
_DIGIT = 0.64  # width of a digit in font sizes
_FOOT = 0.06  # inches, below names that stand upright


def kept_by_layer(gates: pd.DataFrame) -> Figure | None:
    """The number of open heads of every layer after training, a column per run from weak to strong penalties.

    One panel per model and stack; the first column is the whole model. Layers without a head left are white, those with
    a gate that has no number grey.

    Args:
        gates: rows of `gates.csv`, of one model or several.

    Returns:
        The figure, or None when there are no numbers.
    """
    if not has_numbers(gates, "gate"):
        return None
    panels = list(_panels(gated_runs(gates)))
    plan = flow([(model, item) for model, item, _ in panels], _ABREAST)
    sheet = head_grid_figure(plan, "Heads left per layer, by λ", side=BAR_SLOT + 0.15, foot=_FOOT)
    most = max(float(np.nanmax(item.values)) for _, item, _ in panels)
    scale = GateScale("heads left (white: none)", 1e-12, most, PALE, "min")
    for (axes, item), (*_, names) in zip(each(sheet, plan), panels, strict=True):
        paint(axes, item, scale)
        _write_counts(axes, item.values, scale, sheet.cell)
        _name_columns(axes, names, sheet.cell[0])
    add_bars(sheet, scale)
    return sheet.figure


def _panels(runs: Sequence[GatedRun]) -> Iterator[tuple[str, Panel, list[str]]]:
    for model in dict.fromkeys(run.model for run in runs):
        for stack in STACKS:
            stack_runs = [run for run in runs if run.model == model and stack in run.stacks]
            if not stack_runs:
                continue
            last = [run.last[run.last["stack"] == stack] for run in stack_runs]
            layers = 1 + max(int(rows["layer"].max()) for rows in last)
            columns = [_counts(last[0].assign(gate=1.0), layers), *(_counts(rows, layers) for rows in last)]
            title = f"{model}, {stack}" if model else stack
            yield (
                model,
                Panel(title, np.column_stack(columns), np.ones((layers, len(columns)), bool)),
                _names(stack_runs),
            )


def _counts(rows: pd.DataFrame, layers: int) -> Grid:
    """How many heads of every layer are open; NaN for layers with a gate that is not known."""
    gates = float_column(rows, "gate")
    opened = pd.Series(np.where(np.isnan(gates), np.nan, gates > 0), index=rows["layer"].to_numpy(int))
    counts = opened.groupby(level=0).sum(min_count=1).where(opened.notna().groupby(level=0).all())
    return np.asarray(counts.reindex(range(layers)), np.float64)


def _names(runs: Sequence[GatedRun]) -> list[str]:
    return [_ALL, *(penalty_text(run.run, run.penalty) for run in runs)]


def _write_counts(axes: Axes, counts: Grid, scale: GateScale, cell: tuple[float, float]) -> None:
    letters = len(str(int(np.nanmax(counts, initial=0.0))))
    size = min(TICK_SIZE, 72 * min(0.9 * cell[0] / (_DIGIT * letters), 0.75 * cell[1]))
    for (layer, run), count in np.ndenumerate(counts):
        if not np.isnan(count) and size >= SMALLEST_SIZE:
            axes.text(run, layer, f"{count:.0f}", ha="center", va="center", fontsize=size, color=_ink(scale, count))


def _ink(scale: GateScale, count: float) -> str:
    return scale.ink(count) if count else INK


def _name_columns(axes: Axes, names: Sequence[str], width: float) -> None:
    """Write λ below the columns, upwards where cells are too narrow."""
    fits = _DIGIT * TICK_SIZE / 72 * max(map(len, names)) <= 0.9 * width
    axes.set_xlabel("λ")
    axes.set_xticks(range(len(names)), [drawable_text(name) for name in names], rotation=0 if fits else 90)
    for label in axes.get_xticklabels():
        label.set(fontsize=TICK_SIZE if fits else TICK_SIZE - 1, fontfamily=FAMILY, color=INK)
