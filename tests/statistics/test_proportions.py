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

from headlens.statistics.proportions import mcnemar_greater, wilson

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
