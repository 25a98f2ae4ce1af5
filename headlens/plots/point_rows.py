"""Panels of rows one below the other, each with a point and its interval for every group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headlens.plots.axis_labels import FAMILY, drawable_text
from headlens.plots.curves import draw_intervals, draw_level, legend_below
from headlens.plots.head_grid import float_column
from headlens.plots.style import INK, TICK_SIZE, constrained_figure, dress, one_line, page_width

# inches
_TITLE, _WORDS = 0.5, 0.6
_WIDE, _NARROW = 3.6, 1.75  # of a panel without the names: on a page, and at least
_NAMES, _LONGEST, _LETTER = 1.65, 3.0, 0.06  # of the names: at least on a page, at most, by letter


@dataclass(frozen=True)
class PointGroup:
    """The points of one colour.

    Args:
        label: in the legend.
        colour: of the points.
        names: the row that each point stands in.
        rows: `value`, `ci_low` and `ci_high` of each.
        marker: matplotlib's name of what stands at the value.
        level: of a dashed line of the group's own, in its colour; empty for none.
    """

    label: str
    colour: str
    names: Sequence[str]
    rows: pd.DataFrame
    marker: str = "o"
    level: pd.DataFrame = field(default_factory=pd.DataFrame)


@dataclass(frozen=True)
class PointPanel:
    """One panel.

    Args:
        about: label of the values.
        names: of the rows, from the top.
        groups: the same number in all panels of a figure.
        level: of the dashed line: `value`, `ci_low` and `ci_high`.
        level_name: in the legend.
        title: above the panel, if any.
        apart: whether the groups stand one below the other in a row, or on one line.
    """

    about: str
    names: Sequence[str]
    groups: Sequence[PointGroup]
    level: pd.DataFrame
    level_name: str
    title: str = ""
    apart: bool = True


def point_rows(title: str, panels: Sequence[PointPanel]) -> Figure:
    """Draws panels one below the other, with one legend; panels of the same values have the same axis."""
    names = min(_LONGEST, _LETTER * max(len(name) for panel in panels for name in panel.names))
    width = min(_WIDE + max(_NAMES, names), page_width(names + _NARROW))
    heights = [0.17 * len(p.names) * max(1.0, 0.6 * len(p.groups) if p.apart else 1.0) for p in panels]
    figure = constrained_figure(width, _TITLE + sum(heights) + _WORDS * len(panels), title)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid.flat, panels, strict=True):
        dress(axes, drawable_text(panel.about), "")
        above = one_line(panel.title, width - names - 0.3, TICK_SIZE)
        axes.set_title(above, fontsize=TICK_SIZE, fontfamily=FAMILY, color=INK)
        draw_level(axes, panel.level, panel.level_name, sideways=True)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))  # small differences have long numbers
        for number, group in enumerate(panel.groups):
            at = np.array([list(panel.names).index(name) for name in group.names], dtype=np.float64)
            at += 0.6 * ((number + 0.5) / len(panel.groups) - 0.5) if panel.apart else 0.0
            draw_level(axes, group.level, f"{panel.level_name}, {group.label}", sideways=True, colour=group.colour)
            draw_intervals(axes, at, group.rows, group.colour, sideways=True)
            size, values = 3.5 if group.marker == "o" else 7.0, float_column(group.rows, "value")
            looks: dict[str, Any] = {"color": group.colour, "marker": group.marker, "markersize": size, "linestyle": ""}
            axes.plot(values, at, label=group.label, zorder=3, **looks)
        shown = [one_line(name, _LONGEST, TICK_SIZE) for name in panel.names]
        axes.set_yticks(range(len(shown)), shown, fontsize=TICK_SIZE, color=INK, fontfamily=FAMILY)
        axes.set_ylim(len(shown) - 0.5, -0.5)
    for about in {panel.about for panel in panels}:
        alike = [axes for axes, panel in zip(grid.flat, panels, strict=True) if panel.about == about]
        lows, highs = zip(*(axes.get_xlim() for axes in alike), strict=True)
        for axes in alike:
            axes.set_xlim(min(lows), max(highs))
    legend_below(figure, figure.axes)
    return figure
