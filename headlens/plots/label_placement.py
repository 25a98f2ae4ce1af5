"""Names beside points, placed where they hide neither each other nor the points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from headlens.plots.head_grid import Grid
from headlens.plots.style import INK

Box = tuple[float, float, float, float]  # left, low, right, high in pixels
Places = npt.NDArray[np.float64]
_AROUND = [(1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1)]
_AWAY = (1.0, 2.2, 3.5, 5.0, 7.0, 9.0)  # how far names may stand, in radii of their point
_RADIUS, _LETTER = 2.8, 0.62  # points; width of a digit in font sizes


def name_points(axes: Axes, points: tuple[Grid, Grid], names: Sequence[tuple[int, str]], size: float) -> None:
    """Writes names beside points, each where it is least in the way; axes have their place and limits already.

    Args:
        axes: axes with the points.
        points: x and y of all points, those without a name too.
        names: index of a point and its name; the first ones choose first.
        size: of the letters, in points.
    """
    figure = axes.get_figure(root=True)
    pixel = (figure.dpi if figure is not None else 72.0) / 72
    places = axes.transData.transform(np.column_stack(points))
    places = places[np.isfinite(places).all(axis=1)]
    # A point is in the way where its middle is no more than most of its radius from a name
    near = places, 0.6 * _RADIUS * pixel
    placed: list[Box] = []
    frame = tuple(axes.bbox.extents)
    for index, name in names:
        x, y = axes.transData.transform((points[0][index], points[1][index]))
        boxes = [_box((x, y), side, name, (size * pixel, away * _RADIUS * pixel)) for away in _AWAY for side in _AROUND]
        costs = [_cost(box, placed, near, frame) for box in boxes]
        best = boxes[int(np.argmin(costs))]
        placed.append(best)
        left, low = axes.transData.inverted().transform(best[:2])
        axes.text(left, low, name, fontsize=size, color=INK, ha="left", va="bottom", zorder=5)


def _box(point: tuple[float, float], side: tuple[int, int], name: str, sizes: tuple[float, float]) -> Box:
    letter, away = sizes
    width, height = _LETTER * letter * len(name), letter
    gap = away * (1.0 if 0 in side else 0.7)
    left = point[0] + side[0] * gap - width * (1 - side[0]) / 2
    low = point[1] + side[1] * gap - height * (1 - side[1]) / 2
    return left, low, left + width, low + height


def _cost(box: Box, placed: Sequence[Box], near: tuple[Places, float], frame: Sequence[float]) -> float:
    left, low, right, high = box
    places, room = near
    lower, upper = np.array([left, low]) - room, np.array([right, high]) + room
    inside = ((places > lower) & (places < upper)).all(axis=1)
    crossed = sum(left < b[2] and b[0] < right and low < b[3] and b[1] < high for b in placed)
    outside = left < frame[0] or low < frame[1] or right > frame[2] or high > frame[3]
    return float(inside.sum()) + 5 * crossed + 10 * outside
