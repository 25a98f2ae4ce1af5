"""Panels of one size in lines and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headlens.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def panel_grid(
    title: str,
    count: int,
    width: float,
    columns: tuple[Sequence[float], float],
    lines: tuple[float, float, float],
    margins: tuple[float, float],
) -> tuple[Figure, list[Axes]]:
    """Makes a figure under a title, with panels from the upper left, line by line; lengths are in inches.

    Args:
        title: of the figure.
        count: number of panels.
        width: of the figure.
        columns: where each panel of a line begins, and how wide it is, as shares of the width.
        lines: from one to the next, the room below the panels within it, and the height of these.
        margins: above the first line, and below the last.
    """
    across = len(columns[0])
    height = margins[0] + -(-count // across) * lines[0] + margins[1]
    figure = style.new_figure(width, height)
    style.headline(figure, title)
    panels = []
    for number in range(count):
        line, column = divmod(number, across)
        low = height - margins[0] - (line + 1) * lines[0] + lines[1]
        panels.append(figure.add_axes((columns[0][column], low / height, columns[1], lines[2] / height)))
    return figure, panels
