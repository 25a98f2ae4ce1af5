"""What stands in a drawn heatmap of layers × heads."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle


def panels(figure: Figure | None) -> list[Axes]:
    """The heatmaps of a figure, without its colour bar."""
    assert figure is not None
    return [axes for axes in figure.axes if axes.get_xlabel() == "head"]


def mesh(axes: Axes) -> QuadMesh:
    """The coloured cells; the ones before are the grey ground."""
    return [own for own in axes.collections if isinstance(own, QuadMesh)][-1]


def words(axes: Axes) -> dict[tuple[int, int], str]:
    """What is written, by layer and head."""
    return {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in axes.texts}


def words_fit_their_cells(axes: Axes, most: int) -> bool:
    """Whether the first words of a drawn map, of which there are some, stand inside their cells."""
    cell = axes.transData.transform((1, 1)) - axes.transData.transform((0, 0))
    boxes = [text.get_window_extent() for text in axes.texts[:most]]
    return bool(boxes) and all(box.width <= cell[0] and box.height <= cell[1] for box in boxes)


def dots(axes: Axes) -> set[tuple[int, int]]:
    """Layer and head of the cells that have a dot."""
    (found,) = [own for own in axes.collections if isinstance(own, PathCollection)]
    return {(int(y), int(x)) for x, y in np.asarray(found.get_offsets())}


def pale(axes: Axes) -> set[tuple[int, int]]:
    """Layer and head of the cells whose interval holds 0."""
    veils = [box for box in axes.patches if isinstance(box, Rectangle) and box.get_alpha()]
    return {(round(box.get_y()), round(box.get_x())) for box in veils}
