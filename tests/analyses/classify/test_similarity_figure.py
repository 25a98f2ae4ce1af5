import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from headlens.analyses.classify.similarity_figure import similarity_map
from headlens.plots.role_colours import COLOURS, family

Make = Callable[..., pd.DataFrame]


def pairs_of(heads: pd.DataFrame) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    rows = [
        (model, stack, *a, *b, rng.uniform(0.1, 0.8))
        for (model, stack), part in heads.groupby(["model", "stack"])
        for a, b in combinations(part[["layer", "head"]].itertuples(index=False, name=None), 2)
    ]
    columns = ["model", "stack", "layer", "head", "other_layer", "other_head", "js_distance"]
    return pd.DataFrame(rows, columns=columns)


def test_the_matrix_is_in_the_order_of_the_leaves(make_heads: Make) -> None:
    heads = make_heads(shapes={"encoder": [4, 3, 4]})
    pairs = pairs_of(heads)
    figure = similarity_map(pairs, heads)
    assert figure is not None
    drawn = np.asarray(figure.axes[0].collections[0].get_array())
    order = [tuple(k) for k in heads.sort_values("similarity_leaf")[["layer", "head"]].to_numpy().tolist()]
    known = {((r.layer, r.head), (r.other_layer, r.other_head)): r.js_distance for r in pairs.itertuples()}
    for i, first in enumerate(order):
        for j, second in enumerate(order):
            expected = 0.0 if i == j else known.get((first, second), known.get((second, first)))
            assert drawn[i, j] == expected
    assert figure.axes[0].collections[0].get_clim() == (0.0, pytest.approx(math.sqrt(math.log(2))))
    assert figure.axes[0].get_xticklabels()[0].get_text() == f"{order[0][0]}.{order[0][1]}"


def test_points_have_the_colour_of_their_role_and_their_names(make_heads: Make) -> None:
    heads = make_heads(shapes={"encoder": [4] * 3})
    figure = similarity_map(pairs_of(heads), heads)
    assert figure is not None
    plane = figure.axes[1]
    points = plane.collections[0]
    np.testing.assert_array_equal(points.get_offsets(), heads[["similarity_x", "similarity_y"]])
    assert [to_hex(c) for c in points.get_facecolor()] == [COLOURS[family(r)].lower() for r in heads["role"]]
    named = heads[["layer", "head"]].itertuples(index=False)
    assert [t.get_text() for t in plane.texts] == [f"{layer}.{head}" for layer, head in named]


def test_heads_that_hardly_differ_look_alike(make_heads: Make) -> None:
    heads = make_heads(shapes={"encoder": [3] * 2})
    heads[["similarity_x", "similarity_y"]] *= 1e-3 / heads[["similarity_x", "similarity_y"]].abs().max()
    figure = similarity_map(pairs_of(heads).assign(js_distance=1e-3), heads)
    assert figure is not None
    assert figure.axes[0].collections[0].get_clim()[1] > 0.8
    assert np.ptp(figure.axes[1].get_xlim()) == np.ptp(figure.axes[1].get_ylim()) > 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("farthest", "lines"), [(0.1, 2), (0.099, 0)])
def test_heads_that_hardly_differ_are_not_divided(make_heads: Make, farthest: float, lines: int) -> None:
    heads = make_heads(shapes={"encoder": [3] * 2}).assign(similarity_cluster=[1, 1, 1, 2, 2, 2])
    heads["similarity_leaf"] = range(6)
    figure = similarity_map(pairs_of(heads).assign(js_distance=farthest), heads)
    assert figure is not None
    matrix = figure.axes[0]
    assert len(matrix.lines) == lines
    assert ("cluster" in matrix.get_xlabel()) == bool(lines)


def test_one_row_per_stack_and_missing_pairs_are_empty(make_heads: Make) -> None:
    heads = make_heads("mt", {"encoder": [3] * 2, "cross": [3] * 2})
    pairs = pairs_of(heads)
    figure = similarity_map(pairs.iloc[1:], heads)
    assert figure is not None
    maps = [axes for axes in figure.axes if axes.get_title(loc="left").endswith("distances")]
    assert [axes.get_title(loc="left") for axes in maps] == ["mt, encoder: distances", "mt, cross: distances"]
    masks = [np.ma.getmaskarray(axes.collections[0].get_array()).sum() for axes in maps]
    assert sorted(masks) == [0, 2]


@pytest.mark.slow
def test_every_matrix_has_its_colour_bar_at_its_side(make_heads: Make) -> None:
    heads = make_heads("mt", {"encoder": [3] * 2, "decoder": [3], "cross": [3] * 2})
    figure = similarity_map(pairs_of(heads), heads)
    assert figure is not None
    maps = [axes for axes in figure.axes if axes.get_title(loc="left").endswith("distances")]
    bars = [axes for axes in figure.axes if axes.get_ylabel().startswith("Jensen")]
    assert len(maps) == len(bars) == 3
    for matrix, bar in zip(maps, bars, strict=True):
        own, side = matrix.get_position(), bar.get_position()
        assert (side.y0, side.y1) == pytest.approx((own.y0, own.y1))
        assert own.x1 < side.x0 < own.x1 + 0.05


def test_heads_without_a_leaf_are_left_out(make_heads: Make) -> None:
    heads = make_heads(shapes={"encoder": [3] * 2})
    pairs = pairs_of(heads)
    heads.loc[0, ["similarity_leaf", "similarity_x", "similarity_y"]] = np.nan
    figure = similarity_map(pairs, heads.drop(columns="role"))
    assert figure is not None
    figure.canvas.draw()
    assert np.asarray(figure.axes[0].collections[0].get_array()).shape == (5, 5)
    assert len(figure.axes[1].texts) == 5


@pytest.mark.parametrize("column", ["similarity_leaf", "js_distance"])
def test_nothing_to_draw(make_heads: Make, column: str) -> None:
    heads = make_heads(shapes={"encoder": [3]})
    pairs = pairs_of(heads)
    if column in heads:
        heads[column] = np.nan
    else:
        pairs[column] = np.nan
    assert similarity_map(pairs, heads) is None
    assert similarity_map(pairs.iloc[:0], heads) is None
