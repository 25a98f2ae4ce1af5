from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.classify.mass_bars import mass_bars

Make = Callable[..., pd.DataFrame]


def test_bars_are_layer_means_and_dots_are_heads(make_heads: Make) -> None:
    frame = make_heads(shapes={"encoder": [4, 1, 3]})
    figure = mass_bars(frame)
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "to [CLS]",
        "to [SEP]",
        "to punctuation",
        "to itself",
        "to the previous token",
        "to the next token",
    ]
    axes = figure.axes[0]
    means = [frame.loc[frame["layer"] == layer, "to_cls"].mean() for layer in range(3)]
    np.testing.assert_allclose([p.get_height() for p in axes.patches], means)
    dots = axes.lines[0]
    np.testing.assert_array_equal(dots.get_ydata(), frame["to_cls"])
    assert np.abs(np.asarray(dots.get_xdata()) - frame["layer"]).max() < 0.5
    limits = {a.get_ylim() for a in figure.axes}
    assert len(limits) == 1
    assert limits.pop()[1] >= frame[["to_cls", "to_sep", "to_punct", "to_self", "to_prev", "to_next"]].to_numpy().max()


def test_stacks_are_columns(make_heads: Make) -> None:
    shapes = {"encoder": [2] * 2, "decoder": [2] * 2, "cross": [2] * 2}
    figure = mass_bars(make_heads("mt", shapes).assign(to_prev=np.nan, to_next=np.nan, to_punct=np.nan))
    assert figure is not None
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in figure.axes]
    assert titles[:3] == ["mt, encoder to [CLS]", "mt, decoder to [CLS]", "mt, cross to [CLS]"]
    assert titles[3:] == ["to [SEP]"] * 3 + ["to itself"] * 3
    assert [axes.get_xlabel() for axes in figure.axes] == [""] * 6 + ["layer"] * 3


def test_a_target_that_a_stack_lacks_has_no_panel(make_heads: Make) -> None:
    frame = make_heads("mt", {"encoder": [2], "decoder": [2], "cross": [2]})
    frame.loc[frame["stack"] == "decoder", "to_cls"] = np.nan
    frame.loc[frame["stack"] == "cross", "to_next"] = np.nan
    figure = mass_bars(frame)
    assert figure is not None
    figure.canvas.draw()
    assert len(figure.axes) == 6 * 3 - 2
    assert all(axes.patches for axes in figure.axes)
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in figure.axes]
    # every column still says what it is, on top, and what its ticks are, at the bottom
    assert titles[:4] == ["mt, encoder to [CLS]", "mt, cross to [CLS]", "to [SEP]", "mt, decoder to [SEP]"]
    with_label = [axes.get_title(loc="left") for axes in figure.axes if axes.get_xlabel()]
    assert with_label == ["to the previous token", "to the next token", "to the next token"]
    for axes in figure.axes:
        first = axes.get_subplotspec().colspan.start == 0  # type: ignore[union-attr]
        assert (axes.get_ylabel() == "mass") == first


@pytest.mark.parametrize(
    ("same", "expected"),
    [
        ({"to_bos": "to_cls", "to_eos": "to_sep"}, ["to [CLS] = BOS", "to [SEP] = EOS"]),
        ({"to_bos": "to_cls"}, ["to [CLS] = BOS", "to [SEP]"]),
        ({"to_cls": None, "to_sep": None, "to_bos": "x", "to_eos": "x"}, ["to BOS = EOS"]),
        ({"to_bos": "to_cls", "to_eos": "to_cls", "to_sep": None}, ["to [CLS] = BOS = EOS"]),
        ({"to_bos": "to_cls", "to_eos": "to_cls", "to_sep": "to_cls"}, ["to [CLS] = BOS", "to [SEP] = EOS"]),
        ({"to_bos": "x"}, ["to [CLS]", "to [SEP]", "to BOS"]),
    ],
)
def test_a_token_with_two_names_has_one_panel(
    make_heads: Make, same: dict[str, str | None], expected: list[str]
) -> None:
    frame = make_heads().assign(x=0.25)
    frame = frame.assign(**{name: frame[other] if other else np.nan for name, other in same.items()})
    figure = mass_bars(frame)
    assert figure is not None
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [*expected, "to punctuation", "to itself", "to the previous token", "to the next token"]


def test_an_odd_number_of_targets_leaves_no_empty_axes(make_heads: Make) -> None:
    figure = mass_bars(make_heads().assign(to_next=np.nan))
    assert figure is not None
    assert len(figure.axes) == 5
    figure.canvas.draw()


def test_nothing_to_draw(make_heads: Make) -> None:
    frame = make_heads()
    assert mass_bars(frame.drop(columns=[c for c in frame if c.startswith("to_")])) is None
    assert mass_bars(frame.iloc[:0]) is None
