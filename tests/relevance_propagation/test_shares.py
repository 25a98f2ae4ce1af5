from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headlens.plots.heatmaps import holds_zero, limit
from headlens.relevance_propagation.shares import (
    CANCEL,
    OPEN,
    OPPOSES,
    SERVES,
    UNTESTED,
    even_shares,
    layer_signs,
    of_rule,
    positive_sums,
    requested_rule,
    rules_of_table,
    span,
    warned_title,
)
from headlens.statistics.weighted_means import spearman_of_known

numbers = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=40).map(np.array)


def test_the_first_rule_is_the_one_that_was_asked_for() -> None:
    table = pd.DataFrame({"rule": ["taylor", "epsilon", "taylor", None, "12"], "x": range(5)})
    assert rules_of_table(table) == ["taylor", "epsilon", "12"]
    rule, rows = requested_rule(table)
    assert rule == "taylor"
    assert rows["x"].tolist() == [0, 2]
    assert of_rule(table, "12")["x"].tolist() == [4]


def test_a_table_without_rules_has_nothing_that_was_asked_for() -> None:
    rule, rows = requested_rule(pd.DataFrame({"relevance": [1.0]}))
    assert (rule, len(rows)) == ("", 0)


def test_even_shares_count_the_heads_of_the_layer_in_its_stack_and_model() -> None:
    keys = [("a", "encoder", 0), ("a", "encoder", 0), ("a", "encoder", 1), ("a", "cross", 0), ("b", "encoder", 0)]
    rows = pd.DataFrame(keys, columns=["model", "stack", "layer"]).assign(head=0)
    assert even_shares(rows).tolist() == [0.5, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("raw", "interval", "does"),
    [
        ([0.3, 0.1], (0.2, 0.6), SERVES),
        ([-0.3, 0.1], (-0.3, -0.1), OPPOSES),
        ([0.0026, 0.0020, -0.0007, -0.00395], (-0.0003, 0.0002), CANCEL),
        ([1.0, -1.01], (-0.5, 0.5), CANCEL),
        ([0.3, -0.1], (-0.1, 0.5), OPEN),
        ([-0.3, 0.1], (-0.5, 0.1), OPEN),
        # A sum that is small, but whose sign is known.
        ([1.0, -1.01], (-0.02, -0.005), OPPOSES),
        # Too few examples for an interval.
        ([1.0, -1.01], (np.nan, np.nan), UNTESTED),
        ([-0.3, 0.1], (np.nan, np.nan), UNTESTED),
        # A table of before, without intervals at all.
        ([1.0, -1.01], None, CANCEL),
        ([-0.3, 0.1], None, OPPOSES),
        ([0.3, -0.1], None, SERVES),
    ],
)
def test_what_a_layer_does_follows_the_interval_of_its_sum(
    raw: list[float], interval: tuple[float, float] | None, does: str
) -> None:
    other = pd.DataFrame({"layer": 1, "raw": [1.0, 1.0], "layer_raw_low": 1.9, "layer_raw_high": 2.1})
    low, high = interval or (np.nan, np.nan)
    rows = pd.concat([other, pd.DataFrame({"layer": 0, "raw": raw, "layer_raw_low": low, "layer_raw_high": high})])
    rows = rows.drop(columns=["layer_raw_low", "layer_raw_high"]) if interval is None else rows
    assert layer_signs(rows).tolist() == [SERVES] * 2 + [does] * len(raw)


def test_positive_shares_are_added_up_by_layer() -> None:
    rows = pd.DataFrame({"layer": [0, 0, 0, 1, 1], "relevance": [2.0, 0.5, -1.5, 0.25, np.nan]})
    assert positive_sums(rows).tolist() == [2.5, 2.5, 2.5, 0.25, 0.25]


def test_an_interval_holds_zero_with_its_ends() -> None:
    rows = pd.DataFrame({"ci_low": [-1, 0, 0.1, -2, np.nan], "ci_high": [1, 1, 0.2, -1, np.nan]})
    assert holds_zero(rows).tolist() == [True, True, False, False, False]


@given(numbers)
def test_without_outliers_the_largest_magnitude_is_the_limit(values: np.ndarray) -> None:
    tame = np.concatenate([values, [1e6, -1e6], np.full(60, 5e5)])
    assert limit(tame) == 1e6


@pytest.mark.parametrize("outlier", [1e3, -1e3, 1e300])
def test_neither_an_outlier_nor_a_whole_layer_of_them_sets_the_limit(outlier: float) -> None:
    shares = np.tile([0.05, 0.08, -0.02, 0.2], 15)
    assert limit(np.append(shares, outlier)) <= 0.81
    assert limit(shares, np.full(12, outlier)) <= 0.81


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [np.nan], [np.inf]])
def test_where_there_is_nothing_but_zero_the_limit_is_one(values: list[float]) -> None:
    assert limit(np.array(values)) == 1.0


def test_one_value_among_zeros_is_no_outlier() -> None:
    assert limit(np.array([0.0] * 20 + [0.5])) == 0.5


@example(np.array([0.0, 0.0, 0.0, 162450.0, 974695.0, -450306.0]))
@given(numbers)
def test_axes_hold_zero_and_what_is_within_the_limit(values: np.ndarray) -> None:
    low, high = span(values)
    end = limit(values)
    assert low < 0 < high
    inside = values[np.abs(values) <= end]
    assert ((inside >= low) & (inside <= high)).all()
    # What is hardly farther away than the limit has room, too; where something is much farther, nothing beyond it has.
    far = np.abs(values).max() > 1.5 * end
    assert high - low <= (2.3 if far else 3.45) * end or not values.any()


def test_ranks_are_correlated_as_by_hand() -> None:
    # ranks 1 2 3 4 and 2 1 4 3: 1 - 6 · (1 + 1 + 1 + 1) / (4 · 15)
    assert spearman_of_known(np.array([1.0, 2, 3, 4, np.nan]), np.array([20.0, 10, 4e9, 30, 1])) == pytest.approx(0.6)


@pytest.mark.parametrize("second", [[1.0, 1, 1], [1.0, 2, np.nan], [np.nan] * 3])
def test_without_ranks_there_is_no_correlation(second: list[float]) -> None:
    assert np.isnan(spearman_of_known(np.array([1.0, 2, 3]), np.array(second)))


def test_titles_warn_of_what_shares_do_not_show() -> None:
    raw = [-3.0, 1.0, 2.0, 2.0]
    rows = pd.DataFrame({"model": "m", "stack": "encoder", "layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "raw": raw})
    rows = rows.assign(rule="epsilon", target="class", same_output=True)
    assert warned_title("Roles", rows) == (
        "Roles (rule epsilon, target class)\nm: the same output for every example\n"
        "shares of layers that work against the target: 0"
    )
    both = pd.concat([rows, rows.assign(model="other", raw=-rows["raw"])]).assign(same_output=False)
    assert warned_title("Roles", both).endswith("work against the target: m: 0; other: 1")
    stacks = pd.concat([rows, rows.assign(stack="cross", raw=1.0), rows.assign(stack="decoder", raw=-1.0)])
    told = warned_title("Roles", stacks.assign(same_output=False))
    assert told.endswith("work against the target: encoder: 0; decoder: 0, 1")
    even = warned_title("Roles", rows.assign(rule="taylor", same_output=False, even_output=True))
    assert even == "Roles (rule taylor, magnitudes, target class)\nm: predicts nothing here"
    few = warned_title("Roles", rows.assign(rule="taylor", same_output=False, few_answers=True))
    assert few.endswith("\nm: nearly always the same answer, or one of few")
    without = warned_title("Roles", rows.assign(rule="taylor", same_output=False))
    assert without == "Roles (rule taylor, magnitudes, target class)"
    assert warned_title("Roles", None) == warned_title("Roles", rows.iloc[:0]) == "Roles"
    assert set(layer_signs(rows.assign(rule="taylor"))) == {"magnitudes, no sign"}
