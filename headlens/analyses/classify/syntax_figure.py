"""Which heads follow which dependency relation: maps, and the best head of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.errors import counted
from headlens.findings.verdicts import tied
from headlens.plots import style
from headlens.plots.axis_labels import font_family
from headlens.plots.cell_drawing import Scale, bar_beside, colour_cells, mark_cells
from headlens.plots.head_grid import StackRows, by_model_and_stack, float_column, has_numbers, head_name
from headlens.plots.point_rows import PointGroup, PointPanel, point_rows
from headlens.plots.role_colours import ARROW_WORDS, ARROWS
from headlens.plots.style import BLUE, FAINT, INK, ORANGE, PALE, PALE_BLUE, TICK_SIZE, one_line
from headlens.roles.even_attention import even_note
from headlens.roles.syntax_verdicts import is_syntactic, mostly_later

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE = f"Relations: how far heads are above the best fixed offset\n({ARROW_WORDS}; framed: syntactic)"
_ROW, _NARROWEST, _SIDES, _COLUMN = 0.15, 3.0, 1.6, 0.02  # inches
_NOTABLE = 0.2  # the least at which a gain has the darkest colour: twice the usual margin
MOST_CELLS = 5_000  # an SVG of more squares makes viewers crawl
FEWEST = 30  # the default of the threshold min_instances


def syntactic_map(syntax: pd.DataFrame, even: Sequence[tuple[str, str]] = ()) -> Figure | None:
    """How far every head is above the best fixed offset: relations and directions in rows, heads in columns.

    Frames mark heads that are syntactic (above the margin) and significant (after the correction). Rows stand in the
    order of their best head, whose numbers stand beside them; those of which no head is above the offset are left out.

    Args:
        syntax: rows of `syntax.csv`, of one model or several.
        even: stacks without a best head, see `headlens.roles.even_attention.even_stacks`, which the title names.

    Returns:
        The figure, or None where no head is above the offset.
    """
    scored = syntax.assign(gain=gain(syntax))[np.isfinite(gain(syntax))]
    key = ["model", "stack", "relation", "direction"]
    above = scored[scored.groupby(key)["gain"].transform("max") > 0]
    pieces = by_model_and_stack(above)
    if not pieces:
        return None
    heights = [len(part.rows.drop_duplicates(["relation", "direction"])) for part in pieces]
    columns = max(len(part.rows.drop_duplicates(["layer", "head"])) for part in pieces)
    width = style.page_width(max(_NARROWEST, _SIDES + _COLUMN * columns))
    below = scored[key].drop_duplicates().shape[0] - sum(heights)
    left_out = f"\nwithout {counted(below, 'row')} in which no head is above it" * bool(below)
    left_out += even_note([key for key in even if key[0] in set(syntax["model"].astype(str))])
    figure = style.constrained_figure(width, 1.3 + sum(_ROW * rows + 0.7 for rows in heights), _TITLE + left_out)
    grid = figure.subplots(len(pieces), 1, squeeze=False, height_ratios=heights)
    high = max(float(above["gain"].max()), _NOTABLE)
    scale = Scale("gain in accuracy over the offset (white: none)", high=high, colours=PALE)
    for axes, part in zip(grid.flat, pieces, strict=True):
        _relations_by_heads(axes, part, scale)
        style.heading(axes, part.name, width - 2.0)
    bar_beside(figure, scale, grid, width, location="bottom", shrink=0.5, aspect=30, anchor=(0.5, 0))
    return figure


def _relations_by_heads(axes: Axes, part: StackRows, scale: Scale) -> None:
    """Draws the relations of a stack as rows of cells, one for each head, under the numbers of the layers."""
    rows = part.rows.assign(marked=is_syntactic(part.rows))
    gains, marked = (
        rows.pivot_table(column, ["relation", "direction"], ["layer", "head"], aggfunc="max")
        for column in ("gain", "marked")
    )
    order = gains.max(axis=1).sort_values(ascending=False, kind="stable").index
    gains = gains.loc[order]
    style.dress(axes, "layer and head", "")
    colour_cells(axes, gains.to_numpy(np.float64), scale, rasterized=gains.size > MOST_CELLS)
    # A frame leaves some of the colour of its cell, which may be narrow.
    cell = 72 * (style.page_width() - _SIDES - 0.2) / gains.shape[1]
    frame: dict[str, Any] = {"edgecolor": INK, "linewidth": min(1.2, 0.25 * cell), "zorder": 3}
    mark_cells(axes, marked.loc[order].fillna(0).to_numpy().astype(bool), fill=False, **frame)
    layers = gains.columns.get_level_values("layer").to_numpy()
    starts = np.flatnonzero(np.diff(layers, prepend=layers[0] - 1))
    axes.vlines(starts[1:], 0, len(order), colors=FAINT, linewidth=0.4)
    middles = (starts + np.append(starts[1:], len(layers))) / 2
    axes.set_xticks(middles, [str(layers[start]) for start in starts])
    axes.set_xlabel("layer (heads side by side, numbered from 0)", fontsize=style.LABEL_SIZE)
    axes.tick_params(length=0)
    pairs = [f"{relation} {ARROWS.get(str(direction), direction)}" for relation, direction in order]
    axes.set_yticks(
        np.arange(len(order)) + 0.5, [one_line(name, 1.4, TICK_SIZE) for name in pairs], fontfamily=font_family()
    )
    axes.invert_yaxis()
    best = rows.loc[rows.groupby(["relation", "direction"], sort=False)["gain"].idxmax()]
    best = best.set_index(["relation", "direction"]).loc[order]
    beside = axes.secondary_yaxis("right")
    labels = [f"{r.layer}.{r.head}: {r.accuracy:.2f} ({r.baseline:.2f})" for r in best.itertuples()]
    beside.set_yticks(np.arange(len(order)) + 0.5, labels, fontsize=TICK_SIZE - 1, fontfamily=font_family())
    beside.tick_params(length=0, pad=2)
    beside.set_ylabel("best head: accuracy (fixed offset)", fontsize=TICK_SIZE, color=INK)


def best_heads(syntax: pd.DataFrame) -> pd.DataFrame:
    """The most accurate head of every model, relation and direction, of those that are syntactic if any is.

    Args:
        syntax: rows of `syntax.csv`, of one model or several.

    Returns:
        Columns model, relation, direction, stack, layer, head, n, accuracy, ci_low, ci_high, baseline,
        significant (above baseline after the correction), syntactic (above the margin), accuracy_null (of uniform
        attention), needed (baseline and margin) and baseline_offset, empty where they are not known, and `alike`, how
        many heads are as accurate; models, relations and directions in order of appearance; among equals the first.
    """
    scored = syntax[np.isfinite(float_column(syntax, "accuracy"))].reset_index(drop=True)
    groups = scored.groupby(["model", "relation", "direction"], sort=False).ngroup()
    # A head that is a little more accurate, but not significantly above the baseline, would hide one that is.
    ranked = scored.assign(group=groups, holds=is_syntactic(scored))
    ranked["alike"] = ranked.groupby(["group", "accuracy"])["accuracy"].transform("size")
    best = ranked.sort_values(["group", "holds", "accuracy"], ascending=[True, False, False], kind="stable")
    columns = ["model", "relation", "direction", "stack", "layer", "head", "n", "accuracy", "ci_low"]
    columns += [
        "ci_high",
        "baseline",
        "significant",
        "syntactic",
        "accuracy_null",
        "needed",
        "baseline_offset",
        "alike",
    ]
    return best.drop_duplicates("group").reindex(columns=columns).reset_index(drop=True)


def best_head_name(row: Mapping[Any, Any]) -> str:
    """Returns the name of the most accurate head of a relation, with ties; `none` if no head is ever right.

    Args:
        row: of `best_heads`.
    """
    return f"{head_name(row)}{tied(row.get('alike', 1))}" if row["accuracy"] else "none"


def best_heads_figure(
    syntax: pd.DataFrame, min_instances: int = FEWEST, even: Sequence[tuple[str, str]] = ()
) -> Figure | None:
    """The best head of every relation, with its interval, beside the best fixed offset and uniform attention.

    A panel for each model, both directions of every relation.

    After Voita et al. (2019), table 2.

    Args:
        syntax: rows of `syntax.csv`, of one model or several.
        min_instances: relations with fewer instances are marked by a dagger: they give no head a role.
        even: stacks without a best head, see `headlens.roles.even_attention.even_stacks`, which the title names.

    Returns:
        The figure, or None when no head was scored.
    """
    panels = []
    for model, best in best_heads(syntax).groupby("model", sort=False):
        daggers = np.where(float_column(best, "n") < min_instances, "†", "")
        names = [
            f"{row['relation']} {ARROWS[str(row['direction'])]} {head_name(row) if row['accuracy'] else 'none'}{dagger}"
            for row, dagger in zip(best.to_dict("records"), daggers, strict=True)
        ]
        accuracy = best.rename(columns={"accuracy": "value"})
        sure, later = is_syntactic(best), mostly_later(best)
        offset = best.assign(value=best["baseline"], ci_low=np.nan, ci_high=np.nan)
        groups = [PointGroup("best fixed offset", INK, names, offset, "|")]
        if has_numbers(best, "accuracy_null"):
            uniform = best.assign(value=best["accuracy_null"], ci_low=np.nan, ci_high=np.nan)
            groups.append(PointGroup("uniform attention", ORANGE, names, uniform, "|"))
        kinds = (
            ("best head, 95 % interval: syntactic", BLUE, sure),
            ("not syntactic (too little, or n.s.)", PALE_BLUE, ~sure & ~later),
            ("other word mostly later: unseen", FAINT, ~sure & later),
        )
        groups += [
            PointGroup(kind, colour, [*compress(names, mine)], accuracy[mine])
            for kind, colour, mine in kinds
            if mine.any()
        ]
        panels.append(PointPanel("accuracy", names, groups, accuracy.iloc[:0], "", str(model), apart=False))
    few = any("†" in name for panel in panels for name in panel.names)
    dagger = f"\n(†: fewer than {min_instances} instances, no role)" if few else ""
    title = f"Best head for every dependency relation\n({ARROW_WORDS}){dagger}{even_note(even)}"
    return point_rows(title, panels) if panels else None


def gain(syntax: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Returns how far the accuracy of each row is above that of the best fixed offset."""
    return float_column(syntax, "accuracy") - float_column(syntax, "baseline")
