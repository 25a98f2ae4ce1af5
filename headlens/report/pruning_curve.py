"""What a task loses with many heads, by how these were chosen."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.report.labels import FAMILY, plain
from headlens.report.panels import numbers
from headlens.report.style import (
    BLUE,
    FAINT,
    FULL_WIDTH,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    TICK_SIZE,
    VERMILION,
    dress,
    heading,
    headline,
    new_figure,
)

NONE = "none"
# Colour and marker, so that lines are told apart in grey too.
LOOKS = {
    "random": (FAINT, "x"),
    "ranked": (BLUE, "o"),
    "importance": (ORANGE, "s"),
    "importance-steps": (PURPLE, "D"),
    "greedy": (GREEN, "^"),
    "beam": (VERMILION, "v"),
}
_OTHER = (SKY, ".")
_LEFT, _BOTTOM, _TOP, _HEIGHT, _LEGEND = 0.55, 0.42, 0.5, 2.3, 0.3  # inches


def pruning_curve(pruning: pd.DataFrame) -> Figure | None:
    """The metric on the evaluation part against the number of heads pruned, with 95 % intervals; a panel per model.

    The dashed line and its band are the whole model. Of random orders every one is a point, and the line their mean.

    Args:
        pruning: rows of `pruning.csv`, of one model or several.

    Returns:
        The figure, or None when nothing was pruned.
    """
    if pruning.empty or not (pruning["n_pruned"] > 0).any():
        return None
    models = list(pruning["model"].unique())
    metric, task = (", ".join(map(str, pruning[c].unique())) for c in ("metric", "task"))
    height = _TOP + _HEIGHT + _BOTTOM + _LEGEND
    figure = new_figure(FULL_WIDTH if len(models) > 1 else FULL_WIDTH * 0.7, height)
    headline(figure, f"Pruning: {metric} of {task} by number of heads")
    limits = _limits(pruning)
    width = figure.get_figwidth()
    each = (width - 0.1) / len(models)
    for number, model in enumerate(models):
        box = (number * each + _LEFT, _BOTTOM + _LEGEND, each - _LEFT - 0.08, _HEIGHT)
        axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
        dress(axes, "heads pruned", metric)
        heading(axes, str(model), box[2])
        _draw(axes, pruning[pruning["model"] == model])
        axes.set_ylim(*limits)
        axes.set_xticks(sorted(set(numbers(pruning, "n_pruned")) - {0.0}))
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="lower center",
        ncols=len(labels),
        frameon=False,
        prop={"family": FAMILY, "size": TICK_SIZE},
    )
    return figure


def _limits(pruning: pd.DataFrame) -> tuple[float, float]:
    every = np.concatenate([numbers(pruning, c) for c in ("value", "ci_low", "ci_high")])
    known = every[np.isfinite(every)]
    if not known.size:
        return 0.0, 1.0
    margin = 0.04 * (float(np.ptp(known)) or 1.0)
    return float(known.min()) - margin, float(known.max()) + margin


def _draw(axes: Axes, rows: pd.DataFrame) -> None:
    whole = rows[rows["strategy"] == NONE]
    for value, low, high in zip(*(numbers(whole, c) for c in ("value", "ci_low", "ci_high")), strict=True):
        axes.axhline(value, color=INK, linewidth=0.8, linestyle="--", label="all heads", zorder=1)
        axes.axhspan(low, high, color=INK, alpha=0.07, linewidth=0, zorder=0)
    strategies = [s for s in rows["strategy"].unique() if s != NONE]
    for number, strategy in enumerate(strategies):
        own = rows[rows["strategy"] == strategy]
        # beside each other, so that intervals can be told apart
        shift = 0.12 * (number - (len(strategies) - 1) / 2)
        _draw_strategy(axes, own, str(strategy), shift * max(1.0, float(own["n_pruned"].max()) / 15))


def _draw_strategy(axes: Axes, rows: pd.DataFrame, strategy: str, shift: float) -> None:
    colour, marker = LOOKS.get(strategy, _OTHER)
    means = rows.assign(value=numbers(rows, "value")).groupby("n_pruned")["value"].mean()
    places, label = means.index.to_numpy(float) + shift, plain(strategy)
    axes.plot(places, means.to_numpy(float), color=colour, marker=marker, markersize=3.5, linewidth=1.0, label=label)
    values, low, high = (numbers(rows, c) for c in ("value", "ci_low", "ci_high"))
    at = numbers(rows, "n_pruned") + shift
    if rows.groupby("n_pruned").size().max() > 1:
        axes.plot(at, values, marker, color=colour, markersize=2.5, alpha=0.5, linestyle="none", zorder=2)
        return
    spread = np.clip(np.vstack([values - low, high - values]), 0, None)
    axes.errorbar(at, values, spread, fmt="none", ecolor=colour, elinewidth=0.7, capsize=1.5, zorder=2)
