from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from drawn_words import fits_a_page
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tiers import rest_slow

from headlens.analyses.ablate import figures as curve
from headlens.analyses.ablate.figures import look, pruning_curve
from headlens.analyses.ablate.options import STRATEGIES as ALL
from headlens.analyses.ablate.pruning_experiment import NONE
from headlens.analyses.ablate.pruning_strategies import CONTROLS
from headlens.analyses.classify.roles_over_training import _MARKERS as OVER_TRAINING
from headlens.plots.curves import draw_verdicts

# Controls are drawn beside them, see `test_control_sets`.
STRATEGIES = tuple(name for name in ALL if name not in CONTROLS)
Make = Callable[..., pd.DataFrame]


def drawn(frame: pd.DataFrame) -> Figure:
    figure = pruning_curve(frame)
    assert figure is not None
    figure.canvas.draw()
    return figure


WHOLE = "no heads pruned (band: 95 %)"


def lines(axes: Axes) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in axes.get_lines() if not str(line.get_label()).startswith("_")}


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_lines_go_through_the_values(make_pruning: Make) -> None:
    frame = make_pruning()
    (axes,) = drawn(frame).axes
    found = lines(axes)
    assert list(found) == [WHOLE, "ranked", "importance", "random, mean of 3", "one random order"]
    found["random"] = found["random, mean of 3"]
    for strategy in ("ranked", "importance", "random"):
        own = frame[frame["strategy"] == strategy].groupby("n_pruned")["value"].mean()
        np.testing.assert_allclose(found[strategy].get_ydata(), own)
        # beside each other, but at their number
        np.testing.assert_allclose(found[strategy].get_xdata(), own.index, atol=1.0)
    assert len({found[s].get_xdata()[0] for s in ("ranked", "importance", "random")}) == 3
    assert found[WHOLE].get_ydata()[0] == frame["value"].iloc[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("heads pruned", "accuracy")
    assert axes.get_title(loc="left") == "demo"


def test_intervals_of_choices_and_points_of_random_orders(make_pruning: Make) -> None:
    frame = make_pruning(strategies=("ranked", "random"), counts=(3, 10))
    (axes,) = drawn(frame).axes
    (bars,) = axes.collections
    own = frame[frame["strategy"] == "ranked"]
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    np.testing.assert_allclose(ends, own[["ci_low", "ci_high"]])
    points = [line for line in axes.get_lines() if line.get_linestyle() == "None" and len(line.get_xdata()) == 6]
    np.testing.assert_allclose(points[0].get_ydata(), frame[frame["strategy"] == "random"]["value"])


def test_losses_far_below_the_margin_do_not_fill_the_axis(make_pruning: Make) -> None:
    frame = make_pruning(strategies=("ranked",))
    values = {name: 0.9 + 1e-4 * (frame[name] - 0.9) for name in ("value", "ci_low", "ci_high")}
    figure = drawn(frame.assign(**values, margin=0.05, verdict="not needed"))
    (axes,) = figure.axes
    assert np.diff(axes.get_ylim()) == pytest.approx(0.05)
    assert "ringed: not needed; margin: 0.05)" in figure.texts[0].get_text().replace("\n", " ")
    (axes,) = drawn(frame.assign(margin=0.05)).axes
    (without,) = drawn(frame).axes
    assert axes.get_ylim() == without.get_ylim()


@pytest.mark.parametrize(
    ("metric", "below"),
    [("accuracy", False), ("loss", False), ("bleu", False), ("pearson", True), ("logit_difference", True)],
)
def test_an_axis_goes_below_zero_only_where_the_metric_can(make_pruning: Make, metric: str, below: bool) -> None:
    frame = make_pruning(strategies=("ranked",)).assign(value=0.0, ci_low=0.0, ci_high=0.0, margin=0.08, metric=metric)
    (axes,) = drawn(frame).axes
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(0.08)
    assert low == pytest.approx(-0.04 if below else -0.004)


def test_differences_of_logits_below_zero_are_inside_the_axis(make_pruning: Make) -> None:
    frame = make_pruning(strategies=("ranked",))
    frame = frame.assign(**{c: frame[c] - 4.0 for c in ("value", "ci_low", "ci_high")}, metric="logit_difference")
    (axes,) = drawn(frame).axes
    low, high = axes.get_ylim()
    assert low < frame["ci_low"].min() < frame["ci_high"].max() < high < 0


def test_intervals_that_are_not_drawn_take_no_room(make_pruning: Make) -> None:
    frame = make_pruning(strategies=("random",), counts=(3,))
    frame.loc[frame["strategy"] == "random", "ci_low"] = -5.0
    (axes,) = drawn(frame).axes
    assert axes.get_ylim()[0] > 0


def test_a_single_random_order_has_intervals(make_pruning: Make) -> None:
    frame = make_pruning(strategies=("random",))
    (axes,) = drawn(frame[~frame["seed"].isin([1, 2])]).axes
    assert len(axes.collections) == 1


def test_the_whole_model_has_a_band(make_pruning: Make) -> None:
    (axes,) = drawn(make_pruning()).axes
    (band,) = axes.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((0.88, 0.92))
    (axes,) = drawn(make_pruning().iloc[1:]).axes
    assert not axes.patches


@pytest.mark.parametrize(("level", "drawn_at"), [(0.86, True), (0.75, True), (0.1, False), (np.nan, False)])
def test_guesses_are_drawn_unless_they_would_take_most_of_the_room(
    make_pruning: Make, level: float, drawn_at: bool
) -> None:
    frame, older = make_pruning().assign(chance=level), make_pruning()
    figure = drawn(frame)
    (axes,) = figure.axes
    assert ("chance level" in legend(figure)) == ("chance level" in lines(axes)) == drawn_at
    if drawn_at:
        assert lines(axes)["chance level"].get_ydata()[0] == level
        assert axes.get_ylim()[0] < level
    else:
        assert axes.get_ylim() == drawn(older).axes[0].get_ylim()
    assert ("chance level 0.1 (below the axis)" in legend(figure)) == (level == 0.1)


def marked(axes: Axes, size: float, fill: str) -> int:
    """How many points have marks of a size and fill."""
    own = [line for line in axes.get_lines() if line.get_linestyle() == "None" and line.get_markersize() == size]
    return sum(len(line.get_xdata()) for line in own if line.get_markerfacecolor() == fill)


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        (["not decided"] * 2, "; hollow: not decided)"),
        (["not needed", "needed"], "; ringed: not needed; filled: needed)"),
        (["not decided", "not needed"], "; hollow: not decided; ringed: not needed)"),
        ([None, None], "(95 % intervals, n = 400)"),
    ],
)
def test_points_have_the_marks_of_their_verdicts_which_the_title_tells(
    make_pruning: Make, verdicts: list[str | None], told: str
) -> None:
    frame = make_pruning(strategies=("ranked", "random"), counts=(3, 10))
    frame["verdict"] = np.where(frame["strategy"] == "random", "needed", None)
    frame.loc[frame["strategy"] == "ranked", "verdict"] = np.array(verdicts, object)
    figure = drawn(frame)
    assert figure.texts[0].get_text().replace("\n", " ").endswith(told)
    (axes,) = figure.axes
    assert marked(axes, 3.5, "white") == verdicts.count("not decided")
    assert marked(axes, 7.0, "none") == verdicts.count("not needed")
    frame.loc[frame.index[0], ["ci_low", "ci_high"]] = np.nan
    assert "\n(95 % intervals, not of all points, n = 400" in drawn(frame).texts[0].get_text()
    frame[["ci_low", "ci_high"]] = np.nan
    assert "\n(no intervals, n = 400" in drawn(frame).texts[0].get_text()
    assert "\n(no intervals of so few examples, n = 9" in drawn(frame.assign(n=9)).texts[0].get_text()


def test_all_strategies_have_looks_of_their_own() -> None:
    looks = [look(strategy) for strategy in (*STRATEGIES, "of one's own")]
    assert len({colour for colour, _ in looks}) == len({marker for _, marker in looks}) == len(looks)
    assert curve.NONE == NONE


def white_inside(marker: str) -> int:
    """How many white pixels a hollow marker of a pruned set has, at 200 dots per inch."""
    figure = Figure((0.2, 0.2), dpi=200, facecolor="black")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    rows = pd.DataFrame({"value": [0.0], "verdict": ["not decided"]})
    draw_verdicts(axes, np.zeros(1), rows, "black", marker)
    canvas.draw()
    return int((np.asarray(canvas.buffer_rgba())[..., 0] > 200).sum())


@pytest.mark.parametrize("marker", sorted({look(strategy)[1] for strategy in STRATEGIES} - {"x"} | {*OVER_TRAINING}))
def test_hollow_markers_are_seen_to_be_hollow(marker: str) -> None:
    """A star and a thick cross had no room for white: sets of heads that are not decided looked needed."""
    assert white_inside(marker) >= 10
    assert white_inside("*") < 5


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("models", rest_slow([1, 2], [2]))
@pytest.mark.parametrize(
    "strategies", rest_slow([STRATEGIES, ("of_one's_own", "ranked"), STRATEGIES[:1], STRATEGIES[-1:]], 2)
)
def test_nothing_is_cut_off_or_covered(make_pruning: Make, strategies: tuple[str, ...], models: int) -> None:
    frame = pd.concat([make_pruning(f"model {n}", strategies) for n in range(models)])
    figure = drawn(frame)
    assert fits_a_page(figure)
    single = ["one random order"] * ("random" in strategies)
    assert sorted(name.removesuffix(", mean of 3") for name in legend(figure)) == sorted([WHOLE, *strategies, *single])
    box = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
    assert len(figure.axes) == models
    for axes in figure.axes:
        own = axes.get_tightbbox()
        assert own is not None
        assert box.y1 <= own.y0 + 1
        assert own.y1 <= figure.texts[0].get_window_extent().y0
        assert own.x0 >= 0
        assert own.x1 <= figure.bbox.x1


def test_models_have_panels_with_the_same_axes(make_pruning: Make) -> None:
    frame = pd.concat([make_pruning("bert"), make_pruning("albert", ("greedy",), counts=(1, 60), seed=1)])
    first, second = drawn(frame).axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_ylim() == second.get_ylim()
    assert first.get_xticks().tolist() == second.get_xticks().tolist() == [3, 10, 20, 30, 60]
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["bert", "albert"]
    # a legend for all panels
    assert set(legend(drawn(frame))) == {
        *(WHOLE, "ranked", "importance", "random, mean of 3", "one random order", "greedy")
    }


@pytest.mark.parametrize("counts", [(3, 10, 20, 30), (7,), (1, 2), range(1, 70), (1, 2, 3, 100, 200, 300)])
def test_numbers_of_heads_can_be_read(make_pruning: Make, counts: tuple[int, ...]) -> None:
    (axes,) = drawn(make_pruning(counts=counts)).axes
    ticks = axes.get_xticks().tolist()
    assert set(ticks) <= set(counts)
    assert ticks[-1] == max(counts)
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    low, high = axes.get_xlim()
    assert all(low < x < high for line in lines(axes).values() if len(line.get_xdata()) != 2 for x in line.get_xdata())


def test_strategies_do_not_stand_at_other_numbers(make_pruning: Make) -> None:
    (axes,) = drawn(make_pruning(strategies=STRATEGIES, counts=range(1, 40))).axes
    for name, line in lines(axes).items():
        if name not in {WHOLE, "one random order"}:
            np.testing.assert_allclose(line.get_xdata(), range(1, 40), atol=0.5)


def test_nothing_to_draw(make_pruning: Make) -> None:
    frame = make_pruning()
    assert pruning_curve(frame.iloc[:0]) is None
    assert pruning_curve(frame.iloc[:1]) is None
    assert pruning_curve(frame.assign(value=np.nan)) is None


def test_values_without_intervals(make_pruning: Make) -> None:
    figure = drawn(make_pruning().assign(ci_low=np.nan, ci_high=np.nan))
    assert list(lines(figure.axes[0])) == [
        *("no heads pruned", "ranked", "importance", "random, mean of 3", "one random order")
    ]


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("name", rest_slow([*HOSTILE, "a very long name " * 12]))
def test_any_name_can_be_drawn(make_pruning: Make, name: str) -> None:
    frames = [make_pruning(name + more, (name, "ranked"), metric=name).assign(task=name) for more in "12"]
    for frame in (frames[0], pd.concat(frames)):
        figure = drawn(frame)
        top = figure.texts[0].get_window_extent().y0
        assert all(axes.title.get_window_extent().y1 <= top for axes in figure.axes)
        box = figure.legends[0].get_window_extent()
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
