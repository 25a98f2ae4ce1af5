"""How training went."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from headlens.report.panels import numbers
from headlens.report.style import BLUE, FULL_WIDTH, TICK_SIZE, VERMILION, dress, headline, new_figure


def training_curve(log: pd.DataFrame, evaluations: pd.DataFrame) -> Figure | None:
    """The loss in training, and that of the evaluations, by update.

    Args:
        log: rows of `log.csv`: step, loss.
        evaluations: rows of `evaluations.csv`: step, loss; may be empty.

    Returns:
        The figure, or None when nothing was logged.
    """
    if log.empty:
        return None
    figure = new_figure(FULL_WIDTH / 2, 2.6)
    headline(figure, "Training")
    axes = figure.add_axes((0.16, 0.17, 0.8, 0.68))
    dress(axes, "update", "loss")
    # A line of a single point would not be seen.
    marker = "o" if len(log) == 1 else ""
    steps, losses = numbers(log, "step"), numbers(log, "loss")
    axes.plot(steps, losses, marker=marker, markersize=3, color=BLUE, linewidth=1, label="training")
    if "loss" in evaluations:
        steps, losses = numbers(evaluations, "step"), numbers(evaluations, "loss")
        axes.plot(steps, losses, "o-", color=VERMILION, linewidth=1, markersize=3, label="held out")
    axes.legend(fontsize=TICK_SIZE, frameon=False)
    return figure
