"""Score intervals against their formulas, scipy and the likelihood; how often they cover, counted out."""

from __future__ import annotations

import naive_statistics
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headlens.statistics.intervals import mean_interval, paired_share_interval, wilson


def changes(most: int) -> st.SearchStrategy[tuple[int, int, int]]:
    """Trials, those that only the first has right, those that only the second has right."""
    return st.integers(1, most).flatmap(
        lambda n: st.integers(0, n).flatmap(lambda g: st.tuples(st.just(n), st.just(g), st.integers(0, n - g)))
    )


shares = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(shares)
def test_wilson_against_its_formula(share: tuple[int, int]) -> None:
    low, high = wilson(np.array([share[0]]), np.array([share[1]]))
    assert (low[0], high[0]) == pytest.approx(naive_statistics.wilson(*share), abs=1e-12)


@given(shares, st.sampled_from([0.8, 0.99]))
def test_wilson_against_scipy(share: tuple[int, int], level: float) -> None:
    low, high = wilson(np.array([share[0]]), np.array([share[1]]), level)
    expected = stats.binomtest(*share).proportion_ci(level, "wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_without_trials() -> None:
    low, high = wilson(np.array([0, 3]), np.array([0, 6]))
    assert np.isnan([low[0], high[0]]).all()
    assert (low[1], high[1]) == pytest.approx((0.1876, 0.8124), abs=1e-4)


@settings(max_examples=settings().max_examples // 3)  # each takes long: the oracle maximises likelihoods
@given(changes(60))
def test_paired_interval_against_the_likelihood(counts: tuple[int, int, int]) -> None:
    n, gained, lost = counts
    expected = naive_statistics.paired_score_interval(gained, lost, n)
    assert paired_share_interval(gained, lost, n) == pytest.approx(expected, abs=1e-6)


@given(changes(10**7), st.sampled_from([0.5, 0.8, 0.99]))
def test_paired_interval_holds_the_difference_and_knows_no_side(counts: tuple[int, int, int], level: float) -> None:
    n, gained, lost = counts
    low, high = paired_share_interval(gained, lost, n, level)
    assert -1 <= low <= (gained - lost) / n <= high <= 1
    assert paired_share_interval(lost, gained, n, level) == pytest.approx((-high, -low), abs=1e-11)
    wider = paired_share_interval(gained, lost, n, 0.999)
    assert wider[0] - 1e-11 <= low < high <= wider[1] + 1e-11


def test_paired_interval_by_hand() -> None:
    z2 = stats.norm.ppf(0.975) ** 2
    assert paired_share_interval(0, 0, 1) == pytest.approx((-z2 / (1 + z2), z2 / (1 + z2)))
    assert paired_share_interval(1, 0, 1) == pytest.approx(((1 - z2) / (1 + z2), 1.0))
    assert paired_share_interval(0, 872, 872) == pytest.approx((-1.0, (z2 - 872) / (872 + z2)))


@pytest.mark.parametrize("counts", [(0, 0, 0), (2, 1, 2), (-1, 0, 5)])
def test_paired_interval_of_counts_that_cannot_be(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=rf"{counts[0]} gained and {counts[1]} lost of {counts[2]} trials"):
        paired_share_interval(*counts)


def coverage(n: int, gain: float, loss: float) -> float:
    """How often the interval holds the true difference: the sum over all outcomes but a share of 1e-8 of them."""
    most = [int(stats.binom.isf(1e-9, n, p)) for p in (gain, loss)]
    gained, lost = (counts.ravel() for counts in np.indices((most[0] + 1, most[1] + 1)))
    possible = gained + lost <= n
    gained, lost = gained[possible], lost[possible]
    chance = stats.binom.pmf(gained, n, gain) * stats.binom.pmf(lost, n - gained, loss / (1 - gain))
    ends = np.array([paired_share_interval(int(g), int(x), n) for g, x in zip(gained, lost, strict=True)])
    held = (ends[:, 0] <= gain - loss) & (gain - loss <= ends[:, 1])
    assert chance.sum() == pytest.approx(1, abs=1e-7)
    return float(chance[held].sum())


@pytest.mark.parametrize(
    "n", [50, pytest.param(222, marks=pytest.mark.slow), pytest.param(872, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("rate", [0.01, 0.02, 0.05, 0.1, 0.2])
def test_paired_interval_covers(n: int, rate: float) -> None:
    for one_side in (0.0, 0.1, 0.25, 0.5, 1.0):
        assert coverage(n, rate * one_side, rate * (1 - one_side)) >= 0.94


def test_numbers_that_differ_by_rounding_are_the_same() -> None:
    mean, *ends = mean_interval([0.71 - 0.61, 0.81 - 0.71, 0.1])
    assert mean == pytest.approx(0.1)
    assert np.isnan(ends).all()
    assert np.isnan(mean_interval([0.0, 1.1e-16, -1.1e-16])[1:]).all(), "of differences of nothing, too"
    low, high = mean_interval([0.1, 0.1 + 1e-9])[1:]
    assert low < 0.1 < high
