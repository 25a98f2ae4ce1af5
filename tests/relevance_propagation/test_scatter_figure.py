from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from drawn_words import check_words, fits_a_page
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from scipy import stats
from tiers import rest_slow

from headlens.plots.role_colours import COLOURS, family
from headlens.relevance_propagation.scatter_figure import confidence_against_relevance, rule_agreement

Make = Callable[..., pd.DataFrame]
MARIAN = {"encoder": [8] * 6, "decoder": [8] * 6, "cross": [8] * 6}


def offsets(axes: Axes) -> set[tuple[float, float]]:
    return {(float(x), float(y)) for own in axes.collections for x, y in np.asarray(own.get_offsets())}


def pairs(x: pd.Series, y: pd.Series) -> set[tuple[float, float]]:
    return set(zip(x.to_list(), y.to_list(), strict=True))


def heads_of(make: Make, model: str = "demo", shapes: dict[str, list[int]] | None = None) -> pd.DataFrame:
    heads = make(model, shapes)
    return heads.assign(relevance=np.linspace(-0.05, 0.2, len(heads)))


def within_layers(rows: pd.DataFrame, first: str, second: str) -> float:
    """The mean over layers of Spearman's correlation between the heads of a layer."""
    own = [stats.spearmanr(layer[first], layer[second]).statistic for _, layer in rows.groupby("layer")]
    return float(np.mean(own))


def test_dots_are_the_heads_in_the_colour_of_their_role(make_heads: Make) -> None:
    heads = heads_of(make_heads)
    figure = confidence_against_relevance(heads)
    assert figure is not None
    (axes,) = figure.axes
    (dots,) = axes.collections
    np.testing.assert_array_equal(dots.get_offsets(), heads[["confidence", "relevance"]])
    assert [to_hex(c) for c in dots.get_facecolor()] == [COLOURS[family(r)].lower() for r in heads["role"]]
    labels = [t.get_text() for t in figure.legends[0].get_texts()]
    assert set(labels) == {"no role" if f == "none" else f for f in map(family, heads["role"])} | {"equal share"}
    assert [float(line.get_ydata()[0]) for line in axes.lines] == [1 / 12, 0.0]  # type: ignore[index, arg-type]


def test_the_title_has_the_rank_correlation(make_heads: Make) -> None:
    heads = heads_of(make_heads)
    heads.loc[5, "relevance"] = np.nan
    known = heads.drop(index=5)
    value = within_layers(known, "confidence", "relevance")
    figure = confidence_against_relevance(heads)
    assert figure is not None
    title = figure.axes[0].get_title(loc="left")
    assert title == f"demo, encoder\nSpearman within 6 layers {value:.2f} (71 heads)".replace("-", "−")


def test_a_correlation_of_nothing_has_no_sign(make_heads: Make) -> None:
    heads = make_heads(shapes={"encoder": [12] * 6})
    order = np.random.default_rng(195).permutation(72)
    heads = heads.assign(layer=0, head=np.arange(72), confidence=np.arange(72) / 72, relevance=order / 72)
    assert -0.005 < within_layers(heads, "confidence", "relevance") < 0
    figure = confidence_against_relevance(heads)
    assert figure is not None
    assert figure.axes[0].get_title(loc="left") == "demo, encoder\nSpearman within 1 layer 0.00 (72 heads)"


def test_the_most_relevant_heads_are_named(make_heads: Make) -> None:
    heads = heads_of(make_heads)
    heads.loc[17, "relevance"] = 0.5
    figure = confidence_against_relevance(heads)
    assert figure is not None
    assert [t.get_text() for t in figure.axes[0].texts] == ["1.5", "5.11", "5.10", "5.9", "5.8", "5.7"]


def test_what_lies_beyond_the_axis_is_a_triangle_at_its_edge(make_heads: Make) -> None:
    heads = heads_of(make_heads)
    heads.loc[[3, 4], "relevance"] = [300.0, -12.0]
    figure = confidence_against_relevance(heads)
    assert figure is not None
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert high < 1
    assert low > -1
    edge = {x: y for x, y in offsets(axes) if x in set(heads["confidence"][3:5])}
    assert edge[heads["confidence"][3]] == pytest.approx(high, abs=0.03 * (high - low))
    assert edge[heads["confidence"][4]] == pytest.approx(low, abs=0.03 * (high - low))
    assert len(axes.collections) == 3
    assert figure.legends[0].get_texts()[-1].get_text() == "beyond the axis"
    assert offsets(axes) >= pairs(heads["confidence"].drop([3, 4]), heads["relevance"].drop([3, 4]))


def test_stacks_of_a_model_stand_in_a_row_and_models_below_each_other(make_heads: Make) -> None:
    both = pd.concat([heads_of(make_heads, "mt", MARIAN), heads_of(make_heads, "bert")])
    figure = confidence_against_relevance(both)
    assert figure is not None
    titles = [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes]
    assert titles == ["mt, encoder", "mt, decoder", "mt, cross", "bert, encoder"]
    heights = [round(axes.get_position().y0, 6) for axes in figure.axes]
    assert heights[0] == heights[1] == heights[2] > heights[3]
    other = heads_of(make_heads, "b").assign(relevance=lambda own: own["relevance"] / 3)
    single = confidence_against_relevance(pd.concat([heads_of(make_heads, "a"), other]))
    assert single is not None
    assert single.axes[0].get_ylim() == single.axes[1].get_ylim()
    assert len({round(axes.get_position().y0, 6) for axes in single.axes}) == 1


@pytest.mark.parametrize("shapes", [{"encoder": [1]}, {"encoder": [1] * 2}])
def test_too_few_heads_have_no_correlation(make_heads: Make, shapes: dict[str, list[int]]) -> None:
    heads = make_heads("m", shapes).assign(relevance=1.0)
    figure = confidence_against_relevance(heads.drop(columns="role"))
    assert figure is not None
    figure.canvas.draw()
    assert figure.axes[0].get_title(loc="left") == f"m, encoder\n{len(heads)} head" + "s" * (len(heads) > 1)


def test_without_relevance_or_confidence_there_is_nothing_to_draw(make_heads: Make) -> None:
    assert confidence_against_relevance(make_heads()) is None
    assert confidence_against_relevance(make_heads().drop(columns="relevance")) is None
    assert confidence_against_relevance(heads_of(make_heads).assign(confidence=np.nan)) is None
    assert confidence_against_relevance(heads_of(make_heads).iloc[:0]) is None


SIZE = "magnitude of the share"


def test_every_other_rule_has_a_panel_with_the_same_heads(make_relevance: Make) -> None:
    frame = make_relevance("m", {"encoder": [4] * 5}, rules=("epsilon", "taylor", "gradxact"))
    # rows of other rules in another order, as long as they are about the same heads
    figure = rule_agreement(frame.iloc[::-1].sort_values("rule", key=lambda rule: rule != "epsilon", kind="stable"))
    assert figure is not None
    asked, gradxact, taylor = (
        frame[frame["rule"] == rule].reset_index(drop=True) for rule in ("epsilon", "gradxact", "taylor")
    )
    # Beside a rule without signs magnitudes are compared, as in correlations.csv.
    labels = [(axes.get_xlabel().replace("\n", " "), axes.get_ylabel().replace("\n", " ")) for axes in figure.axes]
    names = [(share, f"{share} under rule {rule}") for share, rule in (("share", "gradxact"), (SIZE, "taylor"))]
    assert labels == [(f"{share} under rule epsilon", other) for share, other in names]
    sizes = asked.assign(relevance=asked["relevance"].abs())
    for axes, own, other in zip(
        figure.axes, (asked, sizes), (gradxact["relevance"], taylor["relevance"].abs()), strict=True
    ):
        assert offsets(axes) == pairs(own["relevance"], other)
        value = within_layers(own.assign(other=other), "relevance", "other")
        expected = f"m, encoder\nSpearman within 5 layers {value:.2f} (20 heads)".replace("-", "−")
        assert axes.get_title(loc="left") == expected
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["same share under both rules"]


def test_rows_of_panels_are_models_and_stacks(make_relevance: Make) -> None:
    rules = ("epsilon", "taylor")
    both = pd.concat([make_relevance("mt", MARIAN, rules), make_relevance("bert", None, rules[:1])])
    figure = rule_agreement(both)
    assert figure is not None
    titles = [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes]
    assert titles == ["mt, encoder", "mt, decoder", "mt, cross"]
    assert fits_a_page(figure)


def test_outliers_of_either_rule_stand_at_the_edge(make_relevance: Make) -> None:
    frame = make_relevance(rules=("epsilon", "taylor"))
    frame["relevance"] = np.tile(np.linspace(-0.05, 0.2, 72), 2)
    frame.loc[[3, 80], "relevance"] = [-90.0, 4e4]
    figure = rule_agreement(frame)
    assert figure is not None
    (axes,) = figure.axes
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    assert max(map(abs, (left, right, low, high))) < 1
    assert all(left < x < right and low < y < high for x, y in offsets(axes))
    assert len(offsets(axes)) == 72
    words = ["same share under both rules", "beyond the axis"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == words


def test_one_rule_has_nothing_to_agree_with(make_relevance: Make) -> None:
    frame = make_relevance(rules=("epsilon", "taylor"))
    assert rule_agreement(make_relevance()) is None
    assert rule_agreement(frame.iloc[:0]) is None
    assert rule_agreement(frame.assign(relevance=frame["relevance"].where(frame["rule"] == "epsilon"))) is None


@pytest.mark.parametrize("name", rest_slow(HOSTILE))
def test_any_name_can_be_drawn(make_heads: Make, make_relevance: Make, name: str) -> None:
    shapes = {"encoder": [2] * 2}
    first = confidence_against_relevance(heads_of(make_heads, name, shapes).assign(role=name))
    second = rule_agreement(make_relevance(name, shapes, rules=(name, "other")))
    for figure in (first, second):
        assert figure is not None
        figure.canvas.draw()
        check_words(figure, name)
