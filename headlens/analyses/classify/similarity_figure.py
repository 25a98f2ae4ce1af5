"""Heads that attend alike: the matrix of distances and its picture in the plane."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.plots.cell_drawing import Scale, add_bar
from headlens.plots.head_grid import Grid, StackRows, by_model_and_stack, float_column, has_numbers
from headlens.plots.role_colours import COLOURS, families, legend_handles
from headlens.plots.style import (
    FULL_WIDTH,
    INK,
    MISSING,
    TICK_SIZE,
    dress,
    heading,
    headline,
    in_column,
    ink_on,
    new_figure,
    page_width,
    tick_step,
)

_ROW, _BOX, _FOOT, _TOP = 3.65, 2.55, 0.85, 0.25  # inches
_LEFT_BOX, _RIGHT_BOX = 0.55, 4.30
_SMALL_BOX = 1.95  # of the matrix in a column


def similarity_map(similarity: pd.DataFrame, embedding: pd.DataFrame) -> Figure | None:
    """Jensen–Shannon distances between all heads of a stack, and the heads placed in the plane by them.

    After Clark et al. (2019), section 6. Left: heads in the order of the clustering's leaves, clusters divided
    by lines. Right: colour is the family of the head's role, the number its layer. One row per model and stack.

    Args:
        similarity: rows of `similarity.csv`; one row per pair is enough, the matrix is symmetric.
        embedding: rows of `heads.csv` with similarity_x, similarity_y, similarity_cluster, similarity_leaf.

    Returns:
        The figure, or None when no distance is known.
    """
    if similarity.empty or not has_numbers(similarity, "js_distance"):
        return None
    pairs = {(p.model, p.stack): p.rows for p in by_model_and_stack(similarity)}
    pieces = [
        p
        for p in by_model_and_stack(embedding)
        if (p.model, p.stack) in pairs and has_numbers(p.rows, "similarity_leaf")
    ]
    if not pieces:
        return None
    largest = float(np.nanmax(float_column(similarity, "js_distance"))) or 1.0
    scale = Scale("Jensen–Shannon distance (0: alike)", high=largest)
    if len(pieces) == 1 and in_column():
        return _in_column(pieces[0], pairs[pieces[0].model, pieces[0].stack], scale)
    figure = new_figure(FULL_WIDTH, _TOP + _ROW * len(pieces))
    headline(figure, "Heads that attend alike")
    for number, part in enumerate(pieces):
        low = figure.get_figheight() - _TOP - (number + 1) * _ROW + _FOOT
        _matrix(_box(figure, _LEFT_BOX, low), part, pairs[part.model, part.stack], scale)
        _plane(_box(figure, _RIGHT_BOX, low), part)
        top = figure.get_figheight() - low - _BOX
        add_bar(figure, scale, from_right=FULL_WIDTH - _LEFT_BOX - _BOX - 0.08, from_top=top, tallest=_BOX)
    return figure


def _in_column(part: StackRows, pairs: pd.DataFrame, scale: Scale) -> Figure:
    """The matrix above the plane; several stacks would be longer than a page."""
    figure = new_figure(page_width(), _TOP + 2 * _ROW - (_BOX - _SMALL_BOX) - 0.2)
    headline(figure, "Heads that attend alike")
    top = _TOP + _ROW - _BOX - _FOOT
    _matrix(_box(figure, _LEFT_BOX, figure.get_figheight() - top - _SMALL_BOX, _SMALL_BOX), part, pairs, scale)
    from_right = page_width() - _LEFT_BOX - _SMALL_BOX - 0.08
    add_bar(figure, scale, from_right=from_right, from_top=top, tallest=_SMALL_BOX)
    _plane(_box(figure, _LEFT_BOX, _FOOT), part)
    return figure


def distances(part: StackRows, pairs: pd.DataFrame) -> tuple[Grid, pd.DataFrame]:
    """Distances between the heads of a part, both in the order of the leaves.

    Returns:
        The matrix (heads, heads), 0 on the diagonal and NaN for pairs that are missing; the heads' rows.
    """
    rows = part.rows[np.isfinite(float_column(part.rows, "similarity_leaf"))].sort_values("similarity_leaf")
    keys = pd.MultiIndex.from_frame(rows[["layer", "head"]].astype(int))
    first = keys.get_indexer(pd.MultiIndex.from_frame(pairs[["layer", "head"]].astype(int)))
    second = keys.get_indexer(pd.MultiIndex.from_frame(pairs[["other_layer", "other_head"]].astype(int)))
    known = (first >= 0) & (second >= 0)
    matrix = np.full((len(rows), len(rows)), np.nan)
    np.fill_diagonal(matrix, 0.0)
    values = float_column(pairs, "js_distance")[known]
    matrix[first[known], second[known]] = values
    matrix[second[known], first[known]] = values
    return matrix, rows


def _box(figure: Figure, left: float, low: float, side: float = _BOX) -> Axes:
    width, height = figure.get_size_inches()
    return figure.add_axes((left / width, low / height, side / width, side / height))


def _matrix(axes: Axes, part: StackRows, pairs: pd.DataFrame, scale: Scale) -> None:
    matrix, rows = distances(part, pairs)
    size = len(rows)
    dress(axes, "head (layer.head), by cluster", "head (layer.head), by cluster")
    axes.set_facecolor(MISSING)
    borders = np.arange(size + 1) - 0.5
    # as an image inside the SVG: thousands of single squares make viewers crawl
    axes.pcolormesh(
        borders,
        borders,
        np.ma.masked_invalid(matrix),
        cmap=scale.map,
        vmin=scale.low,
        vmax=scale.high,
        rasterized=size > 60,
    )
    names = [f"{layer}.{head}" for layer, head in rows[["layer", "head"]].itertuples(index=False)]
    figure = axes.get_figure(root=True)
    side = _BOX if figure is None or figure.get_figwidth() == FULL_WIDTH else _SMALL_BOX
    ticks = range(0, size, tick_step(side / size, 0.11))
    axes.set_xticks(ticks, [names[i] for i in ticks], rotation=90)
    axes.set_yticks(ticks, [names[i] for i in ticks])
    axes.tick_params(labelsize=TICK_SIZE - 1)
    _cluster_lines(axes, rows)
    heading(axes, f"{part.name}: distances", side + 1.05, shift=0.4)


def _cluster_lines(axes: Axes, rows: pd.DataFrame) -> None:
    clusters = float_column(rows, "similarity_cluster")
    for place in np.flatnonzero(np.diff(clusters)):
        axes.axhline(place + 0.5, color="white", linewidth=0.7)
        axes.axvline(place + 0.5, color="white", linewidth=0.7)


def _plane(axes: Axes, part: StackRows) -> None:
    dress(axes, "dimension 1", "dimension 2")
    x, y = float_column(part.rows, "similarity_x"), float_column(part.rows, "similarity_y")
    roles = part.rows["role"] if "role" in part.rows else pd.Series("", index=part.rows.index)
    names = families(roles)
    size = float(np.clip(700 / len(names), 2.4, 5.5))  # points of the numbers
    axes.scatter(x, y, s=(2.0 * size) ** 2, c=[COLOURS[n] for n in names], edgecolors=INK, linewidths=0.3, alpha=0.9)
    for left, low, layer, name in zip(x, y, part.rows["layer"], names, strict=True):
        if np.isfinite(left) and np.isfinite(low):
            colour = ink_on(COLOURS[name])
            axes.text(left, low, str(layer), fontsize=size, color=colour, ha="center", va="center_baseline")
    axes.margins(0.06)
    heading(axes, "in the plane (number: layer)", _BOX, shift=0.0)
    axes.legend(
        handles=legend_handles(set(names)),
        loc="upper center",
        bbox_to_anchor=(0.45, -0.13),
        ncols=4,
        fontsize=TICK_SIZE,
        frameon=False,
        handletextpad=0.1,
        columnspacing=0.8,
    )
