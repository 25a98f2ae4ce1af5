"""Intervals and tests of counts, against textbook sums and against statsmodels and scipy."""

from __future__ import annotations

import math

import naive_statistics
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from headlens.statistics.proportions import holm, mcnemar_greater, wilson

shares = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(shares)
def test_wilson_against_its_formula(share: tuple[int, int]) -> None:
    low, high = wilson(np.array([share[0]]), np.array([share[1]]))
    assert (low[0], high[0]) == pytest.approx(naive_statistics.wilson(*share), abs=1e-12)


@settings(max_examples=20)
@given(shares, st.sampled_from([0.8, 0.99]))
def test_wilson_against_scipy(share: tuple[int, int], level: float) -> None:
    low, high = wilson(np.array([share[0]]), np.array([share[1]]), level)
    expected = stats.binomtest(*share).proportion_ci(level, "wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_without_trials() -> None:
    low, high = wilson(np.array([0, 3]), np.array([0, 6]))
    assert np.isnan([low[0], high[0]]).all()
    assert (low[1], high[1]) == pytest.approx((0.1876, 0.8124), abs=1e-4)


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_against_the_binomial_sum(first: int, second: int) -> None:
    p = mcnemar_greater(np.array([first]), np.array([second]), np.array([100]))[0]
    assert p == pytest.approx(naive_statistics.paired_p_value(first, second), rel=1e-9)


@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(0, 30))
def test_mcnemar_against_statsmodels(first: int, second: int) -> None:
    """Its two-sided p-value is twice the smaller one-sided one."""
    p = mcnemar_greater(np.array([first]), np.array([second]), np.array([100]))[0]
    other = mcnemar_greater(np.array([second]), np.array([first]), np.array([100]))[0]
    two_sided = mcnemar([[7, first], [second, 9]], exact=True).pvalue
    assert min(1.0, 2 * min(p, other)) == pytest.approx(two_sided, rel=1e-9)


def test_mcnemar_without_differences_or_trials() -> None:
    p = mcnemar_greater(np.array([0, 0, 3]), np.array([0, 0, 0]), np.array([0, 10, 10]))
    assert math.isnan(p[0])
    assert p[1:].tolist() == pytest.approx([1, 1 / 8])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_against_its_definition(p_values: list[float]) -> None:
    assert holm(np.array(p_values)).tolist() == pytest.approx(naive_statistics.holm(p_values), abs=1e-12)


def test_holm_against_statsmodels() -> None:
    p_values = np.random.default_rng(0).random(200) ** 6
    np.testing.assert_allclose(holm(p_values), multipletests(p_values, method="holm")[1], rtol=1e-12)


def test_holm_by_hand() -> None:
    assert holm(np.array([0.01, 0.04, 0.03])).tolist() == pytest.approx([0.03, 0.06, 0.06])


def test_holm_leaves_out_what_is_not_known() -> None:
    found = holm(np.array([0.01, np.nan, 0.02]))
    assert found[[0, 2]].tolist() == pytest.approx([0.02, 0.02])
    assert math.isnan(found[1])
    assert np.isnan(holm(np.array([np.nan]))).all()
    assert holm(np.array([])).shape == (0,)
