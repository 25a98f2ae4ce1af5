from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from drawn_maps import dots, mesh, pale, panels, words
from drawn_words import check_edges, check_words
from made_runs import HOSTILE
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.plots.head_grid import float_column
from headlens.plots.heatmaps import Cells, centred_scale, interval_map, short_number
from headlens.plots.style import MISSING

Make = Callable[..., pd.DataFrame]
MARIAN = {"encoder": [8] * 6, "decoder": [8] * 6, "cross": [8] * 6}


def positive(rows: pd.DataFrame) -> np.ndarray:
    return float_column(rows, "relevance") > 0


def draw(frame: pd.DataFrame, cells: Cells | None = None, title: str = "A title") -> Figure:
    cells = cells or Cells("relevance", positive, "Dot: above 0.")
    scale = centred_scale("how much", frame, "relevance", "RdBu")
    return interval_map(frame, cells, scale, title)


def test_cells_hold_values_half_intervals_and_dots(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [4, 3, 4]})
    (axes,) = panels(draw(frame))
    drawn, found, marked = np.ma.asarray(mesh(axes).get_array()), words(axes), dots(axes)
    for row in frame.itertuples():
        assert drawn[row.layer, row.head] == row.relevance
        value, half = f"{row.relevance:.3f}", f"{(row.ci_high - row.ci_low) / 2:.3f}"
        assert found.pop((row.layer, row.head)) == f"{value}\n±{half}".replace("-", "−")
        assert ((row.layer, row.head) in marked) == (row.relevance > 0)
    assert found == {}
    assert 0 < len(marked) < len(frame)


@pytest.mark.parametrize(
    ("outliers", "beyond"), [([], "neither"), ([9.0], "max"), ([-9.0], "min"), ([9.0, -9.0], "both")]
)
def test_the_colour_bar_is_open_where_there_is_more(outliers: list[float], beyond: str) -> None:
    rows = pd.DataFrame({"share": [0.1] * 30 + [-0.1] * 30 + outliers + [np.nan]})
    scale, whole = (centred_scale("share", rows, "share", "RdBu", with_outliers=held) for held in (False, True))
    assert scale.beyond == beyond
    assert scale.low == -scale.high
    assert whole.beyond == "neither"
    assert (whole.low, whole.high) == ((-9.0, 9.0) if outliers else (-0.1, 0.1))


@pytest.mark.parametrize("with_outliers", [True, False])
@pytest.mark.parametrize("values", [[], [0.0, 0.0], [np.nan]])
def test_a_scale_of_nothing_has_two_ends(values: list[float], *, with_outliers: bool) -> None:
    scale = centred_scale(
        "share", pd.DataFrame({"share": np.array(values, float)}), "share", "RdBu", with_outliers=with_outliers
    )
    assert (scale.low, scale.high, scale.beyond) == (-1.0, 1.0, "neither")


def test_a_scale_is_not_fitted_to_noise() -> None:
    rows = pd.DataFrame({"share": [0.05, -0.02, 0.01], "ci_low": [-0.03, -0.1, -0.07], "ci_high": [0.13, 0.06, 0.09]})
    assert centred_scale("share", rows, "share", "RdBu", with_outliers=True).high == pytest.approx(0.16)


@pytest.mark.parametrize(
    ("values", "end", "beyond"),
    [
        ([0.01, -0.02, 0.03], 0.1, "neither"),
        ([0.001] * 30 + [0.327], 0.1, "max"),
        ([0.001] * 30 + [-0.3], 0.1, "min"),
        ([0.001] * 60 + [0.3, -0.3], 0.1, "both"),
    ],
)
def test_a_scale_with_ends_of_its_own_says_what_lies_beyond(values: list[float], end: float, beyond: str) -> None:
    scale = centred_scale("change", pd.DataFrame({"change": values}), "change", "RdBu", least=0.1)
    assert (-scale.low, scale.high, scale.beyond) == (end, end, beyond)


@pytest.mark.parametrize(
    ("largest", "shown", "unit"),
    [
        (0.0096, "9.600", "10⁻³"),
        (0.01, "0.010", ""),
        (3e-7, "0.300", "10⁻⁶"),
        (-2e-11, "−0.020", "10⁻⁹"),
        (0.0, "0.000", ""),
        (1e-40, "0.000", ""),
    ],
)
def test_small_numbers_are_written_in_a_unit_that_leaves_digits(
    make_relevance: Make, largest: float, shown: str, unit: str
) -> None:
    frame = make_relevance(shapes={"encoder": [2]}).assign(relevance=[largest, 0.0], ci_low=np.nan, ci_high=np.nan)
    figure = draw(frame)
    (axes,) = panels(figure)
    assert words(axes) == {(0, 0): shown, (0, 1): "0.000"}
    note = figure.texts[1].get_text()
    assert ("in units of" in note) == bool(unit)
    assert unit in note


def test_what_may_be_0_is_pale(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [3]}).assign(relevance=[0.2, 0.2, -0.2])
    figure = draw(frame.assign(ci_low=[0.1, -0.1, -0.3], ci_high=[0.3, 0.5, -0.1]))
    (axes,) = panels(figure)
    assert pale(axes) == {(0, 1)}
    assert figure.texts[1].get_text().endswith("Pale: the interval contains 0.")
    without = draw(frame.assign(ci_low=np.nan, ci_high=np.nan))
    assert "Pale" not in without.texts[1].get_text()


def test_heads_without_a_value_are_grey(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [3, 3]})
    frame.loc[3:, ["relevance", "ci_low", "ci_high"]] = np.nan
    (axes,) = panels(draw(frame, Cells("relevance", lambda rows: np.ones(len(rows), bool), "Dot.")))
    assert np.ma.getmaskarray(mesh(axes).get_array()).tolist() == [[False] * 3, [True] * 3]
    assert to_hex(axes.collections[0].get_cmap()(0)) == MISSING.lower()
    assert {layer for layer, _ in words(axes)} == {layer for layer, _ in dots(axes)} == {0}


def test_a_value_without_an_interval_stands_alone(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [2]}).assign(ci_low=np.nan, ci_high=np.nan, relevance=[0.25, 0.75])
    (axes,) = panels(draw(frame))
    assert words(axes) == {(0, 0): "0.250", (0, 1): "0.750"}


def test_stacks_and_models_have_a_panel_each_and_one_scale(make_relevance: Make) -> None:
    both = pd.concat([make_relevance("mt", MARIAN), make_relevance("bert", {"encoder": [12] * 12}, seed=1)])
    drawn = panels(draw(both))
    assert [a.get_title(loc="left") for a in drawn] == ["mt, encoder", "mt, decoder", "mt, cross", "bert, encoder"]
    assert len({mesh(axes).get_clim() for axes in drawn}) == 1


def test_panels_are_named_as_asked(make_relevance: Make) -> None:
    cells = Cells("relevance", positive, "Dot.", lambda part: f"{part.stack} of {part.model}")
    assert [a.get_title(loc="left") for a in panels(draw(make_relevance("bert"), cells))] == ["encoder of bert"]


@pytest.mark.parametrize(
    "shapes", rest_slow([{"encoder": [12] * 12}, MARIAN, {"encoder": [16] * 24}, {"encoder": [1]}])
)
def test_words_stay_inside_their_cells(make_relevance: Make, shapes: dict[str, list[int]]) -> None:
    figure = draw(make_relevance(shapes=shapes).assign(relevance=-0.888, ci_low=-9, ci_high=9))
    for axes in panels(figure):
        cell = axes.transData.transform((1, 1)) - axes.transData.transform((0, 0))
        box = axes.texts[0].get_window_extent()
        assert box.width <= cell[0]
        assert box.height <= cell[1]
        # readable in print
        assert axes.texts[0].get_fontsize() >= 5.5


@pytest.mark.parametrize("heads", rest_slow([24, 64]))
def test_where_cells_are_too_small_for_words_there_are_none(make_relevance: Make, heads: int) -> None:
    # short words would fit, and long ones would not
    small, large = (draw(make_relevance(shapes={"encoder": [n] * 2})) for n in (heads, 4))
    assert not panels(small)[0].texts
    notes = [figure.texts[1].get_text().replace("\n", " ") for figure in (small, large)]
    assert notes[0] == "Dot: above 0. Pale: the interval contains 0."
    assert notes[1] == f"±: half the width of the 95 % interval, which need not be symmetric. {notes[0]}"


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("heads", [2, 12])
def test_the_note_stays_inside_the_figure_and_below_the_colour_bar(make_relevance: Make, heads: int) -> None:
    figure = draw(make_relevance(shapes={"encoder": [heads] * 2}), Cells("relevance", positive, "A long note. " * 9))
    check_edges(figure)
    note = figure.texts[1].get_window_extent()
    assert all(note.y1 <= axes.get_tightbbox().y0 for axes in figure.axes)


def test_many_panels_abreast_have_small_cells(make_relevance: Make) -> None:
    both = pd.concat([make_relevance("bert"), make_relevance("albert", {"encoder": [8] * 12}, seed=1)])
    below, beside = (panels(draw(both, Cells("relevance", positive, "Dot.", abreast=n))) for n in (12, 26))
    boxes = [[axes.get_position() for axes in drawn] for drawn in (below, beside)]
    assert boxes[0][0].y0 > boxes[0][1].y1
    assert boxes[1][0].x1 < boxes[1][1].x0
    assert boxes[1][0].y1 == pytest.approx(boxes[1][1].y1)
    assert [bool(axes.texts) for axes in (*below, *beside)] == [True, True, False, False]


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("heads", rest_slow([1, 2, 8, 12, 64], [1, 12]))
def test_the_note_and_the_title_meet_nothing(make_relevance: Make, heads: int) -> None:
    title = "A title that is too long for one line in a narrow figure, so that it is folded"
    figure = draw(make_relevance(shapes={"encoder": [heads] * 2}), title=title)
    figure.canvas.draw()
    top, note = (own.get_window_extent() for own in figure.texts)
    assert note.x1 <= figure.bbox.x1
    assert top.x1 <= figure.bbox.x1
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box is not None
        assert box.y1 <= top.y0
        assert box.x1 <= figure.bbox.x1
    assert note.y1 <= min(axes.get_tightbbox().y0 for axes in panels(figure))


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("name", rest_slow(HOSTILE, 2))
def test_any_name_can_be_drawn(make_relevance: Make, name: str) -> None:
    figure = draw(make_relevance(name, {"encoder": [2]}), title=name)
    figure.canvas.draw()
    check_words(figure, name)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.08349, "0.083"), (-0.0835, "−0.084"), (-0.0002, "0.000"), (0.0, "0.000"), (-12.34, "−12.3"), (1e5, "1e+05")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short_number(value) == text
