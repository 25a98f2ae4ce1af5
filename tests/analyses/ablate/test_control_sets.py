"""Random sets beside those of strategies: what they are drawn from, by enumeration; how they are told and drawn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headlens.analyses.ablate.ablation_findings import findings_of
from headlens.analyses.ablate.figures import pruning_curve
from headlens.analyses.ablate.options import COMMAND, STRATEGIES, PruneOptions
from headlens.analyses.ablate.overviews import control_names, one_row_for_orders
from headlens.analyses.ablate.pruning_strategies import CONTROLS, RANDOM_SETS, control_sets
from headlens.analyses.ablate.ranking_overviews import pruning_areas
from headlens.analyses.ablate.rankings import area_table, control_notes
from headlens.errors import OptionError
from headlens.heads import Head
from headlens.runs.reading import RecordedRun

HEADS = [Head(stack, layer, head) for stack in ("encoder", "cross") for layer in range(2) for head in range(2 + layer)]


def profile(heads: Collection[Head]) -> Counter[tuple[str, int]]:
    """How many heads of each layer there are."""
    return Counter(head[:2] for head in heads)


def fits(name: str, chosen: Collection[Head]) -> set[frozenset[Head]]:
    """All sets that a control may draw beside another, of all sets there are."""
    sets = map(frozenset, combinations(HEADS, len(chosen)))
    if name == "placebo":
        return {heads for heads in sets if heads.isdisjoint(chosen)}
    return {heads for heads in sets if profile(heads) == profile(chosen)}


@pytest.mark.parametrize("name", CONTROLS)
@given(st.sets(st.sampled_from(HEADS), min_size=1))
def test_sets_are_of_those_that_fit(name: str, chosen: set[Head]) -> None:
    expected = fits(name, chosen)
    possible, drawn = control_sets(name, range(4), chosen, HEADS)
    assert possible == len(expected)
    assert {*map(frozenset, drawn.values())} <= expected
    assert list(drawn) == (list(range(4)) if expected else [])
    assert all(len(set(heads)) == len(heads) for heads in drawn.values())


@pytest.mark.parametrize("name", CONTROLS)
def test_every_set_that_fits_is_equally_likely(name: str) -> None:
    chosen = [HEADS[0], HEADS[3], HEADS[5], HEADS[8]]
    seeds = 1000
    _, drawn = control_sets(name, range(seeds), chosen, HEADS)
    counts = Counter(map(frozenset, drawn.values()))
    expected = fits(name, chosen)
    assert len(expected) > 10
    assert stats.chisquare([counts[heads] for heads in expected]).pvalue > 0.001


def test_sets_by_layer_grow_as_those_that_they_are_beside_and_other_heads_run_out() -> None:
    grown = [HEADS[:count] for count in range(1, len(HEADS) + 1)]
    by_layer = [frozenset(control_sets("random-by-layer", [3], chosen, HEADS)[1][3]) for chosen in grown]
    assert all(small < large for small, large in pairwise(by_layer))
    half = len(HEADS) // 2
    assert [control_sets("placebo", [0], chosen, HEADS)[0] > 0 for chosen in grown] == [
        *[True] * half,
        *[False] * (len(grown) - half),
    ]


def test_whole_layers_leave_no_choice() -> None:
    chosen = [head for head in HEADS if head[:2] == ("encoder", 1)]
    possible, drawn = control_sets("random-by-layer", range(5), chosen, HEADS)
    assert possible == 1
    assert {frozenset(heads) for heads in drawn.values()} == {frozenset(chosen)}
    many = [Head("encoder", layer, head) for layer in range(24) for head in range(16)]
    assert control_sets("random-by-layer", [0], many[::2], many)[0] == 1_000_000, "counted no further"


def test_controls_need_something_to_control() -> None:
    with pytest.raises(OptionError, match=r"(?s)random-by-layer draws random sets beside.*ranked,random-by-layer"):
        PruneOptions((3,), ("random-by-layer", "random"))
    everything = tuple(name for name in STRATEGIES if name not in (*CONTROLS, "gates"))
    for given_names, expected in (("all", everything), ("placebo,all", ("placebo", *everything))):
        assert COMMAND.options["strategies"].value(given_names) == expected
    assert set(RANDOM_SETS) == {"random", *CONTROLS}


COUNTS = (2, 4)


def table() -> pd.DataFrame:
    """Of `ranked` and `greedy` with two seeds of sets by layer, and other heads only where two are pruned."""
    rows = [("none", None, None, 0, 0.9, np.nan)]
    rows += [("ranked", None, None, n, 0.9 - 0.05 * n, np.nan) for n in COUNTS]
    rows += [("greedy", None, None, n, 0.9 - 0.01 * n, np.nan) for n in COUNTS]
    rows += [("random", s, None, n, 0.9 - 0.1 * n, np.nan) for s in (0, 1) for n in COUNTS]
    slopes = {"ranked": (0.05, 0.06), "greedy": (0.02, 0.005)}
    rows += [
        ("random-by-layer", s, of, n, 0.9 - slopes[of][s] * n, 1 if of == "ranked" and n == 4 else 20)
        for of in slopes
        for s in (0, 1)
        for n in COUNTS
    ]
    rows += [("placebo", s, of, 2, 0.9 - 0.2 * s, 2) for of in slopes for s in (0, 1)]
    columns = ["strategy", "seed", "control_of", "n_pruned", "value", "possible_sets"]
    frame = pd.DataFrame(rows, columns=columns).assign(model="demo", metric="accuracy", task="sst2", n=100)
    return frame.assign(n_heads=12 - frame["n_pruned"], ci_low=frame["value"] - 0.01, ci_high=frame["value"] + 0.01)


def test_areas_beside_those_of_random_sets() -> None:
    areas = area_table(table()).set_index(["strategy", "control_of"])
    # The mean of a line from 0.9 on is where it is in the middle, at 2 heads.
    ranked, greedy = areas.loc[("ranked", np.nan)], areas.loc[("greedy", np.nan)]
    assert ranked["area"] == pytest.approx(0.8)
    assert (ranked["by_layer_low"], ranked["by_layer_high"]) == pytest.approx((0.78, 0.8))
    assert (ranked["better_than_by_layer"], ranked["equal_to_by_layer"]) == (1, 1)
    assert (greedy["better_than_by_layer"], greedy["equal_to_by_layer"]) == (1, 0)
    assert (greedy["better_than"], greedy["orders"]) == (2, 2)
    # Nothing is said of a curve that ends before the others.
    assert greedy[["placebo_low", "placebo_high", "better_than_placebo"]].isna().all()
    assert areas.loc[("random-by-layer", "ranked"), "area"] == pytest.approx(0.79)
    assert math.isnan(areas.loc[("placebo", "ranked"), "area"])
    loss = area_table(table().assign(metric="loss")).set_index(["strategy", "control_of"])
    assert loss.loc[("ranked", np.nan), "better_than_by_layer"] == 0
    without = table()[lambda rows: ~rows["strategy"].isin(CONTROLS)]
    assert "by_layer_low" not in area_table(without)


def test_what_is_told_of_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = table().iloc[1:]
    few_sets = control_notes(area_table(table()), sets)[0]
    assert "better than 1" not in few_sets
    assert few_sets.endswith("With 2 random sets, even being better than all is no evidence at the 5 % level (19 are).")
    monkeypatch.setattr("headlens.analyses.ablate.rankings._ENOUGH", 2)
    by_layer, few, other, lacking = control_notes(area_table(table()), sets)
    assert by_layer == (
        "random-by-layer (2 random sets of as many heads in every layer beside each set): mean accuracy over 0 to 4 "
        "pruned heads is 0.800 for ranked, 0.780 to 0.800 for its random sets (better than 1, equal to 1 of 2); 0.880 "
        "for greedy, 0.860 to 0.890 for its random sets (better than 1 of 2)."
    )
    assert few == (
        "random-by-layer has no more sets to draw from than draws, so that some are drawn again, and a single one is "
        "that of the strategy: ranked with 4 pruned (1 set)."
    )
    assert other.endswith("so that some are drawn again: ranked with 2 pruned (2 sets), greedy with 2 pruned (2 sets).")
    half = sets.assign(possible_sets=sets["possible_sets"].where(sets["strategy"] != "placebo", 1))
    assert "drawn again, and a single one is all other heads: ranked" in control_notes(area_table(table()), half)[2]
    assert lacking == "placebo has no sets where 4 heads are pruned: too few are left to draw from."
    without = table()[lambda rows: ~rows["strategy"].isin(CONTROLS)]
    assert control_notes(area_table(without), without.iloc[1:]) == []


def test_rows_of_controls_bear_the_name_of_what_they_control() -> None:
    rows = one_row_for_orders(table())
    assert "random-by-layer (ranked), mean of 2" in set(rows["strategy"])
    value = rows.set_index(["strategy", "n_pruned"])["value"]
    assert value["random-by-layer (ranked), mean of 2", 2] == pytest.approx(0.79)
    assert set(control_names(table().iloc[:3])) == {"none", "ranked"}


def test_the_sentence_on_a_set_has_its_own_controls() -> None:
    judged = table().assign(delta=0.0, delta_low=0.0, delta_high=0.0, margin=0.01, n_to_decide=np.nan)
    judged["verdict"] = np.where(judged["strategy"] == "greedy", "not needed", None)
    (sentence,) = findings_of({"pruning": judged})
    assert sentence.endswith(
        " 2 random orders of as many heads: 0.500 each. 2 random sets with as many heads in every layer: 0.820 to "
        "0.880."
    )
    single = judged.assign(possible_sets=1)
    assert findings_of({"pruning": single})[0].endswith(" The only set with as many heads in every layer: 0.820.")


def test_controls_are_drawn_beside_their_strategy() -> None:
    figure = pruning_curve(table())
    assert figure is not None
    (axes,) = figure.axes
    labels = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert "random sets by layer (range, mean)" in labels
    assert "random sets of other heads" in labels
    assert not [label for label in labels if label.startswith(("random-by", "placebo"))]
    bars = [c for c in axes.collections if len(c.get_segments()) == 2 and c.get_linewidth()[0] == 5]
    ends = sorted(tuple(np.round(sorted(segment[:, 1]), 9)) for bar in bars for segment in bar.get_segments())
    assert ends == [(0.66, 0.7), (0.78, 0.8), (0.82, 0.88), (0.86, 0.89)]
    crosses = [line for line in axes.get_lines() if line.get_marker() == "+" and len(line.get_xdata())]
    assert [sorted(line.get_ydata()) for line in crosses] == [pytest.approx([0.7, 0.9])] * 2
    low, high = axes.get_ylim()
    assert low < table()["value"].min() < table()["value"].max() < high


@pytest.mark.parametrize("alone", CONTROLS)
def test_one_draw_of_a_control_is_no_line(alone: str) -> None:
    rows = table()
    figure = pruning_curve(rows[(rows["strategy"].isin(["none", "ranked", alone])) & (rows["seed"] != 1)])
    assert figure is not None
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(labels) == 3


def test_the_page_has_areas_beside_those_of_controls_also_where_there_are_none() -> None:
    """A column of cells and empty texts ended the report of every run of `--prune 2` with controls."""
    areas = area_table(table()).assign(model="m", orders=2, most=4)
    run = RecordedRun(Path("run"), "run", {"command": "ablate", "status": "finished"}, {"pruning_areas": areas})
    page = pruning_areas([run])
    place = [column.name for column in page.columns].index("random-by-layer, how many worse")
    assert sorted({row[place].text for row in page.rows}) == ["", "1"]


def test_the_mean_of_random_orders_has_no_interval_of_one_of_them() -> None:
    """A mean of the ends of intervals is the end of none, and a p-value is that of one order."""
    comparison = {"delta": -0.1, "delta_low": -0.2, "delta_high": 0.0, "p_value": 0.03, "p_holm": 0.04}
    rows = one_row_for_orders(table().assign(**comparison)).set_index("strategy")
    mean = rows.loc["random-by-layer (ranked), mean of 2"].iloc[0]
    assert mean["delta"] == pytest.approx(-0.1)
    assert mean[["delta_low", "delta_high", "p_value", "p_holm"]].isna().all()
    assert rows.loc["ranked", "p_holm"].tolist() == [0.04] * 2
