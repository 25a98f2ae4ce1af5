from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from headlens.report.interval_map import short_number
from headlens.report.relevance_map import relevance_map, relevance_scale
from headlens.report.style import MISSING

Make = Callable[..., pd.DataFrame]
MARIAN = {"encoder": [8] * 6, "decoder": [8] * 6, "cross": [8] * 6}


def panels(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return [axes for axes in figure.axes if axes.get_xlabel() == "head"]


def mesh(axes: Axes) -> QuadMesh:
    """The coloured cells; the ones before are the grey ground."""
    return [own for own in axes.collections if isinstance(own, QuadMesh)][-1]


def words(axes: Axes) -> dict[tuple[int, int], str]:
    return {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in axes.texts}


def dots(axes: Axes) -> set[tuple[int, int]]:
    """Layer and head of the cells that have a dot."""
    (found,) = [own for own in axes.collections if isinstance(own, PathCollection)]
    return {(round(y), round(x)) for x, y in np.asarray(found.get_offsets())}


def test_cells_hold_the_values_of_the_table(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [4, 3, 4]})
    (axes,) = panels(relevance_map(frame))
    drawn, found, marked = np.ma.asarray(mesh(axes).get_array()), words(axes), dots(axes)
    for row in frame.itertuples():
        assert drawn[row.layer, row.head] == row.relevance
        value, half = f"{row.relevance:.3f}", f"{(row.ci_high - row.ci_low) / 2:.3f}"
        assert found.pop((row.layer, row.head)) == f"{value}\n±{half}".replace("-", "−")
        assert ((row.layer, row.head) in marked) == (row.ci_low <= 0 <= row.ci_high)
    assert found == {}
    assert 0 < len(marked) < len(frame)


def test_colours_have_zero_in_their_middle(make_relevance: Make) -> None:
    frame = make_relevance().assign(relevance=np.linspace(-0.05, 0.2, 72))
    (axes,) = panels(relevance_map(frame))
    assert mesh(axes).get_clim() == (-0.2, 0.2)
    assert mesh(axes).get_cmap().name == "RdBu_r"


def test_outliers_do_not_wash_out_the_rest(make_relevance: Make) -> None:
    frame = make_relevance().assign(relevance=np.tile([0.05, 0.1], 36))
    frame.loc[[3, 4], "relevance"] = [5e3, -70.0]
    figure = relevance_map(frame)
    (axes,) = panels(figure)
    low, high = mesh(axes).get_clim()
    assert -low == high <= 0.41
    assert words(axes)[0, 3].startswith("5e+03\n")
    assert words(axes)[0, 4].startswith("−70\n")


@pytest.mark.parametrize(
    ("outliers", "beyond"), [([], "neither"), ([9.0], "max"), ([-9.0], "min"), ([9.0, -9.0], "both")]
)
def test_the_colour_bar_is_open_where_there_is_more(outliers: list[float], beyond: str) -> None:
    scale = relevance_scale(np.array([0.1] * 30 + [-0.1] * 30 + outliers))
    assert scale.beyond == beyond
    assert scale.low == -scale.high


def test_only_the_rule_that_was_asked_for_is_drawn(make_relevance: Make) -> None:
    frame = make_relevance(rules=("taylor", "epsilon"))
    figure = relevance_map(frame)
    (axes,) = panels(figure)
    np.testing.assert_array_equal(np.asarray(mesh(axes).get_array()).ravel(), frame["relevance"][:72])
    assert figure is not None
    assert figure.texts[0].get_text() == "Relevance of attention heads (rule taylor, target class)"


def test_heads_without_a_share_are_grey(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [3, 3]})
    frame.loc[3:, ["relevance", "ci_low", "ci_high"]] = np.nan
    (axes,) = panels(relevance_map(frame))
    assert np.ma.getmaskarray(mesh(axes).get_array()).tolist() == [[False] * 3, [True] * 3]
    assert to_hex(axes.collections[0].get_cmap()(0)) == MISSING.lower()
    assert {layer for layer, _ in words(axes)} == {layer for layer, _ in dots(axes)} | {0} == {0}


def test_a_value_without_an_interval_stands_alone(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [2]}).assign(ci_low=np.nan, ci_high=np.nan, relevance=[0.25, 0.75])
    (axes,) = panels(relevance_map(frame))
    assert words(axes) == {(0, 0): "0.250", (0, 1): "0.750"}


def test_one_head_per_layer(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [1] * 3}).assign(relevance=1.0, ci_low=1.0, ci_high=1.0)
    (axes,) = panels(relevance_map(frame))
    assert set(words(axes).values()) == {"1.000\n±0.000"}
    assert dots(axes) == set()
    assert mesh(axes).get_clim() == (-1.0, 1.0)


def test_stacks_and_models_have_a_panel_each(make_relevance: Make) -> None:
    both = pd.concat([make_relevance("mt", MARIAN), make_relevance("bert", {"encoder": [12] * 12}, seed=1)])
    drawn = panels(relevance_map(both))
    assert [a.get_title(loc="left") for a in drawn] == ["mt, encoder", "mt, decoder", "mt, cross", "bert, encoder"]
    assert len({mesh(axes).get_clim() for axes in drawn}) == 1


@pytest.mark.parametrize("shapes", [MARIAN, {"encoder": [12] * 12}, {"encoder": [16] * 24}, {"encoder": [1]}])
def test_words_stay_inside_their_cells(make_relevance: Make, shapes: dict[str, list[int]]) -> None:
    figure = relevance_map(make_relevance(shapes=shapes).assign(relevance=-0.888, ci_low=-9, ci_high=9))
    for axes in panels(figure):
        cell = axes.transData.transform((1, 1)) - axes.transData.transform((0, 0))
        box = axes.texts[0].get_window_extent()
        assert box.width <= cell[0]
        assert box.height <= cell[1]
        # readable in print
        assert axes.texts[0].get_fontsize() >= 5.5


def test_where_cells_are_too_small_for_words_nothing_is_said_of_them(make_relevance: Make) -> None:
    small, large = (relevance_map(make_relevance(shapes={"encoder": [n] * 2})) for n in (64, 4))
    assert small is not None
    assert large is not None
    assert not panels(small)[0].texts
    assert [t.get_text() for t in small.texts][1:] == ["Dot: the interval holds 0."]
    assert large.texts[1].get_text() == "±: half the 95 % interval. Dot: the interval holds 0."


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 64])
def test_the_note_fits_its_figure(make_relevance: Make, heads: int) -> None:
    figure = relevance_map(make_relevance(shapes={"encoder": [heads] * 2}))
    assert figure is not None
    note = figure.texts[-1].get_window_extent()
    assert note.x1 <= figure.bbox.x1
    figure.canvas.draw()
    for axes in panels(figure):
        box = axes.get_tightbbox()
        assert box is not None
        assert note.y1 <= box.y0


def test_nothing_to_draw(make_relevance: Make) -> None:
    frame = make_relevance()
    assert relevance_map(frame.assign(relevance=np.nan)) is None
    assert relevance_map(frame.iloc[:0]) is None
    assert relevance_map(frame.drop(columns="rule")) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_can_be_drawn(make_relevance: Make, name: str) -> None:
    figure = relevance_map(make_relevance(name, {"encoder": [2]}, rules=(name,)))
    assert figure is not None
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.08349, "0.083"), (-0.0835, "−0.084"), (-0.0002, "0.000"), (0.0, "0.000"), (-12.34, "−12.3"), (1e5, "1e+05")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short_number(value) == text
