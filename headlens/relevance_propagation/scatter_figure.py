"""Relevance against what else is known of heads: their confidence and role, and their relevance under other rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.errors import counted
from headlens.plots import style
from headlens.plots.head_grid import Grid, by_model_and_stack, float_column
from headlens.plots.label_placement import name_points
from headlens.plots.role_colours import COLOURS, families, legend_handles
from headlens.plots.style import INK
from headlens.relevance_propagation.shares import (
    UNSIGNED_RULES,
    Marks,
    even_shares,
    figure_title,
    of_rule,
    requested_rule,
    rules_of_table,
    span,
    warned_title,
)
from headlens.statistics.weighted_means import spearman_of_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_WIDEST, _TALLEST, _PAGE = 3.5, 2.3, 9.4  # inches
_NAMED = 6  # most relevant heads of a panel
_DASHED: dict[str, Any] = {"color": style.FAINT, "linewidth": 0.7, "linestyle": (0, (3, 2)), "zorder": 1}


def confidence_against_relevance(heads: pd.DataFrame, relevance: pd.DataFrame | None = None) -> Figure | None:
    """Confidence and relevance of every head, with the family of its role as colour.

    After Voita et al. (2019), figure 1, which shows them as heatmaps. One panel per model and stack with Spearman's
    correlation within layers; the heads with the largest shares, of either sign, are named `layer.head`, a line stands
    at the even share 1 / heads. All panels have the same axes. What lies beyond, which few outliers do not set, is a
    triangle at the edge.

    Args:
        heads: rows of `heads.csv`, of one model or several.
        relevance: rows of `relevance.csv` of the same, which tell rule, target and what layers do.

    Returns:
        The figure, or None when no head has both.
    """
    from matplotlib.lines import Line2D

    pieces = []
    for part in by_model_and_stack(heads):
        # The even share is that of all the heads of a layer, also of those that lack a confidence.
        rows = part.rows.assign(even=even_shares(part.rows), role=part.rows.get("role", ""))
        rows = rows[_known(float_column(rows, "confidence"), float_column(rows, "relevance"))]
        if len(rows):
            pieces.append(part._replace(rows=rows))
    if not pieces:
        return None
    models = list(dict.fromkeys(p.model for p in pieces))
    # A line per model where one has several stacks; else models side by side.
    places = [divmod(number, min(3, len(pieces))) for number in range(len(pieces))]
    if len(models) < len(pieces):
        places = [(models.index(p.model), sum(q.model == p.model for q in pieces[:n])) for n, p in enumerate(pieces)]
    pairs = [(float_column(p.rows, "confidence"), float_column(p.rows, "relevance")) for p in pieces]
    names = [families(part.rows["role"]) for part in pieces]
    even = Line2D([], [], **_DASHED, label="equal share")
    low, high = span(np.concatenate([y for _, y in pairs]))
    handles = [*legend_handles({name for panel_names in names for name in panel_names}), even]
    handles += _beyond([y for _, y in pairs], (low, high))
    titles = [
        f"{part.name}\n{_correlation(*pair, part.rows['layer'])}" for part, pair in zip(pieces, pairs, strict=True)
    ]
    title = warned_title("Confidence against relevance of attention heads", relevance)
    figure, panels = _panels(places, titles, title, handles)
    for number, (axes, part, (x, y)) in enumerate(zip(panels, pieces, pairs, strict=True)):
        first = axes.get_subplotspec().is_first_col()  # type: ignore[union-attr]
        style.dress(axes, "confidence (mean largest weight)", "share of the layer's relevance" if first else "")
        axes.set(xlim=(-0.02, 1.02), ylim=(low, high))
        for share in np.unique(part.rows["even"]):
            axes.axhline(share, **_DASHED)
        axes.axhline(0, color=INK, linewidth=0.5, zorder=1)
        _points(axes, x, y, [COLOURS[name] for name in names[number]])
    # Names are placed in pixels: the layout has to be known.
    style.lay_out(figure)
    for axes, part, (x, y) in zip(panels, pieces, pairs, strict=True):
        most = np.argsort(-np.abs(y), kind="stable")[:_NAMED]
        keys = part.rows[["layer", "head"]].astype(int).to_numpy()
        labels = [(int(row), "{}.{}".format(*keys[row])) for row in most]
        name_points(axes, (np.clip(x, *axes.get_xlim()), np.clip(y, *axes.get_ylim())), labels, style.TICK_SIZE - 1)
    return figure


def rule_agreement(relevance: pd.DataFrame) -> Figure | None:
    """The relevance of every head under the rule that was asked for, against that under every other rule.

    One panel per other rule, model and stack, with Spearman's correlation within layers; on the dashed line both rules
    give a head the same share. Triangles at the edge lie beyond it. Beside a rule without signs magnitudes are drawn.

    Args:
        relevance: rows of `relevance.csv`, of one model or several.

    Returns:
        The figure, or None where there is one rule only.
    """
    from matplotlib.lines import Line2D

    rule, rows = requested_rule(relevance)
    others = rules_of_table(relevance)[1:]
    keys = [name for name in ("model", "stack", "layer", "head") if name in relevance]
    by_panel: dict[tuple[str, str], tuple[Grid, Grid, pd.Series[Any]]] = {}  # by part and other rule
    for part, other in product(by_model_and_stack(rows), others):
        both = part.rows[[*keys, "relevance"]].merge(of_rule(relevance, other), on=keys, suffixes=("", "_other"))
        x, y = float_column(both, "relevance"), float_column(both, "relevance_other")
        if {rule, other} & UNSIGNED_RULES:  # magnitudes have no sign to agree on
            x, y = np.abs(x), np.abs(y)
        if (known := _known(x, y)).any():
            by_panel[part.name, other] = x[known], y[known], both["layer"][known]
    if not by_panel:
        return None
    # Parts without another rule leave no gap.
    lines = list(dict.fromkeys(name for name, _ in by_panel))
    places = [(lines.index(name), others.index(other)) for name, other in by_panel]
    titles = [f"{name}\n{_correlation(*pair)}" for (name, _), pair in by_panel.items()]
    handles = [Line2D([], [], **_DASHED, label="same share under both rules")]
    handles += next((legend for x, y, _ in by_panel.values() for s in (x, y) if (legend := _beyond([s], span(s)))), [])
    figure, panels = _panels(places, titles, figure_title("Shares of the layer's relevance by rule", rows), handles)
    for axes, ((_, other), (x, y, _)) in zip(panels, by_panel.items(), strict=True):
        share = "magnitude of the share" if {rule, other} & UNSIGNED_RULES else "share"
        words = [f"{share} under rule {name}" for name in (rule, other)]
        style.dress(axes, *(style.fold(text, 1.8, style.LABEL_SIZE) for text in words))
        axes.set(xlim=span(x), ylim=span(y))
        axes.axline((0, 0), slope=1, **_DASHED)
        _points(axes, x, y, [style.BLUE] * len(x))
    return figure


def _beyond(shares: Sequence[Grid], axis: tuple[float, float]) -> list[Line2D]:
    """What stands in the legend for shares beyond the ends of an axis; nothing where there are none."""
    from matplotlib.lines import Line2D

    low, high = axis
    outside = any(((share < low) | (share > high)).any() for share in shares)
    return [Line2D([], [], ls="", marker="^", mfc="white", mec=INK, label="beyond the axis")] * outside


def _known(first: Grid, second: Grid) -> Marks:
    return np.isfinite(first) & np.isfinite(second)


def _correlation(first: Grid, second: Grid, layers: pd.Series[Any]) -> str:
    """Spearman's correlation within layers, the mean over them, since shares do not compare layers, and of how many."""
    by_layer = [
        spearman_of_known(first[in_layer], second[in_layer])
        for in_layer in (np.array(layers == n) for n in layers.unique())
    ]
    known, heads = [value for value in by_layer if np.isfinite(value)], counted(len(first), "head")
    # A rounded 0 has no sign.
    value = round(float(np.mean(known)), 2) + 0.0 if known else np.nan
    within = counted(len(known), "layer")
    return f"Spearman within {within} {value:.2f} ({heads})".replace("-", "−") if known else heads


def _panels(
    places: Sequence[tuple[int, int]], titles: Sequence[str], title: str, handles: Sequence[Line2D]
) -> tuple[Figure, list[Axes]]:
    """A figure with axes at every place (line, column) under their titles; in a column one below the other."""
    from matplotlib.ticker import MaxNLocator

    if style.in_column():
        places = [(number, 0) for number in range(len(places))]
    lines, columns = (1 + max(side) for side in zip(*places, strict=True))
    slot = min(_WIDEST, style.page_width() / columns)
    width = max(min(_WIDEST, style.page_width()), slot * columns)
    height = min(_PAGE, 0.6 + lines * (0.5 + min(_TALLEST, slot)))
    figure = style.constrained_figure(width, height, title)
    grid = figure.subplots(lines, columns, squeeze=False)
    for place in {*np.ndindex(lines, columns)} - {*places}:
        grid[place].remove()
    panels: list[Axes] = [grid[place] for place in places]
    for axes, text in zip(panels, titles, strict=True):
        style.heading(axes, text, slot - 0.6)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    figure.legend(handles=handles, loc="outside lower left", ncols=9 if columns > 1 else 4, **style.legend_looks())
    return figure, panels


def _points(axes: Axes, x: Grid, y: Grid, colours: Sequence[str]) -> None:
    """Dots, whole where they touch the edge, and triangles at the edge for those beyond it."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    kinds = np.select([y > high, y < low, x > right, x < left], ["^", "v", ">", "<"], "o")
    across, up = 0.02 * (right - left), 0.02 * (high - low)
    for kind in dict.fromkeys(kinds.tolist()):
        of_kind = kinds == kind
        shown = x[of_kind], y[of_kind]
        if kind != "o":
            shown = np.clip(x[of_kind], left + across, right - across), np.clip(y[of_kind], low + up, high - up)
        looks: dict[str, Any] = {
            "c": list(np.array(colours)[of_kind]),
            "edgecolors": INK,
            "linewidths": 0.3,
            "alpha": 0.85,
        }
        axes.scatter(*shown, s=12, marker=kind, **looks, zorder=3, clip_on=False)
