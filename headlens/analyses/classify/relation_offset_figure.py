"""Where the other word of a dependency relation stands: what a fixed offset has right, and what heads add to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from headlens.analyses.classify.position_figure import OFFSETS
from headlens.plots import style
from headlens.plots.axis_labels import FAMILY
from headlens.plots.curves import legend_below
from headlens.plots.head_grid import StackRows, by_model_and_stack, float_column
from headlens.plots.style import BLUE, PALE_BLUE, TICK_SIZE, VERMILION

MOST = 12  # relations
_REACH = 63  # of `relation_offsets.csv`, whose ends hold all that is farther
TOLD_OFFSETS = (f"<-{_REACH}", *map(str, range(-_REACH, _REACH + 1)), f">{_REACH}")
_UP = "dep->head"
_FARTHEST = 8
_SLOT, _PANEL, _WORDS = 1.6, 1.25, 0.8  # inches: width and height of a panel, and the words around all
_TOP, _ABOVE = 1.28, 1.15  # of the axis of shares, and where the numbers stand
_BEST: dict[str, Any] = {"color": VERMILION, "linewidth": 1.0, "linestyle": (0, (4, 2)), "zorder": 3}


def relation_offset_figures(offsets: pd.DataFrame, syntax: pd.DataFrame) -> Iterator[tuple[str, Figure | None]]:
    """Draws the relations of every stack, by its first model: other models read the same trees.

    Args:
        offsets: rows of `relation_offsets.csv`, of one model or several.
        syntax: rows of `syntax.csv`; without any there are neither baselines from elsewhere nor best heads.

    Yields:
        Name of the figure, with the stack where there are several, and the figure; None where there is no relation.
    """
    parts = {part.stack: part for part in reversed(by_model_and_stack(offsets))}
    for stack, part in reversed(parts.items()):
        scored = syntax[(syntax["model"] == part.model) & (syntax["stack"] == stack)] if len(syntax) else syntax
        yield "relation_offsets" if len(parts) == 1 else f"relation_offsets_{stack}", relation_offsets(part, scored)


def relation_offsets(part: StackRows, syntax: pd.DataFrame) -> Figure | None:
    """How far the head of a dependent stands from it, for the relations with the most instances; a panel each.

    After Voita et al. (2019), section 5.2: syntactic heads are compared with the most frequent relative position. That
    bar is dark and has its number, the accuracy of the best head is a dashed line.

    Args:
        part: rows of `relation_offsets.csv` of one model and stack.
        syntax: rows of `syntax.csv` of the same; its baseline counts, which may come from another corpus.

    Returns:
        The figure, or None where there is no relation.
    """
    rows = part.rows[part.rows["direction"] == _UP]
    counts = rows.assign(n=float_column(rows, "n")).groupby("relation", sort=False)["n"].sum()
    names = counts.sort_values(ascending=False, kind="stable").head(MOST).index
    if not len(names):
        return None
    width = style.page_width()
    abreast = min(len(names), int(width // _SLOT))
    lines = -(-len(names) // abreast)
    title = f"Position of the governor relative to its dependent, by relation\n{part.name}"
    figure = style.constrained_figure(width, _WORDS + _PANEL * lines, title)
    grid = figure.subplots(lines, abreast, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(names) :]:
        axes.remove()
    slot = width / abreast - 0.3
    for place, (axes, name) in enumerate(zip(grid.flat, names, strict=False)):
        scored = syntax[(syntax["relation"] == name) & (syntax["direction"] == _UP)] if len(syntax) else syntax
        shares = shares_by_offset(rows[rows["relation"] == name])
        is_first, is_last = place % abreast == 0, place + abreast >= len(names)
        style.dress(axes, "distance to the governor, in words" * is_last, "share of cases" * is_first)
        axes.tick_params(labelbottom=is_last)
        _draw(axes, shares, scored)
        style.heading(axes, f"{name} (n = {counts[name]:,.0f})", slot)
    legend_below(figure, list(figure.axes), 1 if abreast > 2 else 3)
    return figure


def shares_by_offset(rows: pd.DataFrame) -> dict[int, float]:
    """Shares of the cases of a relation and direction by offset, of which those beyond 8 count with it as -9 and 9."""
    shares = dict.fromkeys(range(-_FARTHEST - 1, _FARTHEST + 2), 0.0)
    for offset, share in zip(rows["offset"], float_column(rows, "share"), strict=True):
        number = int(str(offset).strip().strip("<>"))
        shares[int(np.clip(number, -_FARTHEST - 1, _FARTHEST + 1))] += share
    return shares


def fixed_offset(shares: Mapping[int, float], scored: pd.DataFrame) -> tuple[int, float]:
    """Returns the offset that the baseline chooses, and the share of cases it has right.

    Args:
        shares: by offset, for tables without syntax: the nearer one, then the left one, of equal ones.
        scored: rows of `syntax.csv` of one relation and direction.
    """
    known = scored[np.isfinite(float_column(scored, "baseline_offset"))] if len(scored) else scored
    if len(known):
        return int(known["baseline_offset"].iloc[0]), float(known["baseline"].iloc[0])
    inner = {offset: share for offset, share in shares.items() if abs(offset) <= _FARTHEST}
    best = max(inner, key=lambda offset: (inner[offset], -abs(offset), -offset))
    return best, inner[best]


def _draw(axes: Axes, shares: Mapping[int, float], scored: pd.DataFrame) -> None:
    offset, baseline = fixed_offset(shares, scored)
    # The baseline's bar, which may be one of the farther ones, is a part of the column at the end.
    place = int(np.clip(offset, -_FARTHEST - 1, _FARTHEST + 1))
    # The first one stands in the legend; those at the ends are many offsets together, which no baseline could choose.
    first = sorted(shares, key=abs)
    bars = axes.bar(first, [shares[at] for at in first], 0.8, color=PALE_BLUE, label="governor at this offset")
    for bar in bars[-2:]:
        bar.set(hatch="//////", edgecolor="white", linewidth=0)
    axes.bar([place], [baseline], 0.8, color=BLUE, label="baseline: always predict this offset")
    # Above all bars and lines, in their colours.
    looks: dict[str, Any] = {"fontsize": TICK_SIZE - 0.5, "fontfamily": FAMILY, "va": "center"}
    axes.text(-_FARTHEST - 1.3, _ABOVE, f"{offset:+d}: {baseline:.0%}".replace("-", "−"), color=BLUE, **looks)
    accuracy = float_column(scored, "accuracy")
    if np.isfinite(accuracy).any():
        best = scored.iloc[int(np.nanargmax(accuracy))]
        told = f"{int(best['layer'])}.{int(best['head'])}: {best['accuracy']:.0%}"
        axes.text(_FARTHEST + 1.3, _ABOVE, told, color=VERMILION, ha="right", **looks)
        axes.axhline(float(best["accuracy"]), label="accuracy of the best head (layer.head)", **_BEST)
    axes.set_xlim(-_FARTHEST - 1.6, _FARTHEST + 1.6)
    axes.set_ylim(0, _TOP)
    axes.set_yticks([0, 0.5, 1])
    ticks = [-_FARTHEST - 1, -4, 0, 4, _FARTHEST + 1]
    axes.set_xticks(ticks, [OFFSETS[0].replace("-", "−"), "−4", "0", "+4", OFFSETS[-1]])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
