from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from drawn_words import check_words, fits_a_page
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from tiers import rest_slow

from headlens.plots.style import GAIN, LOSS
from headlens.relevance_propagation.intervals_figure import relevance_intervals

Make = Callable[..., pd.DataFrame]
MARIAN = {"encoder": [8] * 6, "decoder": [8] * 6, "cross": [8] * 6}


THREE_LAYERS = {"encoder": [12] * 3}


def points(axes: Axes) -> PathCollection:
    return next(own for own in axes.collections if isinstance(own, PathCollection))


def tame(frame: pd.DataFrame) -> pd.DataFrame:
    """Shares from -0.1 to 0.2, none of them beyond the axis."""
    share = np.linspace(-0.1, 0.2, len(frame))
    return frame.assign(relevance=share, ci_low=share - 0.03, ci_high=share + 0.05)


def test_dots_and_lines_are_the_values_of_the_table(make_relevance: Make) -> None:
    frame = tame(make_relevance(shapes={"encoder": [5] * 4}))
    figure = relevance_intervals(frame)
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"layer {n}" for n in range(4)]
    for layer, axes in enumerate(figure.axes):
        rows = frame[frame["layer"] == layer]
        np.testing.assert_array_equal(points(axes).get_offsets(), rows[["head", "relevance"]])
        (lines,) = [own for own in axes.collections if isinstance(own, LineCollection)]
        ends = [[(r.head, r.ci_low), (r.head, r.ci_high)] for r in rows.itertuples()]
        np.testing.assert_array_equal(lines.get_segments(), ends)
        low, high = axes.get_ylim()
        assert low <= rows["ci_low"].min()
        assert high >= rows["ci_high"].max()


def test_colours_tell_the_sign_and_open_dots_that_it_is_not_known(make_relevance: Make) -> None:
    frame = tame(make_relevance(shapes={"encoder": [12]}))
    figure = relevance_intervals(frame)
    assert figure is not None
    dots = points(figure.axes[0])
    signs = [GAIN if value > 0 else LOSS for value in frame["relevance"]]
    unsure = (frame["ci_low"] <= 0) & (frame["ci_high"] >= 0)
    assert [to_hex(c) for c in dots.get_edgecolor()] == [s.lower() for s in signs]
    faces = ["#ffffff" if own else sign.lower() for own, sign in zip(unsure, signs, strict=True)]
    assert [to_hex(c) for c in dots.get_facecolor()] == faces
    assert unsure.sum() == 3


def test_lines_stand_at_zero_and_at_the_even_share_of_the_layer(make_relevance: Make) -> None:
    figure = relevance_intervals(make_relevance(shapes={"encoder": [4, 2, 1]}))
    assert figure is not None
    heights = [[float(line.get_ydata()[0]) for line in axes.lines] for axes in figure.axes]  # type: ignore[index, arg-type]
    assert heights == [[0.0, 0.25], [0.0, 0.5], [0.0, 1.0]]


def test_an_outlier_stands_at_the_edge_with_its_number(make_relevance: Make) -> None:
    frame = tame(make_relevance(shapes=THREE_LAYERS))
    changed = [14, 20]
    for column in ("relevance", "ci_low", "ci_high"):
        frame.loc[changed, column] = [41.5, -7.25]
    figure = relevance_intervals(frame)
    assert figure is not None
    assert {axes.get_ylim() for axes in figure.axes} == {figure.axes[0].get_ylim()}
    assert figure.axes[0].get_ylim()[1] < 1
    beyond = {round(t.get_position()[0]): t.get_text() for t in figure.axes[1].texts}
    assert beyond == {2: "41.5", 8: "−7.250"}
    assert len(points(figure.axes[1]).get_offsets()) == 10
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "at the edge or beyond" in told
    assert "interval beyond the axis" not in told


NUMBERS = ["relevance", "ci_low", "ci_high"]


def with_one_far_away(make_relevance: Make) -> tuple[pd.DataFrame, float]:
    """Relevance of which row 14 lies far beyond the axis of its layer, and where that axis ends."""
    frame = tame(make_relevance(shapes=THREE_LAYERS))
    frame.loc[14, NUMBERS] = 41.5
    figure = relevance_intervals(frame)
    assert figure is not None
    return frame, figure.axes[1].get_ylim()[1]


def test_a_dot_that_the_edge_would_cut_stands_there_with_its_number(make_relevance: Make) -> None:
    frame, edge = with_one_far_away(make_relevance)
    frame.loc[15, NUMBERS] = 0.98 * edge
    figure = relevance_intervals(frame)
    assert figure is not None
    assert figure.axes[1].get_ylim()[1] > 0.98 * edge
    assert [t.get_text() for t in figure.axes[1].texts] == ["41.5", f"{0.98 * edge:.3f}"]


def test_the_axis_has_room_for_what_is_hardly_farther_away(make_relevance: Make) -> None:
    frame, edge = with_one_far_away(make_relevance)
    frame.loc[14, NUMBERS] = value = 1.2 * edge
    figure = relevance_intervals(frame)
    assert figure is not None
    assert figure.axes[1].get_ylim()[1] > value
    assert [t.get_text() for t in figure.axes[1].texts] == []


def test_layers_without_a_share_say_so(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [3, 3]})
    frame.loc[:2, ["relevance", "ci_low", "ci_high"]] = np.nan
    figure = relevance_intervals(frame)
    assert figure is not None
    assert [t.get_text() for t in figure.axes[0].texts] == ["no value"]
    assert len(points(figure.axes[1]).get_offsets()) == 3


def test_one_head_per_layer_without_intervals(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [1] * 3}).assign(relevance=1.0, ci_low=np.nan, ci_high=np.nan)
    figure = relevance_intervals(frame)
    assert figure is not None
    figure.canvas.draw()
    for axes in figure.axes:
        (point,) = (line for line in axes.lines if line.get_marker() == "o")
        assert (point.get_xdata(), point.get_ydata(), point.get_fillstyle()) == ([0], [1], "left")
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == ["above 0", "below 0", "no interval", "equal share, 1 / heads"]
    assert "interval" not in figure.get_suptitle()


def test_a_model_without_intervals_beside_one_that_has_them(make_relevance: Make) -> None:
    frame = pd.concat([make_relevance("a", {"encoder": [2]}), make_relevance("b", {"encoder": [2]})], ignore_index=True)
    frame.loc[frame["model"] == "b", ["ci_low", "ci_high"]] = np.nan
    figure = relevance_intervals(frame)
    assert figure is not None
    halves = [sum(line.get_fillstyle() == "left" for line in axes.lines) for axes in figure.axes]
    assert halves == [0, 2]
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"no interval", "95 % interval contains 0"} <= set(told)


@pytest.mark.slow
def test_every_model_and_stack_has_its_layers(make_relevance: Make) -> None:
    both = pd.concat([make_relevance("mt", MARIAN), make_relevance("bert", {"encoder": [12] * 4})])
    figure = relevance_intervals(both)
    assert figure is not None
    assert len(figure.axes) == 3 * 6 + 4
    names = [t.get_text() for block in figure.subfigs for t in block.texts]
    assert names == ["mt, encoder", "mt, decoder", "mt, cross", "bert, encoder"]


def test_only_the_rule_that_was_asked_for_is_drawn(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [3]}, rules=("taylor", "epsilon"))
    figure = relevance_intervals(frame)
    assert figure is not None
    np.testing.assert_array_equal(points(figure.axes[0]).get_offsets()[:, 1], frame["relevance"][:3])
    assert figure.texts[0].get_text().replace("\n", " ").endswith("(rule taylor, magnitudes, target class)")


SHAPES = (
    {"encoder": [12] * 6},
    {"encoder": [12] * 12},
    {"encoder": [16] * 24},
    MARIAN,
    {"decoder": [32] * 12},
)


@pytest.mark.parametrize("shapes", rest_slow(SHAPES))
def test_panels_fit_a_page_and_do_not_meet(make_relevance: Make, shapes: dict[str, list[int]]) -> None:
    figure = relevance_intervals(make_relevance(shapes=shapes))
    assert figure is not None
    assert fits_a_page(figure)
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for number, first in enumerate(boxes):
        assert first is not None
        assert first.x0 >= 0
        assert first.x1 <= figure.bbox.x1
        for second in boxes[:number]:
            assert second is not None
            width = min(first.x1, second.x1) - max(first.x0, second.x0)
            height = min(first.y1, second.y1) - max(first.y0, second.y0)
            # ticks may reach a pixel into the space between panels
            assert min(width, height) <= 2


def test_nothing_to_draw(make_relevance: Make) -> None:
    frame = make_relevance(shapes=THREE_LAYERS)
    assert relevance_intervals(frame.assign(relevance=np.nan)) is None
    assert relevance_intervals(frame.iloc[:0]) is None


@pytest.mark.parametrize("name", rest_slow(HOSTILE))
def test_any_name_can_be_drawn(make_relevance: Make, name: str) -> None:
    figure = relevance_intervals(make_relevance(name, {"encoder": [2]}, rules=(name,)))
    assert figure is not None
    figure.canvas.draw()
    check_words(figure, name)
