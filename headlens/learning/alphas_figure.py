"""The figure of the alphas that heads have learned for their entmax, and what reports say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headlens.pages.command_report import Caption
from headlens.plots import style
from headlens.plots.cell_drawing import Scale
from headlens.plots.head_grid import by_model_and_stack, float_column, has_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHAS = "alphas"  # name of table and figure
CAPTION = Caption(
    "Learned alphas",
    "Number of heads in each layer by the alpha they have learned for entmax: near 1 attention is almost softmax, 2 "
    "is sparsemax; all heads started at 1.5.",
)
# Alphas that stay near 1.5, where they began, and those at the ends 1 and 2 are in the middle of a bin.
_BINS = np.linspace(0.975, 2.025, 22)
_ROW, _WORDS, _BAR, _LOWEST = 0.17, 0.9, 0.6, 0.7  # inches


def alpha_histograms(alphas: pd.DataFrame) -> Figure | None:
    """How many heads of each layer have an alpha near each twentieth from 1 to 2, a panel for each model and stack.

    Args:
        alphas: rows of `alphas.csv`.

    Returns:
        The figure, or None without alphas. Layer 0 is at the bottom, as in all grids of heads.
    """
    from matplotlib.ticker import MaxNLocator

    if not has_numbers(alphas, "alpha"):
        return None
    parts = by_model_and_stack(alphas)
    across = 1 if style.in_column() else min(3, len(parts))
    lines = -(-len(parts) // across)
    layers = int(alphas["layer"].max()) + 1
    height = 0.3 + lines * (max(_LOWEST, _ROW * layers) + _WORDS)
    width = min(style.page_width(), _BAR + across * style.FULL_WIDTH / 2)
    figure = style.constrained_figure(width, height, "Entmax alphas that heads have learned")
    edges = np.arange(layers + 1) - 0.5
    columns = ((float_column(part.rows, "layer"), float_column(part.rows, "alpha")) for part in parts)
    counts = [np.histogram2d(*pair, bins=(edges, _BINS))[0] for pair in columns]  # (layers, bins) each
    scale = Scale("heads (white: none)", 0, max(1, *(int(heads.max()) for heads in counts)))
    panels = figure.subplots(lines, across, squeeze=False)
    for axes, part, heads in zip(panels.flat, parts, counts, strict=False):
        style.dress(axes, "alpha (1: softmax, 2: sparsemax)", "layer")
        cells = np.ma.masked_equal(heads, 0)
        axes.pcolormesh(_BINS, edges, cells, edgecolors="white", linewidth=0.3, **scale.limits)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        style.heading(axes, part.name, width / across - 0.5)
    for axes in panels.flat[len(parts) :]:
        axes.set_axis_off()
    bar = figure.colorbar(scale.mappable, ax=panels, aspect=30, ticks=MaxNLocator(integer=True, nbins=6))
    style.dress(bar.ax, "", scale.label)
    return figure
