"""How alike heads attend: the matrix of distances and its picture in the plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headlens.plots import style
from headlens.plots.cell_drawing import Scale, bar_beside, colour_cells
from headlens.plots.head_grid import Grid, StackRows, by_model_and_stack, float_column, has_numbers
from headlens.plots.label_placement import name_points
from headlens.plots.role_colours import COLOURS, families, legend_handles
from headlens.plots.style import INK, TICK_SIZE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# inches
_BOX = 2.4  # about the side of a matrix
FARTHEST = float(np.sqrt(np.log(2)))  # of two heads that never attend to the same token
# From which largest distance heads are divided into clusters: a divergence of 0.01 nats, a seventieth of what there can
# be. A clustering has as many clusters however little heads differ.
DIVIDED = 0.1
_NARROWEST = 0.1  # half the width of a plane, in distances
_LINE = {1: 2.5, 2: 3.05}  # height of a line of panels, by how many stand side by side


def similarity_map(similarity: pd.DataFrame, embedding: pd.DataFrame) -> Figure | None:
    """Jensen–Shannon distances between all heads of a stack, and the heads placed in the plane by them.

    After Clark et al. (2019), section 6. Left: heads in the order of the clustering's leaves, clusters divided
    by lines if any two heads are at least `DIVIDED` apart. Right: colour is the family of the head's role, the numbers
    are its layer and head. One row per model and stack.

    Args:
        similarity: rows of `similarity.csv`; one row per pair is enough, the matrix is symmetric.
        embedding: rows of `heads.csv` with similarity_x, similarity_y, similarity_cluster, similarity_leaf.

    Returns:
        The figure, or None when no distance is known.
    """
    if similarity.empty or not has_numbers(similarity, "js_distance"):
        return None
    heads = embedding.assign(role=embedding.get("role", ""))
    pairs = {p.name: p.rows for p in by_model_and_stack(similarity)}
    pieces = [p for p in by_model_and_stack(heads) if p.name in pairs and has_numbers(p.rows, "similarity_leaf")]
    if not pieces:
        return None
    # From nothing to all there can be: heads that hardly differ look alike.
    scale = Scale("Jensen–Shannon distance (0: alike)", high=FARTHEST)
    # In a column the matrix stands above the plane; several stacks would be longer than a page.
    width = style.page_width() if len(pieces) == 1 else style.FULL_WIDTH
    lines, columns = (len(pieces), 2) if width == style.FULL_WIDTH else (2, 1)
    figure = style.constrained_figure(width, 0.5 + _LINE[columns] * lines, "How alike heads attend")
    grid = figure.subplots(lines, columns, squeeze=False)
    ends = [_ends(float_column(p.rows, name)) for p in pieces for name in ("similarity_x", "similarity_y")]
    reach = 1.12 * max(_NARROWEST, *((high - low) / 2 for low, high in ends))
    for part, (matrix, plane) in zip(pieces, grid.reshape(-1, 2), strict=True):
        _matrix(matrix, part, pairs[part.name], scale)
        bar_beside(figure, scale, matrix, _BOX)
        _plane(plane, part, pairs[part.name], reach)
    handles = legend_handles({*families(heads["role"])})
    figure.legend(handles=handles, loc="outside lower left", ncols=4 * columns, **style.legend_looks())
    style.lay_out(figure)
    # Heads are named beside their points as soon as planes have their places.
    for part, (_, plane) in zip(pieces, grid.reshape(-1, 2), strict=True):
        x, y = float_column(part.rows, "similarity_x"), float_column(part.rows, "similarity_y")
        keys = part.rows[["layer", "head"]].itertuples(index=False)
        names = [(i, f"{layer}.{head}") for i, (layer, head) in enumerate(keys) if np.isfinite([x[i], y[i]]).all()]
        name_points(plane, (x, y), names, float(np.clip(420 / len(names), 2.4, 4.8)) if names else 0.0)
    return figure


def distances(part: StackRows, pairs: pd.DataFrame) -> tuple[Grid, pd.DataFrame]:
    """Distances between the heads of a part, both in the order of the leaves.

    Returns:
        The matrix (heads, heads), 0 on the diagonal and NaN for pairs that are missing; the heads' rows.
    """
    rows = part.rows[np.isfinite(float_column(part.rows, "similarity_leaf"))].sort_values("similarity_leaf")
    keys = pd.MultiIndex.from_frame(rows[["layer", "head"]].astype(int))
    table = pairs.assign(distance=float_column(pairs, "js_distance"))
    table = table.pivot_table("distance", ["layer", "head"], ["other_layer", "other_head"], aggfunc="last")
    known = table.reindex(index=keys, columns=keys).to_numpy()
    # A pair stands in one row, whichever of its heads comes first.
    matrix = np.where(np.isnan(known), known.T, known)
    np.fill_diagonal(matrix, 0.0)
    return matrix, rows


def _matrix(axes: Axes, part: StackRows, pairs: pd.DataFrame, scale: Scale) -> None:
    matrix, rows = distances(part, pairs)
    size = len(rows)
    divided = len(rows) > 1 and float(np.nanmax(matrix)) >= DIVIDED
    name = "head (layer.head)"
    style.dress(axes, f"{name}, white lines between clusters" if divided else name, name)
    # As an image inside the SVG: thousands of single squares make viewers crawl.
    colour_cells(axes, matrix, scale, rasterized=size > 60)
    names = [f"{layer}.{head}" for layer, head in rows[["layer", "head"]].itertuples(index=False)]
    ticks = range(0, size, style.tick_step(_BOX / size, 0.14))
    axes.set_xticks(np.array(ticks) + 0.5, [names[i] for i in ticks], rotation=90)
    axes.set_yticks(np.array(ticks) + 0.5, [names[i] for i in ticks])
    axes.tick_params(labelsize=TICK_SIZE - 1)
    for place in np.flatnonzero(np.diff(float_column(rows, "similarity_cluster"))).tolist() if divided else ():
        axes.axhline(place + 1, color="white", linewidth=0.7)
        axes.axvline(place + 1, color="white", linewidth=0.7)
    queries = float_column(pairs, "tokens")
    query_count = f", {np.nanmax(queries):,.0f} queries" if np.isfinite(queries).any() else ""
    style.heading(axes, f"{part.name}: distances{query_count}", _BOX)


def _plane(axes: Axes, part: StackRows, pairs: pd.DataFrame, reach: float) -> None:
    """Draws the heads of a stack as points, in a square that is as large in all planes of a figure.

    The heading has Pearson's correlation of distances in the plane with those of the table.
    """
    from scipy.spatial.distance import pdist

    style.dress(axes, "dimension 1", "dimension 2")
    x, y = float_column(part.rows, "similarity_x"), float_column(part.rows, "similarity_y")
    names = families(part.rows["role"])
    axes.scatter(x, y, s=14, c=[COLOURS[n] for n in names], edgecolors=INK, linewidths=0.3)
    (left, right), (low, high) = _ends(x), _ends(y)
    across, up = (left + right) / 2, (low + high) / 2
    axes.set(xlim=(across - reach, across + reach), ylim=(up - reach, up + reach), aspect="equal")
    matrix, rows = distances(part, pairs)
    places = np.stack([float_column(rows, name) for name in ("similarity_x", "similarity_y")], axis=1)
    true, flat = matrix[np.triu_indices(len(rows), 1)], pdist(places)
    both = np.isfinite(true) & np.isfinite(flat)
    fits = both.sum() > 2 and np.ptp(true[both]) > 0 and np.ptp(flat[both]) > 0
    correlation = f" (r = {np.corrcoef(true[both], flat[both])[0, 1]:.2f} with them)" if fits else ""
    style.heading(axes, f"distances in two dimensions{correlation}", _BOX)


def _ends(places: Grid) -> tuple[float, float]:
    known = places[np.isfinite(places)]
    return (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
