"""Names beside points, placed where they hide neither each other nor the points; a line leads to those farther away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headlens.plots.head_grid import Grid
from headlens.plots.style import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RADIUS, _LETTER = 2.8, 0.62  # points; width of a digit in font sizes
_SIDES = np.array([(1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1)])
_AWAY = np.array([1.0, 2.2, 3.5, 5.0, 7.0, 9.0])  # how far names may stand, in radii of their point


def name_points(axes: Axes, points: tuple[Grid, Grid], names: Sequence[tuple[int, str]], size: float) -> None:
    """Writes names beside points, but those that have no place; axes have their place and limits already.

    A name that hides a point or another name would be worse than none, and so would one that seems to be another
    point's: a name right beside its point is nearer to it than to any other, and to a name farther away leads a line
    that touches no other point.

    Args:
        axes: axes with the points.
        points: x and y of all points, those without a name too.
        names: index of a point and its name; the first ones choose first.
        size: of the letters, in points.
    """
    from matplotlib.lines import Line2D

    figure = axes.get_figure(root=True)
    pixel = (figure.dpi if figure is not None else 72.0) / 72
    places = axes.transData.transform(np.column_stack(points))
    places = places[np.isfinite(places).all(axis=1)]
    # A point is in the way where its middle is no more than most of its radius from a name.
    room = 0.6 * _RADIUS * pixel
    # Places of a name: (distances × sides, x and y), the nearest first; those at corners are no farther than others.
    sides = np.tile(_SIDES, (len(_AWAY), 1))
    gaps = np.repeat(_AWAY, len(_SIDES)) * np.where((sides == 0).any(axis=1), 1.0, 0.7) * _RADIUS * pixel
    frame = axes.bbox.extents
    placed: list[tuple[Grid, Grid]] = []
    for index, name in names:
        box = size * pixel * np.array([_LETTER * len(name), 1.0])
        point = axes.transData.transform((points[0][index], points[1][index]))
        low = point + sides * gaps[:, None] - box * (1 - sides) / 2
        high = low + box
        hidden = ((places > low[:, None] - room) & (places < high[:, None] + room)).all(axis=2).sum(axis=1)
        crossed = sum(((low < other[1]) & (other[0] < high)).all(axis=1).astype(int) for other in placed)
        outside = ((low < frame[:2]) | (high > frame[2:])).any(axis=1)
        others = places[np.abs(places - point).sum(axis=1) > 0]
        near = np.clip(point, low, high)  # where a line would end
        to_box = np.linalg.norm(others - np.clip(others, low[:, None], high[:, None]), axis=2)
        doubtful = np.where(
            np.arange(len(low)) < len(_SIDES),
            (to_box < np.linalg.norm(near - point, axis=1)[:, None]).any(axis=1),
            (_to_segments(others, point, near) < _RADIUS * pixel).any(axis=1),
        )
        free = np.flatnonzero(hidden + crossed + outside + doubtful == 0)
        if not free.size:
            continue
        best = free[0]
        placed.append((low[best], high[best]))
        (x, y), *line = axes.transData.inverted().transform([low[best], point, np.clip(point, low[best], high[best])])
        axes.text(x, y, name, fontsize=size, color=INK, ha="left", va="bottom", zorder=5)
        if best >= len(_SIDES):
            axes.add_artist(Line2D(*np.transpose(line), color=FAINT, linewidth=0.3, zorder=0.5))


def _to_segments(points: Grid, start: Grid, ends: Grid) -> Grid:
    """Distances of points, (points, 2), from the lines between a start, (2,), and ends, (ends, 2): (ends, points)."""
    along = (ends - start)[:, None]
    length = np.maximum((along**2).sum(axis=2), np.finfo(np.float64).tiny)
    share = np.clip(((points - start) * along).sum(axis=2) / length, 0, 1)
    return np.asarray(np.linalg.norm(points - start - share[..., None] * along, axis=2), np.float64)
