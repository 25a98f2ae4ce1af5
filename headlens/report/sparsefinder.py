"""The figures of Sparsefinder: Pareto curves of recall, or of a task's metric, over sparsity (Treviso et al. 2022)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.report.curves import legend_below
from headlens.report.style import (
    BLUE,
    FAINT,
    FULL_WIDTH,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    dress,
    heading,
    headline,
    new_figure,
)

# Sparsefinder's own are solid, what it is compared with dashed.
LOOKS = {
    "distance": (VERMILION, "-", "Sparsefinder, distance"),
    "bucket": (ORANGE, "-", "Sparsefinder, buckets"),
    "cluster": (PURPLE, "-", "Sparsefinder, clusters"),
    "routing": (BLUE, "--", "Routing Transformer"),
    "lsh": (SKY, "--", "Reformer"),
    "bigbird": (GREEN, "--", "BigBird"),
    "longformer": (YELLOW, "--", "Longformer"),
    "random": (FAINT, "--", "random and window"),
    "window": (FAINT, ":", "window"),
}
# inches
_TOP, _PANEL, _WORDS = 0.35, 2.4, 0.65
_LEGEND = {1: (5, 0.95), 2: (3, 0.6)}  # lines and height by the number of panels


def pareto_curves(curves: pd.DataFrame, gold: float, metric: str | None = None) -> Figure | None:
    """Recall over sparsity, the best points of each method; beside it, where it was tried, the metric of a task.

    Args:
        curves: best points of each method, see `headlens.sparsefinder.curves.curve`: method, sparsity, recall; with a
            metric also `value`, empty where it was not tried.
        gold: the sparsity of entmax itself, where a perfect method would have a recall of 1.
        metric: its name; None for recall alone.

    Returns:
        The figure, or None without points.
    """
    if curves.empty:
        return None
    panels = [("recall", "recall")] + ([("value", metric)] if metric is not None else [])
    width = FULL_WIDTH * len(panels) / 2
    lines, below = _LEGEND[len(panels)]
    height = _TOP + _PANEL + _WORDS + below
    figure = new_figure(width, height)
    headline(figure, "Predicted attention: what is found, and how sparse it is")
    drawn = []
    for number, (column, label) in enumerate(panels):
        box = ((number + 0.14) / len(panels), (below + 0.4) / height, 0.8 / len(panels), _PANEL / height)
        axes = figure.add_axes(box)
        dress(axes, "sparsity", str(label))
        _panel(axes, curves, column)
        axes.axvline(gold, color=FAINT, linewidth=0.8, linestyle=":", label="entmax itself", zorder=1)
        heading(axes, "all heads" if column == "recall" else "the task", 3.0)
        drawn.append(axes)
    legend_below(figure, drawn, lines)
    return figure


def _panel(axes: Axes, curves: pd.DataFrame, column: str) -> None:
    for method, (colour, line, label) in LOOKS.items():
        own = curves[(curves["method"] == method) & curves[column].notna()].sort_values("sparsity")
        if len(own):
            x, y = own["sparsity"].to_numpy(np.float64), own[column].to_numpy(np.float64)
            axes.plot(x, y, line, color=colour, marker="o", markersize=2, linewidth=1, label=label)
    axes.set_xlim(0, 1.02)
    if column == "recall":
        axes.set_ylim(0, 1.03)
