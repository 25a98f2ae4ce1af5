"""The naive statistics against values worked out by hand, and against scipy and statsmodels."""

import math

import naive_statistics as stats
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint
from tiers import rest_slow

COUNTS = st.integers(min_value=0, max_value=400)


def test_mean_adds_exactly_and_knows_nothing() -> None:
    assert stats.mean([1e100, 1.0, -1e100, 2.0]) == 0.75
    assert math.isnan(stats.mean([]))


@pytest.mark.parametrize(
    ("only_head", "only_baseline", "expected"),
    [
        (0, 0, 1.0),
        (0, 3, 1.0),
        (1, 0, 1 / 2),
        (5, 0, 1 / 32),
        (3, 1, 5 / 16),  # four instances: 4 ways to have three right and 1 way to have all, of 16
        (2, 2, 11 / 16),  # 6 + 4 + 1
    ],
)
def test_paired_p_value_by_hand(only_head: int, only_baseline: int, expected: float) -> None:
    assert stats.paired_p_value(only_head, only_baseline) == expected


def test_paired_p_value_of_many_instances_does_not_overflow() -> None:
    assert stats.paired_p_value(3000, 0) == 0.5**3000
    assert stats.paired_p_value(2000, 2000) == pytest.approx(0.5, abs=0.01)


@given(COUNTS, COUNTS)
def test_paired_p_value_is_the_one_sided_binomial_test(only_head: int, only_baseline: int) -> None:
    n = only_head + only_baseline
    expected = binomtest(only_head, n, 0.5, alternative="greater").pvalue if n else 1.0
    assert stats.paired_p_value(only_head, only_baseline) == pytest.approx(expected, rel=1e-9)


def test_wilson_by_hand() -> None:
    z2 = 1.959963984540054**2
    # All of 3 right: the interval ends at 1 and starts at n / (n + z²); none right mirrors it.
    assert stats.wilson(3, 3) == pytest.approx((3 / (3 + z2), 1.0))
    assert stats.wilson(0, 3) == pytest.approx((0.0, z2 / (3 + z2)))
    assert all(math.isnan(end) for end in stats.wilson(0, 0))


@given(COUNTS, COUNTS, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_wilson_is_that_of_statsmodels_and_holds_the_share(right: int, wrong: int, level: float) -> None:
    n = right + wrong + 1
    low, high = stats.wilson(right, n, level)
    assert (low, high) == pytest.approx(proportion_confint(right, n, 1 - level, method="wilson"), abs=1e-12)
    assert 0 <= low <= right / n + 1e-15
    assert right / n - 1e-15 <= high <= 1


def test_holm_by_hand() -> None:
    # Sorted: 0.01 * 3, then 0.03 * 2, then 0.04 * 1, which may not fall below the one before.
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0]
    assert stats.holm([]) == []


@pytest.mark.parametrize("seed", rest_slow(range(6), 2))
def test_holm_is_that_of_statsmodels(seed: int) -> None:
    p_values = np.random.default_rng(seed).uniform(size=(1, 2, 5, 30, 30, 100)[seed]) ** 4
    p_values[:3] = p_values[0]  # equal ones
    np.testing.assert_allclose(stats.holm(p_values.tolist()), multipletests(p_values, method="holm")[1], rtol=1e-12)


def test_paired_score_interval_by_hand() -> None:
    z2 = 1.959963984540054**2
    # Nothing changes: n Δ² = z² |Δ| (1 - |Δ|). All are gained: n (1 - Δ) = z² (1 + Δ).
    assert stats.paired_score_interval(0, 0, 10) == pytest.approx((-z2 / (10 + z2), z2 / (10 + z2)), abs=1e-8)
    assert stats.paired_score_interval(10, 0, 10) == pytest.approx(((10 - z2) / (10 + z2), 1.0), abs=1e-8)
    # One of 44 is gained: against scanning a grid of differences and probabilities, in double precision.
    grid = np.linspace(-0.5, 0.5, 2001)[:, None]
    q = np.linspace(0, 1, 4001)
    with np.errstate(divide="ignore", invalid="ignore"):
        likelihood = np.log(q + grid) + 43 * np.log(1 - 2 * q - grid)
    best = q[np.nanargmax(np.where((q + grid > 0) & (2 * q + grid < 1), likelihood, -np.inf), axis=1)]
    differences = grid[:, 0]
    held = differences[44 * (1 / 44 - differences) ** 2 <= z2 * (2 * best + differences - differences**2)]
    assert stats.paired_score_interval(1, 0, 44) == pytest.approx((held.min(), held.max()), abs=1e-3)
