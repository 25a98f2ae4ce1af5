"""Learned masks as pictures: which positions of every head stay, and how important each of them was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from headlens.plots.axis_labels import FAMILY
from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bar
from headlens.plots.style import FULL_WIDTH, INK, TICK_SIZE, headline, new_figure

Maps = npt.NDArray[np.floating]

IMPORTANCE = Scale("P, importance", 0.0, 1.0)
KEPT = Scale("white: attention", 0.0, 1.0, "gray")
# inches
_LEFT, _TOP, _WORDS, _GAP, _BOTTOM = 0.10, 0.32, 0.16, 0.08, 0.10
_MOST_HEADS, _LARGEST = 12, 1.5


def mask_picture(maps: Maps, title: str, scale: Scale, names: Sequence[str] = ()) -> Figure:
    """A map of n x n positions for every head, first position at the upper left, one row of maps for each layer.

    Args:
        maps: numbers from 0 to 1, (layers or 1, heads, n, n).
        title: of the figure.
        scale: its colours; a bar is drawn for those that are no plain black and white.
        names: of the maps, row by row; by default their layer and head.
    """
    rows = _rows(maps, names)
    bar = BAR_SLOT + 0.1 if scale is not KEPT else 0.0
    across = max(map(len, rows))
    side = min(_LARGEST, (FULL_WIDTH - _LEFT - bar) / across - _GAP)
    height = _TOP + len(rows) * (side + _WORDS) + _BOTTOM
    height = max(height, 1.6) if bar else height
    width = max(2.4, _LEFT + across * (side + _GAP) + bar)
    figure = new_figure(width, height)
    headline(figure, title)
    for line, row in enumerate(rows):
        for column, (name, values) in enumerate(row):
            left, low = _LEFT + column * (side + _GAP), height - _TOP - line * (side + _WORDS) - _WORDS - side
            axes = figure.add_axes((left / width, low / height, side / width, side / height))
            axes.imshow(values, cmap=scale.colours, vmin=scale.low, vmax=scale.high, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(name, fontsize=TICK_SIZE, fontfamily=FAMILY, color=INK, pad=1.5)
            for spine in axes.spines.values():
                spine.set_linewidth(0.4)
                spine.set_color(INK)
    if bar:
        add_bar(figure, scale, BAR_SLOT, _TOP + _WORDS)
    return figure


def _rows(maps: Maps, names: Sequence[str]) -> list[list[tuple[str, Maps]]]:
    """Names and maps by row; of many heads a layer has several rows."""
    shared, heads = len(maps) == 1, maps.shape[1]
    given = list(names) or [
        f"head {head}" if shared else f"{layer}.{head}" for layer in range(len(maps)) for head in range(heads)
    ]
    rows = []
    for layer, of_layer in enumerate(maps):
        layer_panels = list(zip(given[layer * heads : (layer + 1) * heads], of_layer, strict=True))
        # Few maps in a row are large ones.
        most = min(_MOST_HEADS, max(4, -(-heads // 2))) if shared else _MOST_HEADS
        rows += [layer_panels[first : first + most] for first in range(0, heads, most)]
    return rows
