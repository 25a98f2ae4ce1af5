"""Panels of rows one below the other, each with a point and its interval for every group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.plots import style
from headlens.plots.axis_labels import drawable_text, font_family
from headlens.plots.curves import draw_intervals, draw_level, draw_same_answers, legend_below
from headlens.plots.head_grid import float_column

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# inches
_TITLE, _WORDS, _ROW, _LEAST = 0.5, 0.6, 0.17, 0.11
_WIDE, _NARROW = 3.6, 1.75  # of a panel without the names: on a page, and at least
_NAMES, _LONGEST, _LETTER = 1.65, 3.0, 0.06  # of the names: at least on a page, at most, by letter


@dataclass(frozen=True)
class PointGroup:
    """The points of one colour.

    Args:
        label: in the legend.
        colour: of the points.
        names: the row that each point stands in.
        rows: `value`, `ci_low` and `ci_high` of each; points of models that give one answer are framed, see
            `answer_shares`.
        marker: matplotlib's name of what stands at the value.
        level: of a dashed line of the group's own, in its colour; empty for none.
        hollow: which points are not filled, as those that nothing is decided of; empty for none.
    """

    label: str
    colour: str
    names: Sequence[str]
    rows: pd.DataFrame
    marker: str = "o"
    level: pd.DataFrame = field(default_factory=pd.DataFrame)
    hollow: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))


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
    """Draws panels one below the other, with one legend; panels of the same values have the same axis.

    Rows are so high that all fit a page; where that would be too low, panels stand two abreast.
    """
    from matplotlib.ticker import MaxNLocator

    names = min(_LONGEST, _LETTER * max(len(name) for panel in panels for name in panel.names))
    width = min(_WIDE + max(_NAMES, names), style.page_width(names + _NARROW))
    rows = [len(p.names) * max(1.0, 0.6 * len(p.groups) if p.apart else 1.0) for p in panels]
    # Panels that would be longer than a page stand side by side.
    is_long = sum(rows) * _LEAST + _WORDS * len(panels) > style.TALLEST and not style.in_column()
    abreast = min(len(panels), 2 if is_long else 1)
    width = style.page_width(style.FULL_WIDTH) if abreast > 1 else width
    lines = [max(rows[start : start + abreast]) for start in range(0, len(rows), abreast)]
    row = float(np.clip((style.TALLEST - _TITLE - _WORDS * (len(lines) + 0.5)) / sum(lines), _LEAST, _ROW))
    letters = min(style.TICK_SIZE, 0.8 * 72 * row)
    figure = style.constrained_figure(width, _TITLE + row * sum(lines) + _WORDS * (len(lines) + 1), title)
    grid = figure.subplots(len(lines), abreast, squeeze=False, height_ratios=lines)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    drawn = list(grid.flat[: len(panels)])
    for axes, panel in zip(drawn, panels, strict=True):
        style.dress(axes, drawable_text(panel.about), "")
        above = style.one_line(panel.title, width / abreast - names - 0.3, style.TICK_SIZE)
        axes.set_title(above, fontsize=style.TICK_SIZE, fontfamily=font_family(), color=style.INK)
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
            if group.hollow.any():
                axes.plot(values[group.hollow], at[group.hollow], zorder=4, markerfacecolor="white", **looks)
            draw_same_answers(axes, at, group.rows, sideways=True)
        shown = [style.one_line(name, _LONGEST / abreast, letters) for name in panel.names]
        axes.set_yticks(range(len(shown)), shown, fontsize=letters, color=style.INK, fontfamily=font_family())
        axes.set_ylim(len(shown) - 0.5, -0.5)
    for about in {panel.about for panel in panels}:
        alike = [axes for axes, panel in zip(drawn, panels, strict=True) if panel.about == about]
        lows, highs = zip(*(axes.get_xlim() for axes in alike), strict=True)
        for axes in alike:
            axes.set_xlim(min(lows), max(highs))
    legend_below(figure, drawn)
    style.fit_height(figure, grid[:, 0], row * sum(lines), tallest=float("inf"))
    return figure
