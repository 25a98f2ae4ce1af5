"""Attention maps of one sentence: all heads of a layer on one sheet, or one head large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from headlens.pages.head_cards import SentenceMap
from headlens.plots import style
from headlens.plots.axis_labels import FAMILY, token_label
from headlens.plots.cell_drawing import Scale, add_bar

# inches
_TITLE, _SIDE, _GAP, _TOP = 0.24, 0.80, 0.10, 0.32
_LABEL_MARGIN = 0.36


def layer_figures(
    maps: Sequence[SentenceMap], model: str, layer: int | None = None, head: int | None = None
) -> Iterator[tuple[str, Figure | None]]:
    """Draws a figure for each sentence, stack and layer, of all heads or of one, large.

    Args:
        maps: of sentences, whose `model` is the number of the sentence.
        model: its name, for the titles.
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
            title = f"Attention of {model} in sentence {sentence.model}: {sentence.stack}, layer {number}"
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
    longest = max(len(queries), len(keys))
    # few columns for long sentences: the labels grow with the cells
    columns = min(len(titles), across or (4 if longest <= 14 else 3))
    room = style.FULL_WIDTH - _SIDE - _margin(queries, 6.0) - columns * _GAP
    cell = float(np.clip(room / columns / longest, 0.02, 0.30))
    points = float(np.clip(0.85 * 72 * cell, 3.5, 8.5))  # of labels
    left_margin, low_margin = _margin(queries, points), _margin(keys, points)
    across_map, down_map = cell * len(keys), cell * len(queries)
    above = _TITLE + (max(style.heading_lines(text, across_map) for text in titles) - 1) * style.HEADING_LINE
    width = max(2.2, left_margin + columns * (across_map + _GAP) + _SIDE)
    height = max(2.2, _TOP + -(-len(titles) // columns) * (down_map + above) + low_margin)
    figure = style.new_figure(width, height)
    style.headline(figure, title)
    scale = Scale("attention weight", high=float(np.nanmax(weights)) or 1.0, colours=style.PALE)
    step = style.tick_step(cell, points / 72)
    font: dict[str, Any] = {"fontsize": points, "fontfamily": FAMILY}
    for number, matrix in enumerate(weights):
        line, column = divmod(number, columns)
        left = left_margin + column * (across_map + _GAP)
        low = height - _TOP - (line + 1) * (down_map + above)
        axes = figure.add_axes((left / width, low / height, across_map / width, down_map / height))
        # Labels stand beside the first map of a line and below the last one of a column.
        is_first, is_last = column == 0, number + columns >= len(titles)
        style.dress(axes, "key" * is_last, "query" * is_first)
        axes.set_facecolor(style.MISSING)
        axes.pcolormesh(
            np.arange(len(keys) + 1) - 0.5,
            np.arange(len(queries) + 1) - 0.5,
            np.ma.masked_invalid(matrix),
            cmap=scale.map,
            vmin=scale.low,
            vmax=scale.high,
            rasterized=matrix.size > 2500,
        )
        axes.invert_yaxis()
        style.heading(axes, titles[number], across_map)
        below, beside = (keys if is_last else []), (queries if is_first else [])
        axes.set_xticks(range(0, len(below), step), below[::step], rotation=90, **font)
        axes.set_yticks(range(0, len(beside), step), beside[::step], **font)
    add_bar(figure, scale, _SIDE - 0.12)
    return figure


def _margin(labels: Sequence[str], size: float) -> float:
    # wide scripts take a whole em per letter
    widest = max((sum(1.0 if ord(c) > 0x2E80 else 0.62 for c in label) for label in labels), default=0.0)
    return _LABEL_MARGIN + widest * size / 72
