"""Tests of a loss against a margin: closed forms, all outcomes enumerated, and simulated data sets."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tiers import rest_slow, rest_slow_rows

from headlens.statistics.bootstrap import Draws
from headlens.statistics.intervals import paired_share_interval
from headlens.statistics.non_inferiority import (
    FEW_CHANGES,
    LEVEL,
    NEEDED,
    NOT_DECIDED,
    NOT_NEEDED,
    Margin,
    about,
    bootstrap_loss_p,
    examples_to_decide,
    share_loss_p,
    skewed_tail,
    unchanged_to_decide,
    verdict,
    verdict_of_interval,
)
from headlens.statistics.paired_tests import Comparison
from headlens.statistics.weighted_means import f1


def first(records: np.ndarray) -> np.ndarray:
    return records[:, 0]


def share(records: np.ndarray, weights: np.ndarray) -> np.ndarray:
    found: np.ndarray = weights @ records[:, 0] / weights.sum(axis=1)
    return found


def f1_of(records: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return f1(records[:, 0], records[:, 1], weights)


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_without_gains_it_is_close_to_the_binomial_tail(lost: int) -> None:
    # Of trials that lose with a probability of .03 and never gain so few lose; gains can only make that rarer.
    tail = stats.binom.cdf(lost, 300, 0.03)
    assert tail <= share_loss_p(0, lost, 300, 0.03) <= tail + 0.003


@given(st.integers(1, 40), st.floats(0.005, 0.3), st.data())
def test_a_loss_more_or_a_gain_less_never_helps(trials: int, margin: float, data: st.DataObject) -> None:
    gained = data.draw(st.integers(0, trials - 1))
    lost = data.draw(st.integers(0, trials - 1 - gained))
    p_value = share_loss_p(gained, lost, trials, margin)
    assert 0 <= p_value <= 1
    assert share_loss_p(gained, lost + 1, trials, margin) >= p_value - 1e-5
    assert share_loss_p(gained + 1, lost, trials, margin) <= p_value + 1e-5
    # Trials are ordered by their score at the margin, so that with losses a larger one may have a larger p-value.
    assert share_loss_p(gained, 0, trials, margin + 0.05) <= share_loss_p(gained, 0, trials, margin) + 1e-5


@pytest.mark.parametrize(("trials", "margin"), rest_slow_rows([(12, 0.2), (20, 0.1), (30, 0.3), (60, 0.05)]))
def test_it_errs_in_at_most_the_level_of_all_data_sets(trials: int, margin: float) -> None:
    outcomes = [(g, lost) for g, lost in product(range(trials + 1), repeat=2) if g + lost <= trials]
    called = np.array([share_loss_p(g, lost, trials, margin) < LEVEL for g, lost in outcomes])
    counts = np.array([(g, lost, trials - g - lost) for g, lost in outcomes])
    for gain in np.linspace(0, (1 - margin) / 2, 40):
        chances = stats.multinomial.pmf(counts, trials, [gain, gain + margin, max(0.0, 1 - 2 * gain - margin)])
        assert chances[called].sum() <= LEVEL


@pytest.mark.parametrize("n", rest_slow([135, 50, 270, 872, 3000], fast=(135,)))
@pytest.mark.parametrize("changed", [0.03, 0.1])
def test_a_set_that_loses_two_points_is_rarely_called_not_needed(n: int, changed: float) -> None:
    rng = np.random.default_rng(n)
    lost, gained = (changed + 0.02) / 2, (changed - 0.02) / 2
    samples = rng.multinomial(n, [gained, lost, 1 - gained - lost], size=2000)
    found, times = np.unique(samples[:, :2], axis=0, return_counts=True)
    for margin in (0.01, 0.02):  # at the margin itself it is hardest
        called = [share_loss_p(int(g), int(one), n, margin) < LEVEL for g, one in found]
        share_called = times[called].sum() / len(samples)
        assert share_called <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / len(samples))


@pytest.mark.parametrize(("n", "data_sets"), rest_slow_rows([(222, 40), (222, 400), (872, 400)]))
def test_f1_that_loses_two_points_is_rarely_called_not_needed(n: int, data_sets: int) -> None:
    rng, called = np.random.default_rng(n), 0
    draws = Draws.of([f"{i}" for i in range(n)], 400)
    for _ in range(data_sets):
        gold = (rng.random(n) < 0.5).astype(float)
        whole = np.where(rng.random(n) < 0.85, gold, 1 - gold)
        # Of examples 5 % change, more of them to the wrong side: accuracy, and about F1, lose two points.
        moved = rng.random(n)
        worse = np.where((whole == gold) & (moved < 0.035 / 0.85), 1 - whole, whole)
        worse = np.where((whole != gold) & (moved < 0.015 / 0.15), gold, worse)
        compare = Comparison(np.stack([gold, whole], 1), f1_of, draws, margin=Margin(0.02))
        called += compare.of(np.stack([gold, worse], 1)).p_margin < LEVEL
    assert called / data_sets <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / data_sets)


def test_more_examples_of_the_same_kind_decide() -> None:
    # No loss at all: undecided with few, not needed with more, and no data give no news.
    p_values = [share_loss_p(n // 50, n // 50, n, 0.01) for n in (100, 400, 1600, 6400)]
    assert p_values == sorted(p_values, reverse=True)
    assert p_values[0] > LEVEL > p_values[-1]


@pytest.mark.parametrize("margin", rest_slow([0.02, 0.01]))
def test_what_would_decide_decides_in_four_of_five_cases(margin: float) -> None:
    rng, lost, gained = np.random.default_rng(0), 0.02, 0.02
    n = int(about(examples_to_decide(0.0, math.sqrt(lost + gained), Margin(margin))))
    samples = rng.multinomial(n, [gained, lost, 1 - gained - lost], size=300)
    called = [share_loss_p(int(g), int(one), n, margin) < LEVEL for g, one, _ in samples]
    assert np.mean(called) == pytest.approx(0.8, abs=0.08)


def test_what_would_decide_by_hand() -> None:
    z_margin, z_loss, power = (stats.norm.isf(p) for p in (0.05, 0.025, 0.2))
    assert examples_to_decide(0.0, 2.0, Margin(0.5)) == pytest.approx(((z_margin + power) * 4) ** 2)
    # Twice the margin is lost: only the loss can be shown.
    assert examples_to_decide(1.0, 2.0, Margin(0.5)) == pytest.approx(((z_loss + power) * 2) ** 2)
    assert examples_to_decide(0.0, 2.0, Margin(0.5, tests=40)) > 2 * examples_to_decide(0.0, 2.0, Margin(0.5))
    assert math.isnan(examples_to_decide(0.0, 0.0, Margin(0.5)))


@pytest.mark.parametrize("skewness", [0.5, 4.0, 20.0])
def test_skewed_examples_need_more_to_decide(skewness: float) -> None:
    """So many decide in eight of ten samples: there the estimate is .84 deviations nearer to the margin at most."""
    margin, power = Margin(0.5, tests=12), float(stats.norm.ppf(0.8))
    number = examples_to_decide(0.0, 2.0, margin, skewness)
    assert number > examples_to_decide(0.0, 2.0, margin, -skewness) == examples_to_decide(0.0, 2.0, margin)
    for n, decided in ((0.99 * number, False), (1.01 * number, True)):
        tail = skewed_tail(power - 0.5 / 2.0 * math.sqrt(n), skewness / math.sqrt(n), math.inf)
        assert (tail < LEVEL / 12) == decided
    assert [about(n) for n in (7.2, 99.0, 101.0, 1234.0, 15_678.0)] == [8, 99, 110, 1300, 16_000]


def test_a_bootstrap_that_sees_no_change_decides_nothing() -> None:
    gold = np.tile([0.0, 1.0], 20)
    draws = Draws.of([f"{i}" for i in range(40)], 100)
    records = np.stack([gold, gold], 1)
    compare = Comparison(records, f1_of, draws, margin=Margin(0.01))
    same = compare.of(records)
    assert same.delta == 0
    assert math.isnan(same.p_margin)
    assert math.isnan(same.n_to_decide)
    changed = records.copy()
    changed[: FEW_CHANGES - 1, 1] = 1 - changed[: FEW_CHANGES - 1, 1]
    assert math.isnan(compare.of(changed).p_margin)
    assert compare.of(changed).n_to_decide >= about(40 * FEW_CHANGES / (FEW_CHANGES - 1))
    changed[:FEW_CHANGES, 1] = 1 - gold[:FEW_CHANGES]
    assert compare.of(changed).p_margin == 1


@pytest.mark.parametrize(("gains", "least"), [(0, 50), (2, 100), (3, 600)])
def test_examples_until_ten_change_do_not_decide_where_changes_go_both_ways(gains: int, least: float) -> None:
    """Of 28 examples 8 changed, by a mean of a hundredth: 35 of which 10 change were said to decide, 450 do."""
    loss = np.random.default_rng(1).normal(3, 1, (40, 1))
    changed = loss.copy()
    changed[:8] += np.where(np.arange(8) < gains, -1, 1)[:, None]
    draws = Draws.of([f"{i}" for i in range(40)], 2000)
    found = Comparison(loss, share, draws, margin=Margin(0.01, lower_is_better=True)).of(changed)
    assert math.isnan(found.p_margin)
    by_formula = examples_to_decide(found.delta, float((changed - loss).std()), Margin(0.01, lower_is_better=True))
    assert found.n_to_decide >= max(0.95 * by_formula, 40 * FEW_CHANGES / 8, least)
    assert found.n_to_decide <= 1.5 * max(by_formula, 40 * FEW_CHANGES / 8)


@pytest.mark.parametrize(("margin", "tests"), [(0.01, 1), (0.01, 60), (0.05, 3), (0.2, 144)])
def test_so_many_examples_decide_if_none_changes(margin: float, tests: int) -> None:
    """With as many the exact test is significant, with one less it is not; 299 for one test at a margin of .01."""
    number = unchanged_to_decide(Margin(margin, tests=tests))
    assert share_loss_p(0, 0, int(number), margin) <= LEVEL / tests < share_loss_p(0, 0, int(number) - 1, margin)
    records = np.ones((50, 1))
    compare = Comparison(
        records, share, Draws.of([f"{i}" for i in range(50)], 20), lambda r: r[:, 0], Margin(margin, tests=tests)
    )
    assert compare.of(records).n_to_decide == about(max(number, 51))
    assert (margin, tests) != (0.01, 1) or number == 299


def test_a_loss_that_grows_is_worse() -> None:
    rng = np.random.default_rng(0)
    nll = rng.normal(2.5, 1.0, (200, 1))
    draws = Draws.of([f"{i}" for i in range(200)], 500)
    compare = Comparison(nll, share, draws, margin=Margin(0.025, lower_is_better=True))
    less, more = (compare.of(nll + shift + rng.normal(0, 0.01, nll.shape)).p_margin for shift in (-0.5, 0.5))
    assert less < LEVEL < more
    accuracy = Comparison(nll, share, draws, margin=Margin(0.025))
    assert accuracy.of(nll - 0.5 + rng.normal(0, 1e-6, nll.shape)).p_margin == 1


def test_a_comparison_of_shares_is_exact_and_without_a_margin_nothing_is_tested() -> None:
    right = np.ones((300, 1))
    draws = Draws.of([f"{i}" for i in range(300)], 10)
    one_lost = right.copy()
    one_lost[0] = 0
    found = Comparison(right, share, draws, first, Margin(0.03)).of(one_lost)
    assert found.p_margin == share_loss_p(0, 1, 300, 0.03) < LEVEL
    plain = Comparison(right, share, draws, first).of(one_lost)
    assert math.isnan(plain.p_margin)
    assert math.isnan(plain.n_to_decide)


def test_the_bootstrap_takes_the_larger_of_two_tails() -> None:
    losses = np.array([-0.3, -0.1, 0.0, 0.0, 0.4])
    # one of five loses .2 or more; of those centred at 0, one lies 0.2 below
    assert bootstrap_loss_p(losses, 0.0, 0.2, 10**6) == pytest.approx(2 / 6)
    assert bootstrap_loss_p(losses, 0.0, 0.05, 10**6) == pytest.approx(3 / 6)
    assert math.isnan(bootstrap_loss_p(np.array([]), 0.0, 0.2, 10))


@pytest.mark.parametrize(
    ("loss", "p_loss", "p_margin", "expected"),
    [
        (0.02, 0.01, 0.9, NEEDED),
        (0.02, 0.2, 0.9, NOT_DECIDED),
        (0.001, 0.01, 0.01, NOT_NEEDED),  # significant, but too small to matter
        (-0.02, 0.01, 0.2, NOT_DECIDED),  # significantly better, with a wide interval
        (-0.02, 0.2, 0.01, NOT_NEEDED),
        (math.nan, math.nan, math.nan, NOT_DECIDED),
    ],
)
def test_verdicts(loss: float, p_loss: float, p_margin: float, expected: str) -> None:
    assert verdict(loss=loss, p_loss=p_loss, p_margin=p_margin) == expected


def test_verdicts_by_an_interval_follow_the_direction_of_the_metric() -> None:
    assert verdict_of_interval(-0.03, -0.084, 0.019, Margin(0.01)) == NOT_DECIDED
    assert verdict_of_interval(-0.03, -0.05, -0.01, Margin(0.01)) == NEEDED
    assert verdict_of_interval(0.0, -0.009, 0.009, Margin(0.01)) == NOT_NEEDED
    assert verdict_of_interval(0.03, 0.01, 0.05, Margin(0.01, lower_is_better=True)) == NEEDED
    assert verdict_of_interval(-0.03, -0.05, -0.01, Margin(0.01, lower_is_better=True)) == NOT_NEEDED
    assert verdict_of_interval(-0.03, math.nan, math.nan, Margin(0.01)) == NOT_DECIDED
    # The interval is the stricter of the two.
    low, high = paired_share_interval(0, 0, 299)
    assert share_loss_p(0, 0, 299, 0.01) < LEVEL
    assert verdict_of_interval(0.0, low, high, Margin(0.01)) == NOT_DECIDED
