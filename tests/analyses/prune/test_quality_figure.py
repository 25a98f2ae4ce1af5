from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from drawn_words import check_words, fits_a_page
from made_gates import Made, gate_tables
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tiers import rest_slow

from headlens.analyses.prune.sweep_figures import LOOKS, gate_quality

STEPS = (0, 2000)  # few: making gates of every update takes longer than drawing


MADE = Made(penalties=(0.005, 0.02, 0.1), steps=STEPS)


def drawn(tables: dict[str, pd.DataFrame]) -> Figure:
    figure = gate_quality(tables["sweep"], tables.get("gates"))
    assert figure is not None
    figure.canvas.draw()
    return figure


def lines(axes: Axes) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in axes.get_lines() if not str(line.get_label()).startswith("_")}


def test_lines_go_through_the_values_at_their_numbers_of_heads() -> None:
    tables = gate_tables(MADE)
    (axes,) = drawn(tables).axes
    found = lines(axes)
    assert list(found) == ["unpruned model (band: 95 %)", "from the trained model", "from scratch"]
    for label, init in (("from the trained model", "trained"), ("from scratch", "scratch")):
        sweep = tables["sweep"]
        own = sweep[(sweep["init"] == init) & (sweep["run"] != "unpruned")]
        left = own["heads_encoder"] + own["heads_decoder"] + own["heads_cross"]
        order = np.argsort(left.to_numpy())
        np.testing.assert_allclose(found[label].get_ydata(), own["value"].to_numpy()[order])
        np.testing.assert_allclose(found[label].get_xdata(), left.to_numpy()[order], atol=3)
    # beside each other
    assert found["from scratch"].get_xdata()[0] > found["from the trained model"].get_xdata()[0]
    assert axes.get_ylabel() == "bleu"
    assert axes.get_xlabel() == "heads left in encoder, decoder and cross"


def marked(axes: Axes, size: float, fill: str) -> int:
    """How many points have marks of a size and fill."""
    own = [line for line in axes.get_lines() if line.get_linestyle() == "None" and line.get_markersize() == size]
    return sum(len(line.get_xdata()) for line in own if line.get_markerfacecolor() == fill)


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        (["not decided"] * 3, "; hollow: not decided; half filled: no verdict)"),
        (["not needed", "needed", "needed"], "; ringed: not needed; filled: needed; half filled: no verdict)"),
        (
            ["not decided", "not needed", "not decided"],
            "; hollow: not decided; ringed: not needed; half filled: no verdict)",
        ),
        ([None] * 3, "(95 % intervals, n = 1,000)"),
    ],
)
def test_points_have_the_marks_of_their_verdicts_which_the_title_tells(verdicts: list[str | None], told: str) -> None:
    tables = gate_tables(MADE)
    sweep = tables["sweep"].drop(columns="verdict", errors="ignore").assign(verdict=None)
    own = (sweep["init"] == "trained") & (sweep["run"] != "unpruned")
    sweep.loc[own, "verdict"] = np.array(verdicts, object)
    figure = drawn(tables | {"sweep": sweep})
    assert figure.texts[0].get_text().replace("\n", " ").endswith(told)
    axes = figure.axes[0]
    assert marked(axes, 3.5, "white") == verdicts.count("not decided")
    assert marked(axes, 7.0, "none") == verdicts.count("not needed")
    scratch = int(((sweep["init"] == "scratch") & (sweep["run"] != "unpruned")).sum())
    halves = [line for line in axes.get_lines() if line.get_fillstyle() == "left"]
    assert sum(len(line.get_xdata()) for line in halves) == (scratch if any(verdicts) else 0), "none from scratch"


def test_intervals_and_the_level_of_the_unpruned_model() -> None:
    tables = gate_tables(MADE)
    (axes,) = drawn(tables).axes
    sweep = tables["sweep"].set_index(["run"])
    whole = sweep.loc["unpruned"]
    assert lines(axes)["unpruned model (band: 95 %)"].get_ydata()[0] == whole["value"]
    (band,) = axes.patches
    ends = (band.get_y(), band.get_y() + band.get_height())
    assert ends == pytest.approx((whole["ci_low"], whole["ci_high"]))
    trained, scratch = axes.collections
    for bars, names in ((trained, ""), (scratch, "-scratch")):
        expected = [tuple(sweep.loc[f"lambda-{p}{names}", ["ci_low", "ci_high"]]) for p in (0.1, 0.02, 0.005)]
        np.testing.assert_allclose([segment[:, 1] for segment in bars.get_segments()], expected)


def test_all_heads_from_scratch_have_a_level_of_their_own() -> None:
    tables = gate_tables(MADE)
    sweep = tables["sweep"]
    whole = sweep[sweep["run"] == "unpruned"]
    lower = whole.assign(init="scratch", value=whole["value"] - 2, ci_low=whole["ci_low"] - 2, ci_high=None)
    (axes,) = drawn(tables | {"sweep": pd.concat([sweep, lower])}).axes
    levels = lines(axes)
    assert levels["unpruned model (band: 95 %)"].get_ydata()[0] == whole["value"].iloc[0]
    scratch = levels["all heads, from scratch"]
    assert scratch.get_ydata()[0] == whole["value"].iloc[0] - 2
    assert scratch.get_color() == LOOKS["scratch"][0] != levels["unpruned model (band: 95 %)"].get_color()


def test_penalties_stand_above_their_models() -> None:
    tables = gate_tables(MADE)
    (axes,) = drawn(tables).axes
    (above,) = axes.child_axes
    names = {label.get_text(): x for label, x in zip(above.get_xticklabels(), above.get_xticks(), strict=True)}
    assert set(names) == {"λ 0.005", "λ 0.02", "λ 0.1"}
    rows = tables["sweep"][tables["sweep"]["init"] == "trained"].set_index("penalty")
    for name, x in names.items():
        assert x == rows.loc[float(name.removeprefix("λ ")), ["heads_encoder", "heads_decoder", "heads_cross"]].sum()


def test_only_stacks_with_gates_are_counted_each_set_in_a_panel() -> None:
    everything, encoder = gate_tables(MADE), gate_tables(Made(penalties=(0.3, 0.4), gated=("encoder",), steps=STEPS))
    sweep = pd.concat([everything["sweep"], encoder["sweep"].iloc[1:]])
    gates = pd.concat([everything["gates"], encoder["gates"]])
    first, second = drawn({"sweep": sweep, "gates": gates}).axes
    assert "gates in encoder, decoder and cross" in first.get_title(loc="left").replace("\n", " ")
    assert second.get_title(loc="left") == "opus-mt-en-de: gates in encoder"
    assert second.get_xlabel() == "heads left in encoder"
    expected = sorted(encoder["sweep"].iloc[1:3]["heads_encoder"])
    np.testing.assert_allclose(lines(second)["from the trained model"].get_xdata(), expected, atol=1)
    assert first.get_ylim() == second.get_ylim()
    assert second.get_xlim()[1] < 60 < first.get_xlim()[1]
    assert list(lines(second)) == list(lines(first))


def test_models_with_different_metrics_have_axes_of_their_own() -> None:
    bert = Made(shapes={"encoder": (12, 12)}, metrics=("accuracy",), model="bert", task="sst2", steps=STEPS)
    sweep = pd.concat([gate_tables(made)["sweep"] for made in (MADE, bert)])
    first, second = drawn({"sweep": sweep}).axes
    assert first.get_ylim()[0] > second.get_ylim()[1]


def test_without_scratch_or_whole_model() -> None:
    tables = gate_tables(Made(penalties=(0.1,), scratch=False, steps=STEPS))
    assert list(lines(drawn(tables).axes[0])) == ["unpruned model (band: 95 %)", "from the trained model"]
    only = {"sweep": tables["sweep"].iloc[1:]}
    (axes,) = drawn(only).axes
    assert list(lines(axes)) == ["from the trained model"]
    assert not axes.patches


def test_nothing_to_draw() -> None:
    sweep = gate_tables(MADE)["sweep"]
    assert gate_quality(sweep.iloc[:0]) is None
    assert gate_quality(sweep.iloc[:1]) is None
    assert gate_quality(sweep.assign(value=np.nan)) is None
    assert gate_quality(sweep.assign(ci_low=np.nan, ci_high=np.nan)) is not None


MANY = tuple(0.001 * 1.9**i for i in range(12))


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    rest_slow(
        [
            MADE,
            Made(penalties=(0.1,), least=0.0, steps=STEPS),
            Made(shapes={"encoder": (2, 2)}, penalties=MANY, steps=STEPS),
            Made(shapes={"encoder": (24, 16)}, penalties=MANY, least=0.0, model="a-very-long-name/" * 7, steps=STEPS),
            Made(penalties=(1234567.8, 0.00012345), metrics=("a_metric_with_a_name_that_is_long",), steps=STEPS),
        ]
    ),
    ids=range(5),
)
def test_nothing_is_cut_off_or_covered(made: Made) -> None:
    tables = gate_tables(made)
    # all heads from scratch, too: one more line in the legend
    sweep = tables["sweep"]
    tables["sweep"] = pd.concat([sweep, sweep[sweep["run"] == "unpruned"].assign(init="scratch")])
    two = {name: pd.concat([f, f.assign(model=f["model"] + "-2")]) for name, f in tables.items()}
    for shown in (tables, two):
        figure = drawn(shown)
        legend = figure.legends[0].get_window_extent()
        assert fits_a_page(figure)
        assert figure.bbox.x0 <= legend.x0
        assert legend.x1 <= figure.bbox.x1
        for axes in figure.axes:
            box = axes.get_tightbbox()
            assert box is not None
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y0 >= legend.y1 - 1
            assert box.y1 <= figure.texts[0].get_window_extent().y0 + 1
            (above,) = axes.child_axes
            names = sorted((label.get_window_extent() for label in above.get_xticklabels()), key=lambda b: b.x0)
            assert names
            assert all(a.x1 <= b.x0 + 0.5 for a, b in pairwise(names))
            assert axes._left_title.get_window_extent().y0 >= max(b.y1 for b in names) - 0.5


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("words", rest_slow(HOSTILE))
def test_any_name_can_be_drawn(words: str) -> None:
    tables = gate_tables(MADE)
    sweep = tables["sweep"].assign(model=words, task=words, metric=words, penalty=np.nan)
    figure = drawn({"sweep": sweep.assign(run=sweep["run"].where(sweep["run"] == "unpruned", words + sweep["run"]))})
    check_words(figure, words)


def test_differences_far_below_the_margin_do_not_fill_the_axis() -> None:
    tables = gate_tables(MADE)
    sweep = tables["sweep"].assign(value=0.6001, ci_low=0.6, ci_high=0.6002, margin=0.05)
    (axes,) = drawn({**tables, "sweep": sweep}).axes
    assert np.diff(axes.get_ylim()) == pytest.approx(0.05)


def test_runs_with_as_many_heads_share_their_name() -> None:
    tables = gate_tables(MADE)
    sweep = tables["sweep"]
    gated = (sweep["init"] == "trained") & (sweep["run"] != "unpruned")
    heads = [name for name in sweep if name.startswith("heads_")]
    sweep.loc[gated, heads] = sweep.loc[gated, heads].iloc[0].tolist()
    figure = drawn({**tables, "sweep": sweep})
    figure.canvas.draw()
    (above,) = figure.axes[0].child_axes
    (name,) = (label.get_text() for label in above.get_xticklabels())
    assert len(name.split(", ")) == int(gated.sum())
