from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from headlens.analyses.classify.metric_declarations import registered_declarations
from headlens.plots.style import MISSING

Make = Callable[..., pd.DataFrame]
DECLARED = {own.name: own for own in registered_declarations()}
entropy_map, rare_map = DECLARED["entropy"].figure, DECLARED["rare"].figure


def confidence_map(frames: Mapping[str, pd.DataFrame]) -> Figure | None:
    return DECLARED["confidence"].figure(
        pd.concat([frame.assign(model=name) for name, frame in frames.items()], ignore_index=True)
    )


THREE = {"encoder": [8] * 6, "decoder": [8] * 6, "cross": [8] * 6}


def panels(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return [axes for axes in figure.axes if axes.get_xlabel() == "head"]


def bars(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return [axes for axes in figure.axes if axes.get_xlabel() != "head"]


def mesh(axes: Axes) -> QuadMesh:
    """The coloured cells; the ones before are the grey ground."""
    found = axes.collections[-1]
    assert isinstance(found, QuadMesh)
    return found


def shown(axes: Axes) -> np.ma.MaskedArray:
    return np.ma.asarray(mesh(axes).get_array())


def test_confidence_of_two_models_on_one_scale(make_heads: Make) -> None:
    frames = {"first": make_heads("x"), "second": make_heads("y", {"encoder": [12] * 12}, seed=1)}
    figure = confidence_map(frames)
    drawn = panels(figure)
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in drawn]
    kinds = ("separators left out", "all tokens", "all tokens − separators left out")
    assert titles == [f"{model}, encoder: {kind}" for model in frames for kind in kinds]
    values = [shown(axes).ravel() for axes in drawn]
    for number, frame in enumerate(frames.values()):
        without, everywhere, apart = values[3 * number : 3 * number + 3]
        np.testing.assert_array_equal(without, frame["confidence"])
        np.testing.assert_array_equal(everywhere, frame["confidence_all"])
        np.testing.assert_allclose(apart, frame["confidence_all"] - frame["confidence"])
    limits = [mesh(axes).get_clim() for axes in drawn]
    assert limits[:2] == limits[3:5] == [(0.0, 1.0)] * 2
    assert limits[2] == limits[5]
    assert limits[2][0] == -limits[2][1]
    labels = [b.get_ylabel().replace("\n", " ") for b in bars(figure)]
    assert labels == ["confidence (mean largest weight)", "difference of confidence"]


@pytest.mark.parametrize(("apart", "end"), [(0.02, 0.1), (0.4, 0.4)])
def test_small_differences_of_confidence_stay_pale(make_heads: Make, apart: float, end: float) -> None:
    frame = make_heads(shapes={"encoder": [4]}).assign(confidence=0.3, confidence_all=0.3 + apart)
    low, high = mesh(panels(confidence_map({"a": frame}))[2]).get_clim()
    assert (low, high) == pytest.approx((-end, end))


def test_three_stacks_give_three_panels_each(make_heads: Make) -> None:
    drawn = panels(confidence_map({"mt": make_heads("mt", THREE)}))
    assert [axes.get_title(loc="left").split(":")[0] for axes in drawn[::3]] == [
        "mt, encoder",
        "mt, decoder",
        "mt, cross",
    ]
    assert len(drawn) == 9


def test_a_missing_value_is_grey_and_a_missing_head_white(make_heads: Make) -> None:
    frame = make_heads(shapes={"encoder": [3, 1]})
    frame.loc[1, "confidence"] = np.nan
    axes = panels(confidence_map({"demo": frame}))[0]
    ground = np.ma.asarray(axes.collections[0].get_array())
    assert ground.mask.tolist() == [[False, False, False], [False, True, True]]
    assert shown(axes).mask.tolist() == [[False, True, False], [False, True, True]]
    assert to_hex(axes.collections[0].get_cmap()(0)) == MISSING.lower()
    assert to_hex(axes.get_facecolor()) == "#ffffff"


@pytest.mark.parametrize("draw", [rare_map, entropy_map, lambda f: confidence_map({"a": f})])
def test_nothing_to_draw_is_none(make_heads: Make, draw: Callable[[pd.DataFrame], Figure | None]) -> None:
    columns = ["rare_top1", "rare_top2", "entropy", "entropy_norm", "confidence", "confidence_all"]
    assert draw(make_heads().assign(**dict.fromkeys(columns, np.nan))) is None
    assert draw(make_heads().assign(**dict.fromkeys(columns))) is None
    assert draw(make_heads().drop(columns=columns)) is None
    assert draw(make_heads().iloc[:0]) is None


def test_rare_map_names_the_chance_of_every_panel_and_shares_its_scale(make_heads: Make) -> None:
    frame = make_heads("mt", {"encoder": [2], "cross": [2]}).assign(rare_top1=0.1, rare_top2=0.4)
    chances = frame["stack"].map({"encoder": 0.0833, "cross": 0.125})
    figure = rare_map(frame.assign(rare_chance=chances, rare_chance2=2 * chances))
    assert [mesh(axes).get_clim() for axes in panels(figure)] == [(0.0, 1.0)] * 4
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in panels(figure)]
    assert titles == [
        "mt, encoder: the rarest word (chance level 0.083)",
        "mt, encoder: one of the two rarest (chance level 0.167)",
        "mt, cross: the rarest word (chance level 0.125)",
        "mt, cross: one of the two rarest (chance level 0.250)",
    ]
    assert bars(figure)[0].get_ylabel().replace("\n", " ") == "share of query words"
    without = rare_map(frame.assign(rare_chance=np.nan))
    assert not [axes for axes in panels(without) if "chance" in axes.get_title(loc="left")]


@pytest.mark.parametrize(
    "recorded", [{}, {"chance": "coreference_nearest", "chance_name": "always the nearest mention"}]
)
def test_a_map_names_all_baselines_of_the_role(make_heads: Make, recorded: dict[str, str]) -> None:
    """Any of them may be the best one on a corpus; runs of earlier versions recorded one as chance."""
    levels = {"coreference_nearest": 0.208, "coreference_same_word": 0.566, "coreference_null": 0.07, "mentions": 53.0}
    declared = DECLARED["coreference"]
    columns = tuple(replace(own, **recorded) if own.panel else own for own in declared.columns)
    figure = replace(declared, columns=columns).figure(make_heads().assign(coreference=0.5, **levels))
    (title,) = (axes.get_title(loc="left").replace("\n", " ") for axes in panels(figure))
    assert (
        "(choosing the nearest mention 0.208, choosing the same word 0.566, uniform attention 0.070, n = 53)" in title
    )


def test_models_of_other_sizes_have_their_panels_below_each_other(make_heads: Make) -> None:
    frames = {"large": make_heads("large", {"encoder": [12] * 6}), "small": make_heads("small", {"encoder": [2] * 2})}
    figure = confidence_map(frames)
    lefts = [round(axes.get_position().x0, 6) for axes in panels(figure)]
    assert lefts[:3] == lefts[3:]


def test_what_a_stack_cannot_have_is_not_drawn(make_heads: Make) -> None:
    frame = make_heads("mt", {"encoder": [2], "cross": [2]})
    frame.loc[frame["stack"] == "cross", "rare_top1"] = np.nan
    titles = [axes.get_title(loc="left") for axes in panels(rare_map(frame))]
    assert [" ".join(title.split()).split(" (")[0] for title in titles] == [
        "mt, encoder: the rarest word",
        "mt, encoder: one of the two rarest",
        "mt, cross: one of the two rarest",
    ]


def test_entropy_is_drawn_as_a_share(make_heads: Make) -> None:
    figure = entropy_map(make_heads())
    assert [mesh(axes).get_clim() for axes in panels(figure)] == [(0.0, 1.0)]
    assert [b.get_ylabel().replace("\n", " ") for b in bars(figure)] == ["entropy / log(number of keys)"]


def test_cells_hold_numbers_where_there_is_room(make_heads: Make) -> None:
    frame = make_heads(shapes={"encoder": [4]}).assign(entropy_norm=[0.004, 0.52, 0.996, np.nan])
    (axes,) = panels(entropy_map(frame))
    assert [t.get_text() for t in axes.texts] == [".00", ".52", "1.0"]
    assert not [t for axes in panels(entropy_map(make_heads(shapes={"encoder": [64] * 32}))) for t in axes.texts]


def test_a_column_of_zeros_can_be_drawn(make_heads: Make) -> None:
    figure = entropy_map(make_heads().assign(entropy=0.0, entropy_norm=0.0))
    assert mesh(panels(figure)[0]).get_clim() == (0.0, 1.0)
