"""Which heads close when: gates as heatmaps at some updates of every run, and as counts by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.analyses.prune.sweep_runs import GatedRun, gated_runs, open_heads, penalty_text, snapshots
from headlens.heads import STACKS
from headlens.plots import head_grid, style
from headlens.plots.axis_labels import font_family
from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bar, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

SNAPSHOTS = 5
_JUST_OPEN = 1e-12  # less is closed
_LINES = "#D0D0D0"  # between cells: closed ones are as white as the page
# inches
_LABEL, _TICKS, _GAP, _WORDS, _TOP, _BOTTOM = 0.72, 0.34, 0.10, 0.32, 0.25, 0.34
_LARGEST, _SMALLEST = 0.20, 0.035  # sides of cells
_NARROWEST, _LOWEST, _SHORTEST, _TALLEST = 0.78, 0.30, 1.9, 9.2
_ABREAST = 36  # columns of a line


@dataclass(frozen=True)
class GateScale(Scale):
    """Colours for gates: white for those that are closed, however little open the others are."""

    @property
    def map(self) -> Colormap:
        """Colours that all differ from white."""
        from matplotlib import colormaps
        from matplotlib.colors import ListedColormap

        return ListedColormap(colormaps[self.colours](np.linspace(0.15, 1.0, 256))).with_extremes(under="white")


GATES = GateScale("gate (white: closed)", _JUST_OPEN, 1.0, style.PALE, "min")


def gate_maps(gates: pd.DataFrame) -> Iterator[tuple[str, Figure | None]]:
    """The gates of every run at some updates: a row per run from weak to strong penalties, the same updates below.

    One figure per stack, on several pages where there are more runs than fit. A closed gate is white, one without a
    number grey; all have one scale.

    Args:
        gates: rows of `gates.csv`, of one model or several.

    Yields:
        `gates_encoder` and so on, with `_2` and so on behind it for further pages, and the figure; None where there
        are no numbers.
    """
    if not head_grid.has_numbers(gates, "gate"):
        yield "gates", None
        return
    runs = gated_runs(gates)
    models = {run.model for run in runs}
    of_model = f" of {runs[0].model}" if len(models) == 1 and runs[0].model else ""
    for stack in STACKS:
        stack_runs = [run._replace(rows=run.rows[run.rows["stack"] == stack]) for run in runs if stack in run.stacks]
        if not stack_runs:
            continue
        title = f"Gates during training: {stack}{of_model}"
        for page, figure in enumerate(_pages(stack_runs, title), 1):
            yield f"gates_{stack}" + (f"_{page}" if page > 1 else ""), figure


def panel_of(rows: pd.DataFrame, title: str = "") -> head_grid.Panel:
    """Returns the panel of the gates of a stack at one update, (layers, heads), with a title."""
    return head_grid.panel(rows, head_grid.float_column(rows, "gate"), title)


def paint_gates(axes: Axes, item: head_grid.Panel) -> None:
    """Colours the cells of a panel: grey where a head has no number, and nothing at all where there is no head.

    Without seaborn, which frames cells that are not there.
    """
    from matplotlib.colors import ListedColormap

    lines: dict[str, Any] = {"edgecolors": _LINES, "linewidth": 0.3}
    missing = item.present & np.isnan(item.values)
    if missing.any():
        axes.pcolor(
            np.ma.masked_where(~missing, np.zeros(missing.shape)), cmap=ListedColormap([style.MISSING]), **lines
        )
    if np.isfinite(item.values).any():
        axes.pcolor(np.ma.masked_invalid(item.values), **GATES.limits, **lines)
    axes.set(xlim=(0, missing.shape[1]), ylim=(0, missing.shape[0]))


def _pages(runs: Sequence[GatedRun], title: str) -> Iterator[Figure]:
    """Pages of panels that all are as large as the largest, in inches, a column for each update that is shown."""
    steps, shapes = snapshots(runs, SNAPSHOTS), [panel_of(run.last).values.shape for run in runs]
    layers, heads = (max(shape[axis] for shape in shapes) for axis in (0, 1))
    room = style.FULL_WIDTH - _LABEL - _TICKS - BAR_SLOT - 0.15 - len(steps) * _GAP
    width = max(_SMALLEST, min(_LARGEST, room / len(steps) / heads))
    # low cells in many layers are better than a second page
    fitting = ((_TALLEST - _TOP - style.HEADING_LINE - _BOTTOM) / len(shapes) - _WORDS) / layers
    cell = width, max(_SMALLEST, min(width, fitting), _LOWEST / layers)
    # Width and height of a panel with what stands around it; width of the page with labels and colour bar.
    slot = max(_NARROWEST, width * heads) + _GAP, cell[1] * layers + _WORDS
    page = max(style.COLUMN_WIDTH, _LABEL + _TICKS + len(steps) * slot[0] + BAR_SLOT + 0.15)
    top = _TOP + style.further_lines(title, page)
    rows = max(1, int((_TALLEST - top - _BOTTOM) / slot[1]))
    for shown in (runs[first : first + rows] for first in range(0, len(runs), rows)):
        height = max(_SHORTEST, top + len(shown) * slot[1] + _BOTTOM)
        figure = style.new_figure(page, height)
        style.headline(figure, title)
        for line, run in enumerate(shown):
            upper = height - top - line * slot[1]
            words = style.fold(run.name, _LABEL - 0.1, style.TICK_SIZE)
            place = 0.08 / page, (upper - _WORDS - cell[1] * (1 + run.rows["layer"].max()) / 2) / height
            figure.text(*place, words, fontsize=style.TICK_SIZE, fontfamily=font_family(), color=style.INK, va="center")
            for column, step in enumerate(steps):
                corner = _LABEL + _TICKS + column * slot[0], upper - _WORDS
                axes = _snapshot(figure, run.at(step), cell, corner)
                is_lowest = run is shown[-1]
                style.dress(axes, "head" if is_lowest else "", "layer" if not column else "")
                axes.tick_params(labelleft=not column, labelbottom=is_lowest)
        add_bar(figure, GATES, BAR_SLOT + 0.05, top + _WORDS)
        yield figure


def _snapshot(figure: Figure, rows: pd.DataFrame, cell: tuple[float, float], corner: tuple[float, float]) -> Axes:
    """Axes with the gates of a run at one update; `corner` is the upper left one in inches."""
    (width, height), item = figure.get_size_inches(), panel_of(rows)
    layers, heads = item.values.shape
    box = heads * cell[0], layers * cell[1]
    axes = figure.add_axes((corner[0] / width, (corner[1] - box[1]) / height, box[0] / width, box[1] / height))
    paint_gates(axes, item)
    head_grid.number_axes(axes, item.values.shape, cell)
    words = f"step {int(rows['step'].iloc[0]):,}\n{open_heads(rows)} of {len(rows)} open"
    axes.set_title(words, fontsize=style.TICK_SIZE, color=style.INK, loc="left", pad=2, linespacing=1.0)
    return axes


def kept_by_layer(gates: pd.DataFrame) -> Figure | None:
    """The number of open heads of every layer after training, a column per run from weak to strong penalties.

    One panel per model and stack; the first column is the whole model. Layers without a head left are white, those with
    a gate that has no number grey.

    Args:
        gates: rows of `gates.csv`, of one model or several.

    Returns:
        The figure, or None when there are no numbers.
    """
    if not head_grid.has_numbers(gates, "gate"):
        return None
    runs = gated_runs(gates)
    most = max(float(np.nanmax(item.values)) for _, item in _count_panels(runs))
    scale = GateScale("heads left (white: none)", 1e-12, most, style.PALE, "min")
    plan = head_grid.flow([(model, replace(item, scale=scale)) for model, item in _count_panels(runs)], _ABREAST)
    sheet = head_grid.head_grid_figure(plan, "Heads left per layer, by λ")
    for axes, item in head_grid.each(sheet, plan):
        inks = np.vectorize(lambda count: scale.ink(count) if count else style.INK, otypes=[object])(item.values)
        words = np.vectorize(lambda count: "" if np.isnan(count) else f"{count:.0f}", otypes=[object])(item.values)
        write(axes, words, inks, sheet.cell, max(map(len, words.flat)))
    return sheet.figure


def _count_panels(runs: Sequence[GatedRun]) -> Iterator[tuple[str, head_grid.Panel]]:
    for model, stack in product(dict.fromkeys(run.model for run in runs), STACKS):
        stack_runs = [run for run in runs if run.model == model and stack in run.stacks]
        if not stack_runs:
            continue
        last = [run.last[run.last["stack"] == stack] for run in stack_runs]
        layers = 1 + max(int(rows["layer"].max()) for rows in last)
        columns = np.column_stack([_counts(rows, layers) for rows in (last[0].assign(gate=1.0), *last)])
        title = f"{model}, {stack}" if model else stack
        names = ["all", *(penalty_text(run.run, run.penalty) for run in stack_runs)]
        yield model, head_grid.Panel(title, columns, np.ones(columns.shape, bool), across="λ", columns=names)


def _counts(rows: pd.DataFrame, layers: int) -> head_grid.Grid:
    """How many heads of every layer are open; NaN for layers with a gate that is not known."""
    gates = head_grid.float_column(rows, "gate")
    opened = pd.Series(np.where(np.isnan(gates), np.nan, gates > 0), index=rows["layer"].to_numpy(int))
    counts = opened.groupby(level=0).agg(lambda of_layer: of_layer.sum(skipna=False))
    return np.asarray(counts.reindex(range(layers)), np.float64)
