from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from drawn_maps import mesh, panels, words_fit_their_cells
from matplotlib.colors import to_hex
from tiers import rest_slow

from headlens.analyses.classify.role_map import relevance_roles
from headlens.plots.role_colours import COLOURS, family
from headlens.plots.style import drawn_for

Make = Callable[..., pd.DataFrame]
STACKS = {"encoder": [8] * 2, "decoder": [8] * 2, "cross": [8] * 2}


def with_relevance(make_heads: Make, model: str = "demo", shapes: dict[str, list[int]] | None = None) -> pd.DataFrame:
    heads = make_heads(model, shapes or {"encoder": [3, 2]})
    return heads.assign(relevance=np.linspace(-0.4, 0.9, len(heads)))


def test_every_head_is_at_the_same_place_of_three_maps(make_heads: Make) -> None:
    heads = with_relevance(make_heads)
    drawn = panels(relevance_roles(heads.sample(frac=1, random_state=0)))
    titles = [axes.get_title(loc="left") for axes in drawn]
    assert titles == ["demo, encoder: relevance", "confidence", "strongest role"]
    for axes, column in zip(drawn, ("relevance", "confidence"), strict=False):
        cells = np.ma.asarray(mesh(axes).get_array()).reshape(2, 3)
        assert np.ma.getmaskarray(cells).tolist() == [[False] * 3, [False, False, True]]
        for layer, head, value in heads[["layer", "head", column]].itertuples(index=False):
            assert cells[layer, head] == value
    roles = mesh(drawn[2])
    roles.update_scalarmappable()
    colours = roles.get_facecolor().reshape(2, 3, 4)
    for layer, head, role in heads[["layer", "head", "role"]].itertuples(index=False):
        assert to_hex(colours[layer, head]) == COLOURS[family(role)].lower()
    assert len({axes.get_xlim() for axes in drawn}) == len({axes.get_ylim() for axes in drawn}) == 1
    assert len({round(axes.get_position().y0, 6) for axes in drawn}) == 1


@pytest.mark.parametrize("width", rest_slow(["full", "column"], ["column"]))
def test_one_headline_two_scales_and_a_legend(make_heads: Make, width: str) -> None:
    with drawn_for(width):
        figure = relevance_roles(with_relevance(make_heads, shapes={"encoder": [12] * 6}))
    assert figure is not None
    assert "Relevance, confidence and roles of attention heads" in figure.texts[0].get_text().replace("\n", " ")
    bars = [axes for axes in figure.axes if axes.get_xlabel() != "head"]
    # From left to right, in a column from the top.
    bars.sort(key=lambda axes: (-round(axes.get_position().y0, 1), axes.get_position().x0))
    assert [axes.get_ylabel().replace("\n", " ") for axes in bars] == [
        "share of the layer's relevance",
        "confidence (mean largest weight)",
    ]
    (legend,) = figure.legends
    assert {"positional", "syntactic", "no role"} <= {text.get_text() for text in legend.get_texts()}
    figure.canvas.draw()
    lowest = min(axes.get_tightbbox().y0 for axes in panels(figure))
    assert legend.get_window_extent().y1 <= lowest
    assert legend.get_window_extent().y0 >= 0


@pytest.mark.parametrize("shapes", rest_slow([{"encoder": [8, 8]}, {"encoder": [12] * 6}, STACKS]))
def test_roles_are_written_into_narrow_cells(make_heads: Make, shapes: dict[str, list[int]]) -> None:
    role = "syntactic(advmod head->dep)"
    figure = relevance_roles(with_relevance(make_heads, shapes=shapes).assign(role=role))
    assert figure is not None
    for axes in panels(figure)[2::3]:
        assert words_fit_their_cells(axes, 2)


@pytest.mark.slow
def test_stacks_and_models_stand_below_each_other(make_heads: Make) -> None:
    both = [with_relevance(make_heads, name, STACKS) for name in ("one", "two")]
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in panels(relevance_roles(pd.concat(both)))]
    names = [f"{model}, {stack}" for model in ("one", "two") for stack in STACKS]
    assert titles == [text for name in names for text in (f"{name}: relevance", "confidence", "strongest role")]
    # A model without relevance has no row.
    without = pd.concat([both[0], both[1].assign(relevance=np.nan)])
    assert len(panels(relevance_roles(without))) == 9


def test_without_one_of_the_three_there_is_no_figure(make_heads: Make) -> None:
    heads = with_relevance(make_heads)
    assert relevance_roles(heads.assign(relevance=np.nan)) is None
    assert relevance_roles(heads.drop(columns="confidence")) is None
    assert relevance_roles(heads.drop(columns="role")) is None
    assert relevance_roles(heads.iloc[:0]) is None


@pytest.mark.parametrize(("rule", "lowest"), [("epsilon", -0.4), ("taylor", 0.0)])
def test_magnitudes_have_no_colours_below_0(make_heads: Make, rule: str, lowest: float) -> None:
    heads = make_heads(shapes={"encoder": [3] * 2}).assign(relevance=[0.1, 0.3, 0.4, 0.2, 0.2, 0.4])
    relevance = heads[["model", "stack", "layer", "head", "relevance"]].assign(rule=rule, target="class", raw=1.0)
    figure = relevance_roles(heads, relevance)
    assert figure is not None
    assert mesh(panels(figure)[0]).get_clim() == pytest.approx((lowest, 0.4))
    assert ("magnitudes" in figure.texts[0].get_text()) == (rule == "taylor")
