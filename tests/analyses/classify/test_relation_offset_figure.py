"""The histogram of relative positions: shares by offset, the baseline among them, the best head beside it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.analyses.classify.position_figure import MOST, fixed_offset, relation_offset_figures, shares_by_offset
from headlens.plots.style import drawn_for
from headlens.tables.classify_tables import offsets_to

NOTHING = pd.DataFrame()


def offsets(counts: dict[str, dict[str, int]], model: str = "demo", stack: str = "encoder") -> pd.DataFrame:
    rows = [
        (model, stack, relation, direction, offset, n, n / sum(own.values()))
        for relation, own in counts.items()
        for direction in ("dep->head", "head->dep")
        for offset, n in own.items()
    ]
    return pd.DataFrame(rows, columns=["model", "stack", "relation", "direction", "offset", "n", "share"])


def syntax(accuracies: list[float], offset: int = 2, model: str = "demo") -> pd.DataFrame:
    rows = [
        (model, "encoder", 1, head, "nsubj", direction, accuracy, offset, 0.3)
        for direction, more in (("dep->head", 0.0), ("head->dep", 0.05))
        for head, accuracy in enumerate(np.array(accuracies) + more)
    ]
    names = ["model", "stack", "layer", "head", "relation", "direction", "accuracy", "baseline_offset", "baseline"]
    return pd.DataFrame(rows, columns=names)


def drawn(table: pd.DataFrame, scores: pd.DataFrame = NOTHING) -> Figure:
    ((name, figure),) = relation_offset_figures(table, scores)
    assert name == "relation_offsets"
    assert figure is not None
    return figure


def test_bars_are_the_shares_from_dependent_to_head() -> None:
    figure = drawn(offsets({"nsubj": {"2": 3, "1": 5, "-1": 2}, "obj": {"-2": 4, "<-63": 1}}))
    first, second = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["nsubj (n = 10)", "obj (n = 5)"]
    near, far, baseline = first.containers
    heights = {round(bar.get_x() + 0.4): bar.get_height() for bar in [*near, *far]}
    assert {place: height for place, height in heights.items() if height} == {2: 0.3, 1: 0.5, -1: 0.2}
    assert [(round(bar.get_x() + 0.4), bar.get_height()) for bar in baseline] == [(1, 0.5)]
    assert [text.get_text() for text in first.texts] == ["+1: 50%"]
    assert [text.get_text() for text in second.texts] == ["−2: 80%"]
    heights = {round(bar.get_x() + 0.4): bar.get_height() for bar in second.containers[1]}
    assert heights[-9] == 0.2


def test_the_baseline_is_that_of_syntax_and_the_best_head_stands_beside_it() -> None:
    """With --data-args baseline-corpus another offset than the most frequent one here is compared with."""
    (axes,) = drawn(offsets({"nsubj": {"2": 3, "1": 5}}), syntax([0.4, 0.75, np.nan])).axes
    assert [text.get_text() for text in axes.texts] == ["+2: 30%", "1.1: 75%"]
    assert [(round(bar.get_x() + 0.4), bar.get_height()) for bar in axes.containers[2]] == [(2, 0.3)]
    (line,) = axes.lines
    assert set(line.get_ydata()) == {0.75}


@pytest.mark.parametrize(
    ("stack", "offset", "accuracies", "is_named"),
    [
        ("decoder", 1, [0.0, 0.0], False),
        ("decoder", 1, [0.0, 0.1], True),
        ("decoder", -1, [0.0, 0.0], True),
        ("encoder", 1, [0.0, 0.0], True),
    ],
)
def test_later_words_are_dotted_for_causal_heads_and_none_of_them_is_the_best_that_sees_nothing(
    stack: str, offset: int, accuracies: list[float], *, is_named: bool
) -> None:
    table, scores = offsets({"nsubj": {"1": 5, "-1": 2}}, stack=stack), syntax(accuracies, offset).assign(stack=stack)
    figure = drawn(table, scores)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("later words, unseen by causal heads" in labels) == (stack == "decoder")
    hatched = [patch for patch in figure.axes[0].patches if patch.get_hatch() == "...."]
    assert [patch.get_x() for patch in hatched] == [0.5] * (stack == "decoder")
    assert any(": " in text.get_text() and "." in text.get_text() for text in figure.axes[0].texts) == is_named
    assert ("accuracy of the best head" in str(labels)) == is_named


def test_farther_ones_add_up_at_the_ends() -> None:
    found = shares_by_offset(offsets({"obj": {">63": 1, "12": 2, "9": 3, "-40": 3, "0": 1}}).iloc[:5])
    assert {offset: share for offset, share in found.items() if share} == pytest.approx({9: 0.6, -9: 0.3, 0: 0.1})
    # Of the ends nobody knows which offset it is.
    assert fixed_offset(found, NOTHING) == (0, pytest.approx(0.1))


def test_of_equal_offsets_the_nearer_one_then_the_left_one() -> None:
    shares = dict.fromkeys(range(-9, 10), 0.0) | {-2: 0.3, 1: 0.3, -1: 0.3}
    assert fixed_offset(shares, NOTHING) == (-1, 0.3)


def test_a_baseline_that_is_far_away_is_a_part_of_the_end() -> None:
    (axes,) = drawn(offsets({"nsubj": {"20": 3, "30": 2, "1": 5}}), syntax([0.4], offset=20)).axes
    _, far, baseline = axes.containers
    assert {round(bar.get_x() + 0.4): bar.get_height() for bar in far}[9] == pytest.approx(0.5)
    assert [(round(bar.get_x() + 0.4), bar.get_height()) for bar in baseline] == [(9, 0.3)]
    assert axes.texts[0].get_text() == "+20: 30%"


def test_the_most_frequent_relations_alone_and_the_first_model() -> None:
    many = {f"r{number}": {"1": number + 1} for number in range(MOST + 5)}
    table = pd.concat([offsets(many), offsets({"other": {"1": 999}}, "second")])
    titles = [axes.get_title(loc="left") for axes in drawn(table).axes]
    assert titles == [f"r{number} (n = {number + 1})" for number in range(MOST + 4, 4, -1)]


@pytest.mark.parametrize(("even", "shown"), [((), "demo, encoder"), ((("demo", "encoder"),), "second, encoder")])
def test_of_several_models_the_first_that_does_not_attend_evenly_is_drawn_and_named(
    even: tuple[tuple[str, str], ...], shown: str
) -> None:
    table = pd.concat([offsets({"nsubj": {"1": 5}}), offsets({"nsubj": {"1": 5}}, "second")])
    ((_, figure),) = relation_offset_figures(table, NOTHING, even)
    assert figure is not None
    title = " ".join(figure.get_suptitle().split())
    assert f"{shown}; of 2 models, the heads of one are shown" in title


def test_every_stack_has_a_figure() -> None:
    table = pd.concat([offsets({"nsubj": {"1": 5}}, stack=stack) for stack in ("decoder", "encoder")])
    found = dict(relation_offset_figures(table, NOTHING))
    assert list(found) == ["relation_offsets_encoder", "relation_offsets_decoder"]
    assert "demo, decoder" in str(found["relation_offsets_decoder"].get_suptitle())  # type: ignore[union-attr]
    assert list(relation_offset_figures(table.iloc[:0], NOTHING)) == []
    assert [figure for _, figure in relation_offset_figures(table[table["direction"] == "head->dep"], NOTHING)] == [
        None,
        None,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("width", rest_slow(["full", "column"], ["column"]))
def test_numbers_do_not_touch(width: str) -> None:
    table = offsets({name: {"-12": 9} for name in ("nsubj", *(f"r{n}" for n in range(9)))})
    with drawn_for(width):
        figure = drawn(table, syntax([0.99], offset=-12))
    figure.canvas.draw()
    for axes in figure.axes:
        boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.x0)
        inside = axes.get_window_extent()
        assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    (legend,) = figure.legends
    assert legend.get_window_extent().x0 >= 0


@pytest.mark.parametrize("width", rest_slow(["full", "column"]))
def test_labels_of_panels_do_not_touch_and_are_not_cut(width: str) -> None:
    with drawn_for(width):
        figure = drawn(offsets({name: {"-1": 9} for name in ("nsubj", "obj", "obl", "det")}), syntax([0.9]))
    figure.canvas.draw()
    boxes = sorted(
        (label.get_window_extent() for axes in figure.axes if (label := axes.xaxis.label).get_text()),
        key=lambda box: box.x0,
    )
    assert len(boxes) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert boxes[0].x0 >= 0
    assert boxes[-1].x1 <= figure.bbox.x1


def test_offsets_are_named_with_the_tails_at_the_ends() -> None:
    assert offsets_to(2) == ("<-2", "-2", "-1", "0", "1", "2", ">2")
