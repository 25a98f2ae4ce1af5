"""Relevance against what else is known of heads: their confidence and role, and their relevance under other rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from headlens.analyses.relevance.shares import (
    Marks,
    even_shares,
    of_rule,
    requested_rule,
    rules_of_table,
    span,
)
from headlens.plots.head_grid import LINE, TOP, Grid, StackRows, by_model_and_stack, float_column
from headlens.plots.label_placement import name_points
from headlens.plots.role_colours import COLOURS, families, legend_handles
from headlens.plots.style import (
    BLUE,
    FAINT,
    HEADING_SIZE,
    INK,
    LABEL_SIZE,
    TICK_SIZE,
    dress,
    fold,
    further_lines,
    heading,
    headline,
    in_column,
    new_figure,
    page_width,
)
from headlens.statistics.rank_correlation import spearman_of_known

# inches
_LEFT, _RIGHT, _BOTTOM, _LEGEND = 0.58, 0.10, 0.42, 0.16
_WIDEST, _TALLEST, _LOWEST, _PAGE = 3.5, 2.3, 1.0, 9.0
_NAMED = 6  # most relevant heads of a panel
_DASHES = (0, (3, 2))
_JOINED = ["layer", "head"]
Place = tuple[int, int]  # line and column


def confidence_against_relevance(heads: pd.DataFrame) -> Figure | None:
    """Confidence and relevance of every head, with the family of its role as colour.

    After Voita et al. (2019), figure 1, which shows them as heatmaps. One panel per model and stack with Spearman's
    correlation; the most relevant heads are named `layer.head`, a line stands at the even share 1 / heads. What lies
    beyond the axis, which few outliers do not set, is a triangle at its edge.

    Args:
        heads: rows of `heads.csv`, of one model or several.

    Returns:
        The figure, or None when no head has both.
    """
    pieces = [found for part in by_model_and_stack(heads) if len((found := _of_known(part)).rows)]
    if not pieces:
        return None
    plan = dict(zip(_on_page(_places(pieces)), pieces, strict=True))
    titles = {place: f"{part.name}\n{_correlation(*_pair(part))}" for place, part in plan.items()}
    handles = [*legend_handles({name for part in pieces for name in _families(part)}), _even_share()]
    foot = _LEGEND * -(-len(handles) // _legend_columns(plan))
    figure, grid = _panels(titles, "Confidence against relevance of attention heads", foot)
    for place, part in plan.items():
        dress(grid[place], "confidence", "share of relevance" if place[1] == 0 else "")
        _confidence_panel(grid[place], part)
    _legend(figure, handles, _legend_columns(plan))
    return figure


def rule_agreement(relevance: pd.DataFrame) -> Figure | None:
    """The relevance of every head under the rule that was asked for, against that under every other rule.

    One panel per other rule, model and stack, with Spearman's correlation; on the dashed line both rules give a head
    the same share. Triangles at the edge lie beyond it.

    Args:
        relevance: rows of `relevance.csv`, of one model or several.

    Returns:
        The figure, or None where there is one rule only.
    """
    rule, rows = requested_rule(relevance)
    others = rules_of_table(relevance)[1:]
    pairs = [[_both(part, of_rule(relevance, other)) for other in others] for part in by_model_and_stack(rows)]
    found = {(i, j): pair for i, row in enumerate(pairs) for j, pair in enumerate(row) if _known(*pair).any()}
    if not found:
        return None
    # parts without another rule leave no gap
    lines = sorted({line for line, _ in found})
    names = [part.name for part in by_model_and_stack(rows)]
    places = _on_page([(lines.index(line), column) for line, column in found])
    plan = dict(zip(places, found.items(), strict=True))
    titles = {place: f"{names[line]}\n{_correlation(*pair)}" for place, ((line, _), pair) in plan.items()}
    figure, grid = _panels(titles, "Shares of the layer's relevance by rule", _LEGEND)
    _legend(figure, [_same_share()], 1)
    for place, ((_, other), (x, y)) in plan.items():
        axes, known = grid[place], _known(x, y)
        dress(axes, fold(rule, 1.2, LABEL_SIZE), fold(others[other], 1.2, LABEL_SIZE))
        axes.set_xlim(*span(x[known]))
        axes.set_ylim(*span(y[known]))
        axes.axline((0, 0), slope=1, color=FAINT, linewidth=0.7, linestyle=_DASHES, zorder=1)
        _points(axes, x[known], y[known], [BLUE] * int(known.sum()))
    return figure


def _confidence_panel(axes: Axes, part: StackRows) -> None:
    x, y = _pair(part)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(*span(y))
    for share in np.unique(part.rows["even"]):
        axes.axhline(share, color=FAINT, linewidth=0.7, linestyle=_DASHES, zorder=1)
    axes.axhline(0, color=INK, linewidth=0.5, zorder=1)
    _points(axes, x, y, [COLOURS[name] for name in _families(part)])
    _name_first(axes, part.rows, x, y)


def _of_known(part: StackRows) -> StackRows:
    """The heads that have both, with the even share of all the heads of their layer."""
    return part._replace(rows=part.rows.assign(even=even_shares(part.rows))[_known(*_pair(part))])


def _pair(part: StackRows) -> tuple[Grid, Grid]:
    return float_column(part.rows, "confidence"), float_column(part.rows, "relevance")


def _both(part: StackRows, other: pd.DataFrame) -> tuple[Grid, Grid]:
    """Relevance of a part's heads, and of the same heads in a table of another rule."""
    own = next(
        (p.rows for p in by_model_and_stack(other) if (p.model, p.stack) == (part.model, part.stack)), other.iloc[:0]
    )
    found = part.rows[[*_JOINED, "relevance"]].merge(own[[*_JOINED, "relevance"]], on=_JOINED, suffixes=("", "_other"))
    return float_column(found, "relevance"), float_column(found, "relevance_other")


def _known(first: Grid, second: Grid) -> Marks:
    return np.isfinite(first) & np.isfinite(second)


def _families(part: StackRows) -> list[str]:
    return families(part.rows["role"] if "role" in part.rows else pd.Series("", index=part.rows.index))


def _correlation(first: Grid, second: Grid) -> str:
    value, size = spearman_of_known(first, second), int(_known(first, second).sum())
    # a rounded 0 has no sign
    return (
        f"Spearman {round(value, 2) + 0.0:.2f} (n = {size})".replace("-", "−") if np.isfinite(value) else f"n = {size}"
    )


def _places(pieces: Sequence[StackRows]) -> list[Place]:
    """A line per model where one has several stacks; else models side by side."""
    models = list(dict.fromkeys(p.model for p in pieces))
    if len(models) == len(pieces):
        return [divmod(number, min(3, len(pieces))) for number in range(len(pieces))]
    return [(models.index(p.model), [q.stack for q in pieces if q.model == p.model].index(p.stack)) for p in pieces]


def _on_page(places: Sequence[Place]) -> list[Place]:
    """The places; in a column one below the other."""
    return [(number, 0) for number in range(len(places))] if in_column() else list(places)


def _panels(titles: Mapping[Place, str], title: str, foot: float = 0.0) -> tuple[Figure, dict[Place, Axes]]:
    """A figure with axes at every place, under their titles, and `foot` inches free at the bottom."""
    lines, columns = (1 + max(place[axis] for place in titles) for axis in (0, 1))
    slot = min(_WIDEST, page_width() / columns)
    room = LINE * max(fold(text, slot - 0.15, HEADING_SIZE).count("\n") + 1 for text in titles.values()) + 0.06
    whole = max(min(_WIDEST, page_width()), slot * columns)
    top = TOP + further_lines(title, whole)
    fitting = (_PAGE - top - foot) / lines - room - _BOTTOM
    box = slot - _LEFT - _RIGHT, max(_LOWEST, min(_TALLEST, slot - _LEFT - _RIGHT, fitting))
    step = room + box[1] + _BOTTOM
    figure = new_figure(whole, top + lines * step + foot)
    headline(figure, title)
    width, height = figure.get_size_inches()
    made = {}
    for (line, column), text in titles.items():
        low = height - top - line * step - room - box[1]
        place = (slot * column + _LEFT) / width, low / height, box[0] / width, box[1] / height
        axes = made[line, column] = figure.add_axes(place)
        heading(axes, text, slot - 0.15, shift=_LEFT - 0.08)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    return figure, made


def _points(axes: Axes, x: Grid, y: Grid, colours: Sequence[str]) -> None:
    """Dots, and triangles at the edge for those beyond it."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    kinds = np.select([y > high, y < low, x > right, x < left], ["^", "v", ">", "<"], "o")
    margin = 0.02 * (right - left), 0.02 * (high - low)
    at = np.clip(x, left + margin[0], right - margin[0]), np.clip(y, low + margin[1], high - margin[1])
    for kind in dict.fromkeys(kinds.tolist()):
        own = kinds == kind
        shown = x[own] if kind == "o" else at[0][own], y[own] if kind == "o" else at[1][own]
        faces = [colour for colour, here in zip(colours, own, strict=True) if here]
        axes.scatter(*shown, s=12, c=faces, marker=kind, edgecolors=INK, linewidths=0.3, alpha=0.85, zorder=3)


def _name_first(axes: Axes, rows: pd.DataFrame, x: Grid, y: Grid) -> None:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    first = np.argsort(-y, kind="stable")[:_NAMED]
    names = [(int(i), f"{int(rows['layer'].iloc[i])}.{int(rows['head'].iloc[i])}") for i in first]
    name_points(axes, (np.clip(x, left, right), np.clip(y, low, high)), names, TICK_SIZE - 1)


def _same_share() -> Line2D:
    return Line2D([], [], color=FAINT, linewidth=0.9, linestyle=_DASHES, label="the same share under both rules")


def _even_share() -> Line2D:
    return Line2D([], [], color=FAINT, linewidth=0.9, linestyle=_DASHES, label="even share")


def _legend_columns(places: Iterable[Place]) -> int:
    return 9 if max(column for _, column in places) else 4


def _legend(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 0.0),
        ncols=columns,
        fontsize=TICK_SIZE,
        frameon=False,
        handletextpad=0.2,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
