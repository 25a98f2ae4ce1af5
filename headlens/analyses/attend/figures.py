"""Attention maps of one sentence: all heads of a layer on one sheet, or one head large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.pages.head_cards import SentenceMap
from headlens.plots.axis_labels import FAMILY, token_label
from headlens.plots.cell_drawing import Scale, add_bar
from headlens.plots.style import (
    FULL_WIDTH,
    HEADING_LINE,
    MISSING,
    PALE,
    dress,
    heading,
    heading_lines,
    headline,
    new_figure,
    tick_step,
)

# inches
_TITLE, _SIDE, _GAP, _TOP = 0.24, 0.80, 0.10, 0.32
_LABEL_MARGIN = 0.22


@dataclass(frozen=True)
class _Plan:
    """Sizes of a sheet of maps: columns and rows of maps, inches of a cell, of label margins, points of labels."""

    columns: int
    lines: int
    cell: float
    margins: tuple[float, float]
    size: float


def layer_figures(
    maps: Sequence[SentenceMap], layer: int | None = None, head: int | None = None
) -> Iterator[tuple[str, Figure | None]]:
    """Draws a figure for each sentence, stack and layer, of all heads or of one, large.

    Args:
        maps: of sentences, whose `model` is the number of the sentence.
        layer: the only layer that is drawn; None for all.
        head: the only head that is drawn; None for all.

    Yields:
        Name of the figure, and the figure; None where all heads were cut out of the model.
    """
    for sentence in maps:
        for number in range(len(sentence.weights)) if layer is None else (layer,):
            weights = sentence.weights[number]  # (heads, query, key)
            # Of heads that were cut out of the model there is nothing to draw.
            heads = [h for h in (range(len(weights)) if head is None else (head,)) if not np.isnan(weights[h]).all()]
            titles = [f"{sentence.stack}.{number}.{h}" for h in heads]
            title = f"Sentence {sentence.model}, {sentence.stack} layer {number}"
            drawn = attention_maps(weights[heads], sentence.queries, sentence.keys, titles, title) if heads else None
            yield (
                f"sentence{sentence.model}_{sentence.stack}_layer{number}" + ("" if head is None else f"_head{head}"),
                drawn,
            )


def attention_maps(
    weights: npt.NDArray[np.floating],
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    titles: Sequence[str],
    title: str = "",
    across: int | None = None,
) -> Figure | None:
    """Attention weights of one sentence: a grid of heads, or one head large; the first query on top.

    All maps share one colour scale from 0 to the largest weight. Token labels are drawn as they are: no
    formulae, and a box for what no font can show. Labels too many to be read are thinned.

    Args:
        weights: (heads, query, key); NaN is drawn grey.
        query_labels: tokens that attend.
        key_labels: tokens attended to.
        titles: one per head.
        title: title of the figure.
        across: maps side by side; None for as many as can be read.

    Returns:
        The figure, or None when there is no head or no finite weight.

    Raises:
        ValueError: if labels or titles do not fit the weights.
    """
    if weights.shape != (len(titles), len(query_labels), len(key_labels)):
        shape = len(titles), len(query_labels), len(key_labels)
        raise ValueError(f"weights {weights.shape} do not fit titles, query and key labels {shape}")
    if not np.isfinite(weights).any():
        return None
    queries, keys = [token_label(t) for t in query_labels], [token_label(t) for t in key_labels]
    plan = _plan(len(titles), queries, keys, across)
    box = plan.cell * len(keys), plan.cell * len(queries)
    above = _TITLE + (max(heading_lines(text, box[0]) for text in titles) - 1) * HEADING_LINE
    size = (
        max(2.2, plan.margins[0] + plan.columns * (box[0] + _GAP) + _SIDE),
        max(2.2, _TOP + plan.lines * (box[1] + above) + plan.margins[1]),
    )
    figure = new_figure(*size)
    headline(figure, title)
    scale = Scale("attention weight", high=float(np.nanmax(weights)) or 1.0, colours=PALE)
    for number, matrix in enumerate(weights):
        line, column = divmod(number, plan.columns)
        left = plan.margins[0] + column * (box[0] + _GAP)
        low = size[1] - _TOP - (line + 1) * (box[1] + above)
        axes = figure.add_axes((left / size[0], low / size[1], box[0] / size[0], box[1] / size[1]))
        _map(axes, matrix, scale)
        heading(axes, titles[number], box[0])
        _label(axes, queries if column == 0 else [], keys if number + plan.columns >= len(titles) else [], plan)
    add_bar(figure, scale, _SIDE - 0.12)
    return figure


def _plan(heads: int, queries: Sequence[str], keys: Sequence[str], across: int | None) -> _Plan:
    longest = max(len(queries), len(keys))
    # few columns for long sentences: the labels grow with the cells
    columns = min(heads, across or (4 if longest <= 14 else 3))
    room = FULL_WIDTH - _SIDE - _margin(queries, 6.0) - columns * _GAP
    cell = float(np.clip(room / columns / longest, 0.02, 0.30))
    size = float(np.clip(0.85 * 72 * cell, 3.5, 8.5))
    margins = _margin(queries, size), _margin(keys, size)
    return _Plan(columns, -(-heads // columns), cell, margins, size)


def _margin(labels: Sequence[str], size: float) -> float:
    # wide scripts take a whole em per letter
    widest = max((sum(1.0 if ord(c) > 0x2E80 else 0.62 for c in label) for label in labels), default=0.0)
    return _LABEL_MARGIN + widest * size / 72


def _map(axes: Axes, matrix: npt.NDArray[np.floating], scale: Scale) -> None:
    dress(axes)
    axes.set_facecolor(MISSING)
    axes.pcolormesh(
        np.arange(matrix.shape[1] + 1) - 0.5,
        np.arange(matrix.shape[0] + 1) - 0.5,
        np.ma.masked_invalid(matrix),
        cmap=scale.map,
        vmin=scale.low,
        vmax=scale.high,
        rasterized=matrix.size > 2500,
    )
    axes.invert_yaxis()


def _label(axes: Axes, queries: Sequence[str], keys: Sequence[str], plan: _Plan) -> None:
    step = tick_step(plan.cell, plan.size / 72)
    axes.set_xticks(range(0, len(keys), step), keys[::step], rotation=90, fontsize=plan.size, fontfamily=FAMILY)
    axes.set_yticks(range(0, len(queries), step), queries[::step], fontsize=plan.size, fontfamily=FAMILY)
