"""Panels of rows one below the other, each with a point and its interval for every group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headlens.plots.axis_labels import FAMILY
from headlens.plots.curves import draw_intervals, draw_level, legend_below
from headlens.plots.head_grid import float_column
from headlens.plots.style import FULL_WIDTH, INK, TICK_SIZE, dress, further_lines, headline, new_figure, page_width

# inches
_TOP, _NAMES, _RIGHT, _ROW, _WORDS, _BOTTOM, _GAP = 0.35, 1.65, 0.15, 0.17, 0.45, 0.2, 0.15
_WIDE, _NARROW = 3.6, 1.6  # of a panel without the names: on a page, and at least
_LETTER = 0.06  # width of a letter of the names


@dataclass(frozen=True)
class PointGroup:
    """The points of one colour.

    Args:
        label: in the legend.
        colour: of the points.
        names: the row that each point stands in.
        rows: `value`, `ci_low` and `ci_high` of each.
    """

    label: str
    colour: str
    names: Sequence[str]
    rows: pd.DataFrame


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
    """

    about: str
    names: Sequence[str]
    groups: Sequence[PointGroup]
    level: pd.DataFrame
    level_name: str
    title: str = ""

    @property
    def height(self) -> float:
        """Height of the panel in inches, with the labels below it."""
        return _ROW * len(self.names) * max(1.0, 0.6 * len(self.groups)) + _WORDS


def point_rows(title: str, panels: Sequence[PointPanel]) -> Figure:
    """Draws panels one below the other, with one legend."""
    longest = max(len(name) for panel in panels for name in panel.names)
    names = min(max(_NAMES, _LETTER * longest), 3.0)
    page = page_width(_LETTER * longest + 0.15 + _NARROW)
    if page < FULL_WIDTH:
        names = _LETTER * longest + 0.15
    width = min(_WIDE + names, page)
    above = _TOP + further_lines(title, width)
    height = above + sum(panel.height for panel in panels) + _GAP * (len(panels) - 1) + _BOTTOM
    figure = new_figure(width, height)
    headline(figure, title)
    drawn, top = [], height - above
    for panel in panels:
        low = top - panel.height + _WORDS - 0.12
        box = (names / width, low / height, (width - names - _RIGHT) / width, (panel.height - _WORDS) / height)
        axes = figure.add_axes(box)
        dress(axes, panel.about, "")
        if panel.title:
            axes.set_title(panel.title, fontsize=TICK_SIZE, color=INK)
        _draw(axes, panel)
        drawn.append(axes)
        top -= panel.height + _GAP
    legend_below(figure, drawn)
    return figure


def _draw(axes: Axes, panel: PointPanel) -> None:
    draw_level(axes, panel.level, panel.level_name, sideways=True)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))  # small differences have long numbers
    names = list(panel.names)
    for number, group in enumerate(panel.groups):
        at = np.array([names.index(name) for name in group.names], dtype=np.float64)
        at += 0.6 * ((number + 0.5) / len(panel.groups) - 0.5)
        draw_intervals(axes, at, group.rows, group.colour, sideways=True)
        values = float_column(group.rows, "value")
        axes.plot(values, at, "o", color=group.colour, markersize=3.5, label=group.label, zorder=3)
    axes.set_yticks(range(len(names)), names, fontsize=TICK_SIZE, color=INK, fontfamily=FAMILY)
    axes.set_ylim(len(names) - 0.5, -0.5)
