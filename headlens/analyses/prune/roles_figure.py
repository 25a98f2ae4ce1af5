"""Functions of the heads that remain: which roles die last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headlens.analyses.prune.sweep_runs import penalty_text
from headlens.heads import STACKS
from headlens.plots.axis_labels import drawable_text
from headlens.plots.head_grid import LINE, TOP, Grid, by_model_and_stack, float_column
from headlens.plots.role_colours import COLOURS, FAMILIES, NONE, families, legend_handles
from headlens.plots.style import (
    FULL_WIDTH,
    HEADING_SIZE,
    INK,
    TICK_SIZE,
    dress,
    fold,
    further_lines,
    heading,
    headline,
    in_column,
    ink_on,
    new_figure,
    page_width,
)

ALL = "all"
# inches
_LEFT, _RIGHT, _HEIGHT, _LEGEND, _WIDEST, _NARROWEST = 0.48, 0.06, 2.2, 0.17, 4.0, 3.3
_ABREAST = 3  # panels


class Bar(NamedTuple):
    """The heads that a run left in a stack, by family of role; the first bar is the whole stack."""

    name: str
    counts: dict[str, int]

    @property
    def left(self) -> int:
        """Number of heads that are left, over all roles."""
        return sum(self.counts.values())


class RoleSet(NamedTuple):
    """The bars of one stack of a model, from all heads to few."""

    model: str
    stack: str
    bars: list[Bar]


def roles_kept(roles: pd.DataFrame, column: str = "role") -> Figure | None:
    """How many heads of every role are left, a bar per run from most heads to fewest; one panel per model and stack.

    After Voita et al. (2019), figure 8. The first bar holds all heads of the unpruned model; what a role loses from bar
    to bar are the heads of that role that were removed.

    Args:
        roles: rows of `roles.csv`, of one model or several.
        column: `role` for roles in the unpruned model, `role_pruned` for those that heads have in the pruned ones.

    Returns:
        The figure, or None when there are no heads or no head left has a role there.
    """
    sets = role_sets(roles, column)
    if not any(set(role_set.bars[0].counts) - {NONE} for role_set in sets):
        return None
    words = "in the unpruned model" if column == "role" else "in the pruned models"
    figure, drawn = _panels(sets, f"Functions of the heads left, {words}")
    for number, (axes, role_set) in enumerate(zip(drawn, sets, strict=True)):
        dress(axes, "λ", "heads" if number % _abreast() == 0 else "")
        _draw(axes, role_set)
    _legend(figure, {name for role_set in sets for bar in role_set.bars for name in bar.counts})
    return figure


def role_sets(roles: pd.DataFrame, column: str = "role") -> list[RoleSet]:
    """Count the heads that are left by family of role: per model and stack, runs by the heads they have in all."""
    sets = []
    for part in by_model_and_stack(roles[roles["stack"].isin(STACKS)]):
        model_roles = roles[roles["model"].fillna("").astype(str) == part.model]
        unpruned = part.rows.drop_duplicates(["layer", "head"])
        bars = [Bar(ALL, _counts(unpruned["role"]))]
        for run in _by_heads(model_roles):
            left = part.rows[(part.rows["run"] == run) & kept_rows(part.rows)]
            if (part.rows["run"] == run).any():
                penalty = float_column(model_roles[model_roles["run"] == run], "penalty")[0]
                bars.append(Bar(penalty_text(str(run), penalty), _counts(left[column])))
        sets.append(RoleSet(part.model, part.stack, bars))
    return sets


def kept_rows(roles: pd.DataFrame) -> pd.Series[bool]:
    """Which rows are of heads that are left, whether truth values were read as such or as words."""
    return roles["kept"].astype(str).str.lower() == "true"


def _by_heads(roles: pd.DataFrame) -> list[object]:
    """Names of runs, from most heads to fewest."""
    left = kept_rows(roles).groupby(roles["run"], sort=False).sum()
    return list(left.sort_values(ascending=False, kind="stable").index)


def _counts(roles: pd.Series) -> dict[str, int]:
    names = families(roles)
    return {name: names.count(name) for name in FAMILIES if name in names}


def _abreast() -> int:
    return 1 if in_column() else _ABREAST


def _panels(sets: Sequence[RoleSet], title: str) -> tuple[Figure, list[Axes]]:
    """Axes side by side, as many as there may be stacks, under their headings."""
    abreast = min(_abreast(), len(sets))
    slot = min(_WIDEST, (page_width() - 0.05) / abreast)
    width = max(_NARROWEST, abreast * slot + 0.05)
    inches = slot - _LEFT - _RIGHT
    titles = [f"{own.model}, {own.stack}" if own.model else own.stack for own in sets]
    room = 0.06 + LINE * (1 + max(fold(text, slot - 0.1, HEADING_SIZE).count("\n") for text in titles))
    foot = 0.3 + 0.64 * TICK_SIZE / 72 * max(len(bar.name) for own in sets for bar in own.bars)
    step, top = room + _HEIGHT + foot, TOP + further_lines(title, width)
    height = top + step * -(-len(sets) // abreast) + _LEGEND * _legend_lines(width)
    figure = new_figure(width, height)
    headline(figure, title)
    panels = []
    for number, text in enumerate(titles):
        line, column = divmod(number, abreast)
        left, low = column * slot + _LEFT, height - top - line * step - room - _HEIGHT
        axes = figure.add_axes((left / width, low / height, inches / width, _HEIGHT / height))
        heading(axes, text, slot - 0.1, shift=_LEFT - 0.08)
        panels.append(axes)
    return figure, panels


def _draw(axes: Axes, role_set: RoleSet) -> None:
    places = np.arange(len(role_set.bars))
    bottom = np.zeros(len(role_set.bars))
    most = max(role_set.bars[0].left, 1)
    for name in FAMILIES:
        counts = np.array([bar.counts.get(name, 0) for bar in role_set.bars], float)
        if counts.any():
            axes.bar(places, counts, 0.8, bottom, color=COLOURS[name], edgecolor="white", linewidth=0.4, label=name)
            _write(axes, counts, bottom, name, most)
        bottom += counts
    for place, bar in enumerate(role_set.bars):
        axes.text(
            place, bar.left + 0.015 * most, str(bar.left), ha="center", va="bottom", fontsize=TICK_SIZE - 1, color=INK
        )
    axes.set_xlim(-0.6, len(role_set.bars) - 0.4)
    axes.set_ylim(0, 1.1 * most)
    axes.set_xticks(places, [drawable_text(bar.name) for bar in role_set.bars], rotation=90)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def _write(axes: Axes, counts: Grid, bottom: Grid, name: str, most: float) -> None:
    """Write counts into the pieces of bars that are high enough for them."""
    figure = axes.get_figure(root=True)
    size = TICK_SIZE - 1.5
    high = size / 72 * 1.15 * 1.1 * most / _HEIGHT
    slot = axes.get_position().width * (figure.get_figwidth() if figure is not None else 1.0) / len(counts)
    if slot * 0.8 < 0.64 * size / 72 * len(str(int(counts.max()))):
        return
    for place, (count, low) in enumerate(zip(counts, bottom, strict=True)):
        if count >= high:
            ink = ink_on(COLOURS[name])
            axes.text(place, low + count / 2, f"{count:.0f}", ha="center", va="center", fontsize=size, color=ink)


def _legend_lines(width: float) -> int:
    return 1 if width >= FULL_WIDTH - 0.1 else 3


def _legend(figure: Figure, present: set[str]) -> None:
    lines = _legend_lines(figure.get_figwidth())
    figure.legend(
        handles=legend_handles(present),
        loc="lower left",
        bbox_to_anchor=(0.0, 0.0),
        ncols=-(-len(present) // lines),
        fontsize=TICK_SIZE,
        frameon=False,
        handletextpad=0.2,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
