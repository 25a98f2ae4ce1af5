from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.analyses.classify.position_figure import offset_profile, positional_map
from headlens.roles.even_attention import even_stacks

Make = Callable[..., pd.DataFrame]


def test_positional_map_writes_offsets_on_shares(make_heads: Make) -> None:
    frame = make_heads(shapes={"encoder": [2, 2]})
    frame = frame.assign(positional_share=[0.1, 0.95, 0.2, np.nan], positional_offset=[-1.0, 2.0, 3.0, np.nan])
    frame = frame.assign(self_share=[0.05, 0.0, 0.5, np.nan])
    figure = positional_map(frame)
    assert figure is not None
    axes = figure.axes[0]
    assert [(t.get_position(), t.get_text()) for t in axes.texts] == [
        ((0.5, 0.5), "−1"),
        ((1.5, 0.5), "+2"),
        ((0.5, 1.5), "0"),
    ]
    # dark cells carry white letters, light ones black
    assert [t.get_color() for t in axes.texts] == ["white", "black", "black"]
    # A head that looks at its own token most often is at offset 0, whatever the most frequent other one is.
    np.testing.assert_array_equal(np.asarray(axes.collections[-1].get_array()).ravel()[:3], [0.1, 0.95, 0.5])
    assert axes.collections[-1].get_clim() == (0.0, 1.0)
    assert positional_map(frame.assign(positional_share=np.nan)) is None


def test_positions_have_the_level_of_uniform_attention_and_say_that_a_stack_is_even(
    make_heads: Make, make_positions: Make
) -> None:
    shapes = {"encoder": [2, 2]}
    told = "encoder: attention is nearly even, offsets tell little"
    heads = make_heads(shapes=shapes).assign(positional_share_null=0.05, self_share_null=0.071, entropy_norm=0.995)
    figure = positional_map(heads)
    assert figure is not None
    assert told in " ".join(str(figure.get_suptitle()).split())
    assert "(uniform attention 0.071)" in " ".join(figure.axes[0].get_title(loc="left").split())
    profile = offset_profile(make_positions(shapes=shapes), even_stacks(heads))
    assert profile is not None
    assert told in " ".join(str(profile.get_suptitle()).split())
    plain = positional_map(heads.assign(entropy_norm=0.5))
    assert plain is not None
    assert "even" not in str(plain.get_suptitle())


def test_the_profile_has_one_line_per_head_and_layer_zero_at_the_bottom(make_positions: Make) -> None:
    frame = make_positions(shapes={"encoder": [3, 1, 2]})
    figure = offset_profile(frame.sample(frac=1, random_state=0))
    assert figure is not None
    axes = figure.axes[0]
    drawn = np.ma.asarray(axes.collections[0].get_array())
    np.testing.assert_array_equal(drawn, frame["share"].to_numpy().reshape(6, 19))
    assert axes.get_ylim() == (0, 6)
    assert dict(zip(axes.get_yticks(), [t.get_text() for t in axes.get_yticklabels()], strict=True)) == {
        1.5: "0",
        3.5: "1",
        5.0: "2",
    }
    assert [t.get_text() for t in axes.get_xticklabels()] == ["<−8", "−4", "0", "+4", ">8"]
    assert [float(x) for x in axes.get_xticks()] == [0.5, 5.5, 9.5, 13.5, 18.5]


def test_uniform_attention_stands_below_the_heads(make_positions: Make) -> None:
    frame = make_positions(shapes={"encoder": [3, 1, 2]})
    even = np.linspace(0, 0.1, 19)
    apart = offset_profile(frame.assign(share_null=np.repeat(np.arange(6) / 10, len(even))))
    assert "uniform" not in [label.get_text() for label in apart.axes[0].get_yticklabels()], "layers differ in it"
    figure = offset_profile(frame.assign(share_null=np.tile(even, 6)))
    assert figure is not None
    axes = figure.axes[0]
    drawn = np.asarray(axes.collections[0].get_array())
    np.testing.assert_allclose(drawn[:2], [even, even])
    np.testing.assert_array_equal(drawn[2:], frame["share"].to_numpy().reshape(6, 19))
    labels = dict(zip(axes.get_yticks(), [t.get_text() for t in axes.get_yticklabels()], strict=True))
    assert labels == {1.0: "uniform", 3.5: "0", 5.5: "1", 7.0: "2"}
    assert head_numbers(figure) == [(2, "0"), (3, "1"), (4, "2"), (5, "0"), (6, "0"), (7, "1")]


@pytest.mark.parametrize(("stack", "later", "dotted"), [("decoder", 0.0, 1), ("decoder", 0.1, 0), ("encoder", 0.0, 0)])
def test_what_causal_heads_cannot_see_is_dotted(make_positions: Make, stack: str, later: float, dotted: int) -> None:
    frame = make_positions(shapes={stack: [2]})
    frame.loc[~frame["offset"].str.startswith(("-", "<", "0")), "share"] = later
    figure = offset_profile(frame)
    assert figure is not None
    axes = figure.axes[0]
    drawn = np.ma.asarray(axes.collections[0].get_array())
    assert np.ma.getmaskarray(drawn).sum() == 2 * 9 * dotted
    assert [patch.get_x() for patch in axes.patches if patch.get_hatch()] == [10] * dotted
    assert ("dotted: later tokens" in figure.get_suptitle()) == bool(dotted)


def head_numbers(figure: Figure | None) -> list[tuple[int, str]]:
    assert figure is not None
    figure.canvas.draw()
    axes = figure.axes[0]
    labels = axes.get_yticklabels(minor=True)
    return [(int(t.get_position()[1]), t.get_text()) for t in labels]


def test_lines_are_numbered(make_positions: Make) -> None:
    found = head_numbers(offset_profile(make_positions(shapes={"encoder": [3, 1, 2]})))
    assert found == [(0, "0"), (1, "1"), (2, "2"), (3, "0"), (4, "0"), (5, "1")]


@pytest.mark.parametrize("shape", rest_slow([(6, 12), (12, 12), (24, 16), (80, 64)]))
def test_numbers_of_lines_are_right_and_do_not_touch(make_positions: Make, shape: tuple[int, int]) -> None:
    layers, heads = shape
    figure = offset_profile(make_positions(shapes={"decoder": [heads] * layers}))
    found = head_numbers(figure)
    assert all(float(label) == place % heads for place, label in found)
    assert len(found) >= layers or shape == (80, 64)
    assert figure is not None
    boxes = [t.get_window_extent() for t in figure.axes[0].get_yticklabels(minor=True) if t.get_text()]
    assert all(low.y1 <= high.y0 for low, high in pairwise(sorted(boxes, key=lambda b: b.y0)))
    layer_boxes = [t.get_window_extent() for t in figure.axes[0].get_yticklabels() if t.get_text()]
    if boxes:
        assert max(b.x1 for b in layer_boxes) <= min(b.x0 for b in boxes)
    label = figure.axes[0].yaxis.label.get_window_extent()
    assert label.x0 >= 0
    assert label.x1 <= min(b.x0 for b in layer_boxes)


def test_offsets_may_be_numbers(make_positions: Make) -> None:
    frame = make_positions(shapes={"encoder": [1]})
    inner = frame[~frame["offset"].isin(["<-8", ">8"])]
    figure = offset_profile(inner.assign(offset=inner["offset"].astype(int)))
    assert figure is not None
    drawn = np.ma.asarray(figure.axes[0].collections[0].get_array())
    np.testing.assert_array_equal(drawn[0, 1:-1], inner["share"])
    assert drawn.mask[0].tolist() == [True, *[False] * 17, True]


def test_profiles_of_stacks_stand_side_by_side_on_one_scale(make_positions: Make) -> None:
    figure = offset_profile(make_positions("mt", {"encoder": [8] * 6, "decoder": [8] * 6, "cross": [8] * 6}))
    assert figure is not None
    drawn = [axes for axes in figure.axes if axes.get_xlabel().startswith("offset")]
    assert [axes.get_title(loc="left") for axes in drawn] == ["mt, encoder", "mt, decoder", "mt, cross"]
    assert {axes.collections[0].get_clim() for axes in drawn} == {(0.0, 1.0)}


def test_no_shares_nothing_to_draw(make_positions: Make) -> None:
    assert offset_profile(make_positions().assign(share=np.nan)) is None
    assert offset_profile(make_positions().iloc[:0]) is None
