from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from drawn_maps import mesh, pale, panels, words
from drawn_words import check_words
from made_runs import HOSTILE
from matplotlib.collections import PathCollection
from tiers import rest_slow

from headlens.relevance_propagation.intervals_figure import raw_map, relevance_intervals, relevance_map
from headlens.relevance_propagation.shares import warned_title

Make = Callable[..., pd.DataFrame]


def test_cells_hold_the_values_of_the_table(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [4, 3, 4]})
    (axes,) = panels(relevance_map(frame))
    drawn, found, marked = np.ma.asarray(mesh(axes).get_array()), words(axes), pale(axes)
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
    assert mesh(axes).get_cmap().name == "RdBu"


@pytest.mark.parametrize("opposing", [[], [2], [0, 5]])
def test_layers_that_oppose_the_target_have_a_triangle(make_relevance: Make, opposing: list[int]) -> None:
    """Their shares add up to 1 as those of any other: only the sign of what they are shares of tells."""
    frame = make_relevance()
    frame["raw"] = frame["relevance"].abs() * np.where(frame["layer"].isin(opposing), -1, 1)
    figure = relevance_map(frame)
    (axes,) = panels(figure)
    found = [own.get_offsets() for own in axes.collections if isinstance(own, PathCollection)]
    marked = [(x, y) for offsets in found for x, y in np.asarray(offsets)]
    assert [(x, y) for x, y in marked if x == 0] == [(0, layer + 0.5) for layer in opposing]
    assert figure is not None
    assert figure.texts[1].get_text().startswith("Triangle: the layer as a whole works against") == bool(opposing)
    intervals = relevance_intervals(frame)
    assert intervals is not None
    titles = [axes.get_title(loc="left") for axes in intervals.axes]
    assert [n for n, title in enumerate(titles) if title.endswith("(against the target)")] == opposing


@pytest.mark.parametrize("layers", [[], [1], [0, 4]])
def test_heads_of_layers_that_cancel_are_pale_and_have_no_triangle(make_relevance: Make, layers: list[int]) -> None:
    frame = make_relevance().assign(relevance=0.5, ci_low=0.4, ci_high=0.6, raw=1.0, layer_raw_low=11.0)
    frame["layer_raw_high"] = 13.0
    cancel = frame["layer"].isin(layers)
    frame.loc[cancel & (frame["head"] % 2 == 0), "raw"] = -1.01
    frame.loc[cancel, ["layer_raw_low", "layer_raw_high"]] = [-0.2, 0.2]
    figure = relevance_map(frame)
    (axes,) = panels(figure)
    assert pale(axes) == {(layer, head) for layer in layers for head in range(12)}
    assert figure is not None
    assert "Triangle" not in figure.texts[1].get_text()
    assert ("the heads of the layer cancel" in figure.texts[1].get_text().replace("\n", " ")) == bool(layers)
    intervals = relevance_intervals(frame)
    assert intervals is not None
    titles = [axes.get_title(loc="left") for axes in intervals.axes]
    assert [n for n, title in enumerate(titles) if title.endswith("(heads cancel)")] == layers


def test_heads_of_layers_whose_direction_is_not_decided_are_pale(make_relevance: Make) -> None:
    """A sum far from 0 whose interval holds it: shares look like those of a layer that serves the target."""
    frame = make_relevance().assign(relevance=0.5, ci_low=0.4, ci_high=0.6, raw=1.0, layer_raw_low=11.0)
    frame["layer_raw_high"] = 13.0
    frame.loc[frame["layer"] == 2, "layer_raw_low"] = -1.0
    figure = relevance_map(frame)
    (axes,) = panels(figure)
    assert pale(axes) == {(2, head) for head in range(12)}
    assert figure is not None
    assert "not shown to serve or oppose the target" in figure.texts[1].get_text().replace("\n", " ")
    intervals = relevance_intervals(frame)
    assert intervals is not None
    titles = [axes.get_title(loc="left") for axes in intervals.axes]
    assert [n for n, title in enumerate(titles) if title.endswith("(direction not decided)")] == [2]
    assert warned_title("Shares", frame).endswith("of which it is not decided whether they serve it: 2")


def test_why_all_heads_are_pale_is_told_where_there_are_no_intervals(make_relevance: Make) -> None:
    """Fewer than ten examples have none; the note on pale cells was about intervals alone, and was left out."""
    none = dict.fromkeys(("ci_low", "ci_high", "layer_raw_low", "layer_raw_high"), np.nan)
    figure = relevance_map(make_relevance().assign(relevance=0.5, raw=1.0, **none))
    (axes,) = panels(figure)
    assert len(pale(axes)) == 72
    assert figure is not None
    assert "fewer than ten examples, it is not tested whether layers" in figure.texts[1].get_text().replace("\n", " ")
    figure = raw_map(make_relevance().assign(raw=1.0, raw_low=np.nan, raw_high=np.nan))
    assert figure is not None
    assert "No intervals: fewer than ten examples." in figure.texts[1].get_text().replace("\n", " ")


@pytest.mark.parametrize(
    ("largest", "power", "unit"),
    [(0.0039, 1e3, "10⁻³ units"), (0.09, 1e2, "10⁻² units"), (0.2, 1, "units"), (4.45, 1, "units"), (0.0, 1, "units")],
)
def test_contributions_are_drawn_in_units_that_show_them(
    make_relevance: Make, largest: float, power: float, unit: str
) -> None:
    raw = np.linspace(-largest, largest / 2, 12)
    frame = make_relevance(shapes={"encoder": [4] * 3}).assign(raw=raw, raw_low=raw - 0.1 * largest)
    frame["raw_high"] = raw + 0.1 * largest
    figure = raw_map(frame)
    (axes,) = panels(figure)
    np.testing.assert_allclose(np.asarray(mesh(axes).get_array()).ravel(), raw * power)
    low, high = mesh(axes).get_clim()
    assert -low == high > 0
    expected = f"{-largest * power:.3f}\n±{0.1 * largest * power:.3f}".replace("-", "−")
    assert words(axes)[0, 0] == (expected if largest else "0.000\n±0.000")
    assert pale(axes) == {divmod(n, 4) for n in range(12) if abs(raw[n]) <= 0.1 * largest}
    assert figure is not None
    labels = [own.get_ylabel().replace("\n", " ") for own in figure.axes if own is not axes]
    assert labels == [f"contribution (raw), {unit} of the output"]


def test_shares_are_said_not_to_compare_layers(make_relevance: Make) -> None:
    frame = make_relevance()
    for own, told in ((frame, True), (frame.drop(columns="raw"), False)):
        figure = relevance_map(own)
        assert figure is not None
        assert ("Shares compare the heads of a layer, not layers" in figure.texts[1].get_text()) == told
    assert raw_map(frame.drop(columns="raw")) is None
    whole = raw_map(frame)
    assert whole is not None
    assert not any("Grey" in text.get_text() for text in whole.texts)
    without = raw_map(frame.assign(raw=frame["raw"].where(frame["layer"] > 0)))
    assert without is not None
    assert any(
        "Grey: without a path of its own to the target." in t.get_text().replace("\n", " ") for t in without.texts
    )
    both = raw_map(pd.concat([frame, make_relevance("other")]))
    assert both is not None
    assert "Models with other targets have other units" in both.texts[1].get_text()


def test_outliers_do_not_wash_out_the_rest(make_relevance: Make) -> None:
    frame = make_relevance().assign(relevance=np.tile([0.05, 0.1], 36))
    frame.loc[[3, 4], "relevance"] = [5e3, -70.0]
    figure = relevance_map(frame)
    (axes,) = panels(figure)
    low, high = mesh(axes).get_clim()
    assert -low == high <= 0.41
    assert words(axes)[0, 3].startswith("5e+03\n")
    assert words(axes)[0, 4].startswith("−70\n")
    assert figure is not None
    assert (
        figure.texts[1].get_text().replace("\n", " ").startswith("Beyond the ends of the scale: 2 heads, up to 5e+03. ")
    )
    usual = relevance_map(make_relevance())
    assert usual is not None
    assert "Beyond the ends" not in usual.texts[1].get_text()


def test_only_the_rule_that_was_asked_for_is_drawn(make_relevance: Make) -> None:
    frame = make_relevance(rules=("taylor", "epsilon"))
    figure = relevance_map(frame)
    (axes,) = panels(figure)
    np.testing.assert_array_equal(np.asarray(mesh(axes).get_array()).ravel(), frame["relevance"][:72])
    assert figure is not None
    assert figure.texts[0].get_text() == "Relevance of attention heads (rule taylor, magnitudes, target class)"
    note = figure.texts[1].get_text().replace("\n", " ")
    assert "Magnitudes: this rule does not tell which heads work against the target. Shares compare" in note
    assert note.endswith("need not be symmetric.")


def test_one_head_per_layer(make_relevance: Make) -> None:
    frame = make_relevance(shapes={"encoder": [1] * 3}).assign(relevance=1.0, ci_low=1.0, ci_high=1.0)
    (axes,) = panels(relevance_map(frame))
    assert set(words(axes).values()) == {"1.000\n±0.000"}
    assert pale(axes) == set()
    assert mesh(axes).get_clim() == (-1.0, 1.0)


def test_nothing_to_draw(make_relevance: Make) -> None:
    frame = make_relevance()
    assert relevance_map(frame.assign(relevance=np.nan)) is None
    assert relevance_map(frame.iloc[:0]) is None
    assert relevance_map(frame.drop(columns="rule")) is None


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("name", rest_slow(HOSTILE))
def test_any_name_can_be_drawn(make_relevance: Make, name: str) -> None:
    figure = relevance_map(make_relevance(name, {"encoder": [2]}, rules=(name,)))
    assert figure is not None
    figure.canvas.draw()
    check_words(figure, name)
