"""What models achieve under each mask, by the range of layers that it holds in (after Brahma et al. 2022)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.report.curves import draw_intervals, draw_level, legend_below
from headlens.report.labels import FAMILY
from headlens.report.mask_points import short_names
from headlens.report.mask_study import BLOCK, FULL, means
from headlens.report.panels import numbers
from headlens.report.style import (
    BLUE,
    FULL_WIDTH,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    TICK_SIZE,
    VERMILION,
    dress,
    further_lines,
    headline,
    new_figure,
    page_width,
)

_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
_TITLE = "What models achieve under masks, by layers"
# inches
_TOP, _NAMES, _RIGHT, _ROW, _WORDS, _BOTTOM, _GAP = 0.35, 1.65, 0.15, 0.17, 0.45, 0.2, 0.15
_WIDE, _NARROW = 3.6, 1.6  # without the names, on a page and at least; their letters are so wide:
_LETTER = 0.06


def quality_by_layers(masks: pd.DataFrame) -> Figure | None:
    """The metric of every mask, one below the other, a point for each range of layers; a panel per model and task.

    Masks are those with the diagonal. The dashed line is the model without a mask, the band its interval.

    Args:
        masks: rows of `masks.csv`.

    Returns:
        The figure, or None where all masks are fixed patterns that hold in all layers, as `quality_by_pattern` shows.
    """
    table = means(masks)
    table = table[table["control"] == "kept"]
    others = table[table["pattern"] != FULL]
    if others.empty or (set(others["layers"]) == {"all"} and not others["pattern"].str.startswith("graph:").any()):
        return None
    ranges = list(dict.fromkeys(others["layers"].astype(str)))
    blocks = list(table.groupby(BLOCK, sort=False))
    heights = [_ROW * (rows["pattern"].nunique() - 1) * max(1.0, 0.6 * len(ranges)) + _WORDS for _, rows in blocks]
    longest = max(map(len, short_names(others["pattern"]).values()))
    names = min(max(_NAMES, _LETTER * longest), 3.0)
    page = page_width(_LETTER * longest + 0.15 + _NARROW)
    if page < FULL_WIDTH:
        names = _LETTER * longest + 0.15
    width = min(_WIDE + names, page)
    above = _TOP + further_lines(_TITLE, width)
    height = above + sum(heights) + _GAP * (len(heights) - 1) + _BOTTOM
    figure = new_figure(width, height)
    headline(figure, _TITLE)
    drawn, top = [], height - above
    for ((model, task, metric), rows), own in zip(blocks, heights, strict=True):
        low = top - own + _WORDS - 0.12
        box = (names / width, low / height, (width - names - _RIGHT) / width, (own - _WORDS) / height)
        axes = figure.add_axes(box)
        dress(axes, f"{metric} on {task}", "")
        if len(set(table["model"])) > 1:
            axes.set_title(str(model), fontsize=TICK_SIZE, color=INK)
        _panel(axes, rows, ranges)
        drawn.append(axes)
        top -= own + _GAP
    legend_below(figure, drawn)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, ranges: list[str]) -> None:
    full, others = rows[rows["pattern"] == FULL], rows[rows["pattern"] != FULL]
    draw_level(axes, full, "no mask", sideways=True)
    names = list(dict.fromkeys(others["pattern"].astype(str)))
    for number, layers in enumerate(ranges):
        own = others[others["layers"].astype(str) == layers]
        at = np.array([names.index(name) for name in own["pattern"].astype(str)], dtype=np.float64)
        at += 0.6 * ((number + 0.5) / len(ranges) - 0.5)
        colour = _COLOURS[number % len(_COLOURS)]
        draw_intervals(axes, at, own, colour, sideways=True)
        label = "all layers" if layers == "all" else f"layers {layers}"
        axes.plot(numbers(own, "value"), at, "o", color=colour, markersize=3.5, label=label, zorder=3)
    axes.set_yticks(
        range(len(names)), list(short_names(names).values()), fontsize=TICK_SIZE, color=INK, fontfamily=FAMILY
    )
    axes.set_ylim(len(names) - 0.5, -0.5)
