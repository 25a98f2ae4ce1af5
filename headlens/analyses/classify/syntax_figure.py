"""Which heads follow which dependency relation: maps, and the best head of each."""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bars, frame_cells, paint
from headlens.plots.head_grid import (
    Panel,
    StackRows,
    by_model_and_stack,
    each,
    float_column,
    head_grid_figure,
    panel,
    scatter_grid,
)
from headlens.plots.point_rows import PointGroup, PointPanel, point_rows
from headlens.plots.role_colours import ARROWS
from headlens.plots.style import BLUE, DIVERGING, FAINT

DIRECTIONS = ("dep->head", "head->dep")
FEWEST = 30  # the default of --min-instances
Marks = npt.NDArray[np.bool_]


def syntactic_map(syntax: pd.DataFrame) -> Figure | None:
    """Accuracy above the best fixed offset, for every head: relations in rows, directions in columns.

    Frames mark heads that are syntactic (above the margin) and significant (after the correction). One colour
    scale, with 0 in its middle, serves all panels.

    Args:
        syntax: rows of `syntax.csv`, of one model or several; relations are drawn in order of appearance.

    Returns:
        The figure, or None when no head was scored.
    """
    pieces = [p for p in by_model_and_stack(syntax) if np.isfinite(gain(p.rows)).any()]
    if not pieces:
        return None
    # Two models or stacks stand side by side where their heads fit a page's width; a row is about one relation.
    abreast = 2 if 4 * (int(syntax["head"].max()) + 1) <= 50 else 1
    many = len({p.model for p in pieces}) > 1
    blocks = [pieces[start : start + abreast] for start in range(0, len(pieces), abreast)]
    rows = [
        [item for part in block for item in _pair(part, relation, part.name if many else part.stack)]
        for block, relation in product(blocks, syntax["relation"].drop_duplicates())
    ]
    rows = [row for row in rows if row]
    title = "Syntactic heads" if many else f"Syntactic heads of {pieces[0].model}"
    plan = [[item for item, _ in row] for row in rows]
    sheet = head_grid_figure(plan, title, side=BAR_SLOT + 0.15, tallest_cell=0.15)
    limit = float(np.nanmax(np.abs(gain(syntax)))) or 1.0
    scale = Scale("accuracy − baseline (share of instances)", -limit, limit, DIVERGING)
    for (axes, item), (_, marked) in zip(each(sheet, plan), chain.from_iterable(rows), strict=True):
        paint(axes, item, scale)
        frame_cells(axes, marked)
    add_bars(sheet, scale)
    return sheet.figure


def best_heads(syntax: pd.DataFrame) -> pd.DataFrame:
    """The most accurate head of every model, relation and direction.

    Args:
        syntax: rows of `syntax.csv`, of one model or several.

    Returns:
        Columns model, relation, direction, stack, layer, head, n, accuracy, ci_low, ci_high, baseline,
        significant (above baseline after the correction) and syntactic (above the margin); models,
        relations and directions in order of appearance; among equals the first head.
    """
    scored = syntax[np.isfinite(float_column(syntax, "accuracy"))].reset_index(drop=True)
    groups = scored.groupby(["model", "relation", "direction"], sort=False)["accuracy"]
    columns = ["model", "relation", "direction", "stack", "layer", "head", "n", "accuracy", "ci_low"]
    columns += ["ci_high", "baseline", "significant", "syntactic"]
    return scored.loc[groups.idxmax(), columns].reset_index(drop=True)


def best_heads_figure(syntax: pd.DataFrame, min_instances: int = FEWEST) -> Figure | None:
    """The best head of every relation and direction with its interval, beside the best fixed offset; a panel a model.

    After Voita et al. (2019), table 2.

    Args:
        syntax: rows of `syntax.csv`, of one model or several.
        min_instances: relations with fewer instances are marked by a dagger: they give no head a role.

    Returns:
        The figure, or None when no head was scored.
    """
    panels = []
    for model, best in best_heads(syntax).groupby("model", sort=False):
        stars = np.where(is_marked(best["significant"]), "*", "")
        daggers = np.where(float_column(best, "n") < min_instances, "†", "")
        names = [
            f"{row.relation} {ARROWS[str(row.direction)]} {row.stack}.{row.layer}.{row.head}{star}{dagger}"
            for row, star, dagger in zip(best.itertuples(), stars, daggers, strict=True)
        ]
        accuracy = best.rename(columns={"accuracy": "value"})
        offset = best.assign(value=best["baseline"], ci_low=np.nan, ci_high=np.nan)
        groups = [
            PointGroup("best head, 95 % interval", BLUE, names, accuracy),
            PointGroup("best fixed offset", FAINT, names, offset),
        ]
        panels.append(PointPanel("accuracy", names, groups, accuracy.iloc[:0], "", str(model)))
    return point_rows("Best head of every dependency relation", panels) if panels else None


def verdicts(best: pd.DataFrame, min_instances: int) -> list[str]:
    """Whether each of the best heads is syntactic: `yes`, `yes (n.s.)` without significance, `no`, `too few`."""
    syntactic, significant = is_marked(best["syntactic"]), is_marked(best["significant"])
    few = float_column(best, "n") < min_instances
    words = np.select([few, ~syntactic, significant], ["too few", "no", "yes"], "yes (n.s.)")
    return [str(word) for word in words]


def is_marked(column: pd.Series) -> Marks:
    """A column of truth values as booleans; empty cells are false; text from a file counts by its word."""
    return np.array([str(v).strip().lower() in {"true", "1", "1.0"} for v in column], bool)


def gain(syntax: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Returns how far the accuracy of each row is above that of the best fixed offset."""
    return float_column(syntax, "accuracy") - float_column(syntax, "baseline")


def _pair(part: StackRows, relation: str, name: str) -> list[tuple[Panel, Marks]]:
    panels = []
    for direction in DIRECTIONS:
        rows = part.rows[(part.rows["relation"] == relation) & (part.rows["direction"] == direction)]
        if np.isfinite(gain(rows)).any():
            size = f"n = {rows['n'].iloc[0]:.0f}, baseline {rows['baseline'].iloc[0]:.2f}"
            title = f"{name}: {relation}, {direction}\n{size}"
            marked = is_marked(rows["syntactic"]) & is_marked(rows["significant"])
            marks = scatter_grid(rows, marked, empty=False).astype(bool)
            panels.append((panel(rows, gain(rows), title), marks))
    return panels
