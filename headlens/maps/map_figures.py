"""Attention maps of a sentence, as figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headlens.plots import style
from headlens.plots.axis_labels import font_family, token_label
from headlens.plots.cell_drawing import Scale, add_bar, colour_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# inches
_TITLE, _SIDE, _GAP, _TOP = 0.24, 0.80, 0.10, 0.32
_LABEL_MARGIN = 0.36
_STRONG = 0.5  # the least weight that has the darkest colour: even attention must not look strong


@dataclass(frozen=True)
class MapBlock:
    """Maps of one model, in lines of their own.

    Args:
        weights: (heads, query, key); NaN is drawn grey.
        queries: tokens that attend.
        keys: tokens attended to.
        titles: one per head.
    """

    weights: npt.NDArray[np.floating]
    queries: Sequence[str]
    keys: Sequence[str]
    titles: Sequence[str]

    def __post_init__(self) -> None:
        if self.weights.shape != (shape := (len(self.titles), len(self.queries), len(self.keys))):
            raise ValueError(f"weights {self.weights.shape} do not fit titles, query and key labels {shape}")


def draw_blocks(blocks: Sequence[MapBlock], title: str = "", across: int | None = None) -> Figure | None:
    """Attention weights of one sentence in one model, or in several below each other; the first query on top.

    All maps share one colour scale from 0 to the largest weight, or to 0.5 where all are less, and one size of cells.
    Token labels are drawn as they are: no formulae, and a box for what no font can show. Labels too
    many to be read are thinned.

    Args:
        blocks: the maps of each model, which may have tokens of its own.
        title: title of the figure.
        across: maps side by side; None for as many as can be read.

    Returns:
        The figure, or None when there is no head or no finite weight.
    """
    if not any(np.isfinite(block.weights).any() for block in blocks):
        return None
    labels = [tuple([token_label(t) for t in side] for side in (block.queries, block.keys)) for block in blocks]
    longest = max(len(side) for both in labels for side in both)
    # few columns for long sentences: the labels grow with the cells
    columns = min(max(len(block.titles) for block in blocks), across or (4 if longest <= 14 else 3))
    room = style.FULL_WIDTH - _SIDE - max(_margin(queries, 6.0) for queries, _ in labels) - columns * _GAP
    cell = float(np.clip(room / columns / longest, 0.02, 0.30))
    points = float(np.clip(0.85 * 72 * cell, 3.5, 8.5))  # of labels
    left_margin = max(_margin(queries, points) for queries, _ in labels)
    across_map = cell * max(len(keys) for _, keys in labels)
    downs, heights = [], []
    for block, (queries, keys) in zip(blocks, labels, strict=True):
        title_lines = max(style.heading_lines(text, across_map) for text in block.titles)
        downs.append(cell * len(queries) + _TITLE + (title_lines - 1) * style.HEADING_LINE)
        heights.append(-(-len(block.titles) // columns) * downs[-1] + _margin(keys, points))
    width = max(2.2, left_margin + columns * (across_map + _GAP) + _SIDE)
    first_top = _TOP + style.further_lines(title, width)
    height = max(2.2, first_top + sum(heights))
    figure = style.new_figure(width, height)
    style.headline(figure, title)
    largest = max(float(np.nanmax(block.weights)) for block in blocks if np.isfinite(block.weights).any())
    scale = Scale("attention weight", high=max(largest, _STRONG), colours=style.PALE)
    step = style.tick_step(cell, points / 72)
    font: dict[str, Any] = {"fontsize": points, "fontfamily": font_family()}
    tops = height - first_top - np.cumsum([0.0, *heights[:-1]])
    for block, (queries, keys), down, top in zip(blocks, labels, downs, tops, strict=True):
        for number, matrix in enumerate(block.weights):
            line, column = divmod(number, columns)
            left, low = left_margin + column * (across_map + _GAP), top - (line + 1) * down
            place = (left / width, low / height, cell * len(keys) / width, cell * len(queries) / height)
            axes = figure.add_axes(place)
            # Labels stand beside the first map of a line and below the last one of a column.
            is_first, is_last = column == 0, number + columns >= len(block.titles)
            style.dress(axes, "key" * is_last, "query" * is_first)
            colour_cells(axes, matrix, scale, rasterized=matrix.size > 2500)
            axes.invert_yaxis()
            style.heading(axes, block.titles[number], across_map)
            below, beside = (keys if is_last else []), (queries if is_first else [])
            axes.set_xticks(np.arange(0, len(below), step) + 0.5, below[::step], rotation=90, **font)
            axes.set_yticks(np.arange(0, len(beside), step) + 0.5, beside[::step], **font)
    add_bar(figure, scale, _SIDE - 0.12, 0.45 + style.further_lines(title, width))
    return figure


def _margin(labels: Sequence[str], size: float) -> float:
    # wide scripts take a whole em per letter
    widest = max((sum(1.0 if ord(c) > 0x2E80 else 0.62 for c in label) for label in labels), default=0.0)
    return _LABEL_MARGIN + widest * size / 72
