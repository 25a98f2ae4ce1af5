"""What a task loses with many heads, by how these were chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.analyses.ablate.options import STRATEGIES
from headlens.plots import style
from headlens.plots.axis_labels import token_label
from headlens.plots.curves import draw_intervals, draw_level, known_values, legend_below, panels
from headlens.plots.head_grid import LINE, Grid, float_column, has_numbers

NONE, RANDOM = "none", "random"
# Colours and markers, so that lines are told apart in grey too; the numbers of both have no common divisor.
_COLOURS = (style.BLUE, style.ORANGE, style.PURPLE, style.GREEN, style.VERMILION, style.SKY, style.BROWN)
_MARKERS = ("o", "s", "D", "^", "v", "P", "*", "h")
# inches
_LEFT, _RIGHT, _BOTTOM, _HEIGHT = 0.55, 0.08, 0.42, 2.3
_LINE, _APART, _TICK = 0.16, 0.05, 0.22
_LETTERS = 20  # of a strategy's name


def pruning_curve(pruning: pd.DataFrame) -> Figure | None:
    """The metric on the evaluation part against the number of heads pruned, with 95 % intervals; a panel per model.

    The dashed line and its band are the whole model. Of several random orders every one is a point, and the line their
    mean. All panels have the same axes.

    Args:
        pruning: rows of `pruning.csv`, of one model or several.

    Returns:
        The figure, or None when nothing was pruned.
    """
    if not has_numbers(pruning[pruning["n_pruned"] > 0], "value"):
        return None
    models = [str(name) for name in pruning["model"].unique()]
    metric, task = (", ".join(map(str, pruning[c].unique())) for c in ("metric", "task"))
    title = f"Pruning: {metric} on {task} by number of heads pruned\n(95 % intervals)"
    lines, width, abreast = _legend_lines(pruning), _width(models), 1 if style.in_column() else len(models)
    slot = (width - 0.1) / abreast
    inches = slot - _LEFT - _RIGHT
    room = 0.06 + LINE * max(style.heading_lines(model, inches) for model in models)
    box = _LEFT, _RIGHT, room, _HEIGHT, _BOTTOM
    figure, drawn = panels(title, models, (width, slot, abreast), box, _LINE * lines)
    (low, high), values, apart = _span(pruning, inches)
    for axes, model in zip(drawn, models, strict=True):
        style.dress(axes, "heads pruned", style.fold(metric, _HEIGHT, style.LABEL_SIZE))
        rows = pruning[pruning["model"] == model]
        draw_level(axes, rows[rows["strategy"] == NONE], "no heads pruned")
        strategies = _strategies(rows)
        for number, strategy in enumerate(strategies):
            # beside each other, so that intervals can be told apart
            shift = apart * (number - (len(strategies) - 1) / 2)
            _draw_strategy(axes, rows[rows["strategy"] == strategy], strategy, shift)
        axes.set(xlim=(low, high), ylim=values, xticks=_ticks(_counts(pruning), _TICK * (high - low) / inches))
    legend_below(figure, drawn, lines)
    return figure


def _width(models: Sequence[str]) -> float:
    return min(style.page_width(), style.FULL_WIDTH if len(models) > 1 else style.FULL_WIDTH * 0.7)


def _counts(pruning: pd.DataFrame) -> Grid:
    """Numbers of heads, ascending, without that of the whole model."""
    counts: Grid = np.unique(float_column(pruning, "n_pruned"))
    return counts[counts > 0]


def _span(pruning: pd.DataFrame, inches: float) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Limits of the numbers of heads and of the metric, and how far apart strategies are drawn."""
    counts = _counts(pruning)
    wide = float(np.ptp(counts)) or 2.0
    middle = float(counts[0] + counts[-1]) / 2
    # Of random orders values are drawn, and no intervals.
    several = pruning.groupby(["model", "strategy", "n_pruned"])["value"].transform("size") > 1
    ends = {name: pruning[name].where(~several) for name in ("ci_low", "ci_high") if name in pruning}
    known = known_values(pruning.assign(**ends))
    margin = 0.04 * (float(np.ptp(known)) or 1.0)
    apart = (0.15 if len(counts) == 1 else _APART) * 1.14 * wide / inches
    # no strategy stands where another number of heads is
    usual = float(np.median(np.diff(counts))) if len(counts) > 1 else wide
    apart = min(apart, 0.8 * usual / max(1, len(_strategies(pruning))))
    values = float(known.min()) - margin, float(known.max()) + margin
    return (middle - 0.57 * wide, middle + 0.57 * wide), values, apart


def _ticks(counts: Grid, room: float) -> list[float]:
    """The numbers of heads, but for those too close to a larger one to be written beside it."""
    ticks = list[float]()
    for count in counts[::-1]:
        if not ticks or ticks[-1] - count >= room:
            ticks.append(float(count))
    return ticks[::-1]


def look(strategy: str) -> tuple[str, str]:
    """Returns colour and marker of a strategy, by its place among those there are; random orders are grey."""
    if strategy == RANDOM:
        return style.FAINT, "x"
    places = [name for name in STRATEGIES if name != RANDOM]
    place = places.index(strategy) if strategy in places else len(places)
    return _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)]


def _strategies(rows: pd.DataFrame) -> list[str]:
    return [str(name) for name in rows["strategy"].unique() if name != NONE]


def _draw_strategy(axes: Axes, rows: pd.DataFrame, strategy: str, shift: float) -> None:
    colour, marker = look(strategy)
    means = rows.assign(value=float_column(rows, "value")).groupby("n_pruned")["value"].mean()
    orders = int(rows.groupby("n_pruned").size().max())
    label = token_label(strategy, _LETTERS) + (f", mean of {orders}" if orders > 1 else "")
    places, mean = means.index.to_numpy(float) + shift, means.to_numpy(float)
    axes.plot(places, mean, color=colour, marker=marker, markersize=3.5, linewidth=1.0, label=label)
    at, value = float_column(rows, "n_pruned") + shift, float_column(rows, "value")
    if orders > 1:
        axes.plot(at, value, marker, color=colour, markersize=2.5, alpha=0.5, linestyle="none", zorder=2)
    else:
        draw_intervals(axes, at, rows, colour)


def _legend_lines(pruning: pd.DataFrame) -> int:
    """One line, or more where the names are too long for one."""
    letters = [min(len(name), _LETTERS) for name in ["no heads pruned", *_strategies(pruning)]]
    mean = len(", mean of 10")  # of the strategy that is drawn several times
    width = _width(list(pruning["model"].unique()))
    # a line, a gap, and letters of 0.56 of their size
    letter = 0.56 * style.TICK_SIZE / 72
    if style.in_column():
        columns = max(1, int(width / (0.55 + letter * max(*letters, len("random") + mean))))
        return math.ceil(len(letters) / columns)
    return min(math.ceil((0.55 * len(letters) + letter * (sum(letters) + mean)) / width), 2)
