from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from headlens.plots.label_placement import name_points
from headlens.plots.style import new_figure


def axes_of(x: list[float], y: list[float]) -> Axes:
    figure = new_figure(3.0, 2.0)
    axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.scatter(x, y, s=12)
    return axes


def overlap(first: Bbox, second: Bbox) -> bool:
    return first.x0 < second.x1 and second.x0 < first.x1 and first.y0 < second.y1 and second.y0 < first.y1


@pytest.mark.parametrize(
    ("middle", "names"),
    [
        ((0.5, 0.5), ["11.10", "2.5", "3.11"]),
        # in the corner the name of the first could only stand nearer to another point
        ((0.99, 0.99), ["2.5", "3.11"]),
        ((0.01, 0.02), ["11.10", "2.5", "3.11"]),
    ],
)
def test_names_of_close_points_hide_neither_each_other_nor_leave_the_axes(
    middle: tuple[float, float], names: list[str]
) -> None:
    x = [middle[0], abs(middle[0] - 0.02), middle[0]]
    y = [middle[1], middle[1], abs(middle[1] - 0.04)]
    axes = axes_of(x, y)
    name_points(axes, (np.array(x), np.array(y)), [(0, "11.10"), (1, "2.5"), (2, "3.11")], size=6)
    assert [t.get_text() for t in axes.texts] == names
    boxes = [t.get_window_extent() for t in axes.texts]
    assert not [pair for pair in combinations(boxes, 2) if overlap(*pair)]
    assert all(axes.bbox.x0 <= b.x0 and b.x1 <= axes.bbox.x1 + 1 for b in boxes)
    assert all(axes.bbox.y0 <= b.y0 and b.y1 <= axes.bbox.y1 + 1 for b in boxes)


def test_a_name_avoids_the_points_beside_it() -> None:
    x, y = [0.5, 0.54, 0.56], [0.5, 0.5, 0.5]
    axes = axes_of(x, y)
    name_points(axes, (np.array(x), np.array(y)), [(0, "1.2")], size=6)
    box = axes.texts[0].get_window_extent()
    for place in axes.transData.transform(np.column_stack([x, y])):
        assert not box.contains(*place)


def test_a_line_leads_to_a_name_that_does_not_stand_beside_its_point() -> None:
    # close neighbours on all four sides, and a way out between them
    x, y = np.array([0.5, 0.54, 0.46, 0.5, 0.5]), np.array([0.5, 0.5, 0.5, 0.56, 0.44])
    axes = axes_of([*x], [*y])
    name_points(axes, (x, y), [(0, "1.2")], size=6)
    (line,) = axes.lines
    assert line.get_xydata()[0].tolist() == pytest.approx([0.5, 0.5])  # type: ignore[union-attr, index]
    end = axes.transData.transform(line.get_xydata()[1])  # type: ignore[index]
    box = axes.texts[0].get_window_extent()
    assert box.x0 - 2 <= end[0] <= box.x1 + 2
    assert box.y0 - 2 <= end[1] <= box.y1 + 2
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 1), (0, 1))


def test_a_name_without_a_place_is_left_out() -> None:
    x, y = np.meshgrid(np.linspace(0, 1, 40), np.linspace(0, 1, 40))
    axes = axes_of([*x.flat], [*y.flat])
    name_points(axes, (x.ravel(), y.ravel()), [(820, "11.10")], size=6)
    assert not axes.texts


def test_points_without_a_place_are_no_obstacle() -> None:
    axes = axes_of([0.5], [0.5])
    name_points(axes, (np.array([0.5, np.nan]), np.array([0.5, 1.0])), [(0, "0.0")], size=6)
    assert len(axes.texts) == 1


def test_no_name_is_better_than_one_that_seems_to_be_of_another_point() -> None:
    """Within a dense field every line to a name would run over other points."""
    x, y = (side.ravel() for side in np.meshgrid(np.linspace(0.3, 0.7, 17), np.linspace(0.3, 0.7, 17)))
    axes = axes_of([*x], [*y])
    name_points(axes, (x, y), [(144, "1.2"), (0, "0.0")], size=6)
    assert [text.get_text() for text in axes.texts] == ["0.0"]


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=25, unique=True))
def test_names_without_a_line_are_nearest_to_their_own_point(points: list[tuple[float, float]]) -> None:
    x, y = np.array(points).T
    axes = axes_of([*x], [*y])
    name_points(axes, (x, y), [(n, str(n)) for n in range(len(points))], size=6)
    places = axes.transData.transform(np.column_stack([x, y]))
    led = {tuple(np.round(line.get_xydata()[0], 6)) for line in axes.lines}  # type: ignore[index]
    for text in axes.texts:
        own = int(text.get_text())
        if tuple(np.round(points[own], 6)) not in led:
            box = text.get_window_extent()
            corners = np.array([[box.x0, box.y0], [box.x1, box.y1]])
            away = np.linalg.norm(places - np.clip(places, *corners), axis=1)
            assert away[own] <= away.min() + 2.5, "but for the size of letters, which is an estimate"
