"""The picture of `headlens reproduce`: numbers of a paper beside ours, on one axis for each table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headlens.plots import style
from headlens.plots.axis_labels import drawable_text
from headlens.plots.head_grid import float_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE, _AROUND, _WORDS = 0.17, 0.75, 0.7  # inches: of a row, of a panel's title and axis, of title and legend
_MOST = 40  # rows of a panel; a sheet has no room for more
_COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.VERMILION, style.SKY, style.BROWN)


def comparison_figures(comparison: pd.DataFrame, paper: str) -> Iterator[tuple[str, Figure]]:
    """Yields a figure for each table of a paper that has published numbers and ours, with its name.

    Rows are those of the table, colours its columns: squares are the paper's numbers, dots are ours, with their 95 %
    intervals where there are any.

    Args:
        comparison: rows of `comparison.csv`.
        paper: what the paper is called in titles.
    """
    numbers = {name: float_column(comparison, name) for name in ("published", "ours", "ci_low", "ci_high")}
    known = comparison.assign(**numbers)[np.isfinite(numbers["published"]) & np.isfinite(numbers["ours"])]
    for number, (title, rows) in enumerate(known.groupby("table", sort=False)):
        for part, start in enumerate(range(0, rows["row"].nunique(), _MOST)):
            labels = list(dict.fromkeys(rows["row"]))[start : start + _MOST]
            name = f"comparison_{number}" + (f"_{part + 1}" if rows["row"].nunique() > _MOST else "")
            yield name, _figure(rows[rows["row"].isin(labels)], f"{paper}: {title}")


def _figure(rows: pd.DataFrame, title: str) -> Figure:
    from matplotlib.lines import Line2D

    labels, columns = (list(dict.fromkeys(rows[name])) for name in ("row", "column"))
    high = _LINE * len(labels) * max(1.0, 0.45 * len(columns))
    figure = style.constrained_figure(style.page_width(), high + _AROUND + _WORDS, title)
    axes = figure.subplots()
    colours = dict(zip(columns, (_COLOURS[i % len(_COLOURS)] for i in range(len(columns))), strict=True))
    for place, column in enumerate(columns):
        part = rows[rows["column"] == column]
        # Columns stand one below the other within a row, the first one on top.
        offset = (place - (len(columns) - 1) / 2) * 0.7 / len(columns)
        _draw(axes, part, np.array([labels.index(row) for row in part["row"]]) + offset, colours[column])
    style.dress(axes, "", "")
    axes.set_yticks(range(len(labels)), [drawable_text(str(label)) for label in labels])
    axes.set(ylim=(len(labels) - 0.5, -0.5))
    axes.grid(axis="x", color=style.NO_ROLE, linewidth=0.6)
    axes.set_axisbelow(True)
    ours = "headlens, with 95 % interval" if np.isfinite(rows["ci_low"]).any() else "headlens"
    marks = [("s", "none", style.FAINT, "paper"), ("o", style.FAINT, style.FAINT, ours)]
    handles = [
        Line2D([], [], marker=mark, linestyle="", markerfacecolor=inside, markeredgecolor=edge, label=label)
        for mark, inside, edge, label in marks
    ]
    if len(columns) > 1:
        handles += [Line2D([], [], color=colours[c], linewidth=3, label=drawable_text(str(c))) for c in columns]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, **style.legend_looks())
    style.fit_height(figure, [axes], high)
    return figure


def _draw(axes: Axes, rows: pd.DataFrame, places: np.ndarray, colour: str) -> None:
    """Draws the numbers of one column of a table."""
    ours, low, high = (rows[name].to_numpy(float) for name in ("ours", "ci_low", "ci_high"))
    axes.hlines(places, low, high, color=colour, linewidth=1.2)
    axes.scatter(ours, places, s=14, color=colour, zorder=3)
    axes.scatter(rows["published"], places, s=34, marker="s", facecolors="none", edgecolors=colour, zorder=4)
