"""Paired statistics against scipy, statsmodels and counting everything."""

from __future__ import annotations

import math
from itertools import product

import naive_statistics
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as reference
from statsmodels.stats.multitest import multipletests
from tiers import rest_slow_rows

from headlens.statistics.bootstrap import Draws
from headlens.statistics.non_inferiority import skewed_tail, t_below
from headlens.statistics.paired_tests import (
    Comparison,
    PairedComparison,
    holm,
    interval_around,
    mcnemar,
    mcnemar_greater,
    out_of_order,
    p_from,
    replicates_of,
)

PAIRS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=60)


def keys(n: int) -> list[str]:
    return [f"example {i}" for i in range(n)]


def mean(records: np.ndarray, weights: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        found: np.ndarray = weights @ records[:, 0] / weights.sum(axis=1)
    return found


def correlation(records: np.ndarray, weights: np.ndarray) -> np.ndarray:
    def one(row: np.ndarray) -> float:
        covariance = np.cov(records.T, aweights=row, ddof=0)
        return float(covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1]))

    return np.array([one(row) for row in weights])


def first(records: np.ndarray) -> np.ndarray:
    return records[:, 0]


def column(values: object) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


def compare_means(ours: object, theirs: object, draws: Draws) -> PairedComparison:
    return Comparison(column(theirs), mean, draws).of(column(ours))


@given(PAIRS)
def test_mcnemar_is_that_of_statsmodels(pairs: list[tuple[int, int]]) -> None:
    ours, theirs = np.array(pairs).T
    table = [[int(((ours == i) & (theirs == j)).sum()) for j in (0, 1)] for i in (0, 1)]
    if table[0][1] + table[1][0]:
        assert mcnemar(ours, theirs) == pytest.approx(float(reference(table, exact=True).pvalue))
    else:
        assert mcnemar(ours, theirs) == 1
    assert mcnemar(ours, theirs) == mcnemar(theirs, ours)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=7))
def test_what_is_out_of_order_is_as_little_as_can_be(scores: list[tuple[int, int]]) -> None:
    """Against all parts of the examples: the largest in which every two are ordered, or tie, alike."""
    ours, theirs = np.array(scores).reshape(-1, 2).T

    def alike(part: tuple[int, ...]) -> bool:
        return all(np.sign(ours[i] - ours[j]) == np.sign(theirs[i] - theirs[j]) for i, j in product(part, part))

    parts = [tuple(np.flatnonzero(bits)) for bits in product((False, True), repeat=len(ours))]
    kept = np.flatnonzero(~out_of_order(ours, theirs))
    assert alike(tuple(kept))
    assert len(kept) == max(len(part) for part in parts if alike(part))


def test_one_example_that_goes_far_is_one() -> None:
    theirs = np.arange(40.0)
    ours = theirs.copy()
    ours[3] = 100  # all behind it have another rank
    assert np.flatnonzero(out_of_order(ours, theirs)).tolist() == [3]


def test_mcnemar_by_hand() -> None:
    assert mcnemar([1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]) == pytest.approx(2 / 32)


@pytest.mark.parametrize("scores", [[0, 0.5], [2, 1], [np.nan, 0]])
def test_mcnemar_refuses_other_scores(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="scores of 0 and 1"):
        mcnemar(scores, [0, 1])


def test_scores_must_pair() -> None:
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        mcnemar([0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="2 examples, but draws of 3"):
        compare_means([0, 1], [1, 1], Draws.of(keys(3)))
    with pytest.raises(ValueError, match="1 examples, but draws of 2"):
        Comparison(column([0, 1]), mean, Draws.of(keys(2))).of(column([1]))


def test_replicates_are_the_metric_of_repeated_examples() -> None:
    rng = np.random.default_rng(0)
    records, draws = rng.normal(size=(30, 2)), Draws.of(keys(30), 20)
    for value, counts in zip(replicates_of(records, correlation, draws), draws.counts, strict=True):
        repeated = np.repeat(records, counts, axis=0)
        assert value == pytest.approx(float(np.corrcoef(repeated.T)[0, 1]))


def test_the_value_and_the_difference_are_those_of_the_metric() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(size=(2, 40, 2))
    found = Comparison(theirs, correlation, Draws.of(keys(40), 20)).of(ours)
    assert found.value == pytest.approx(float(np.corrcoef(ours.T)[0, 1]))
    assert found.delta == pytest.approx(float(np.corrcoef(ours.T)[0, 1] - np.corrcoef(theirs.T)[0, 1]))


def test_replicates_are_paired() -> None:
    rng = np.random.default_rng(1)
    theirs = rng.normal(size=(40, 1))
    found = Comparison(theirs, mean, Draws.of(keys(40), 200)).of(theirs + 1 + 1e-7 * rng.normal(size=(40, 1)))
    assert (found.low, found.delta, found.high) == pytest.approx((1, 1, 1))


def test_right_and_wrong_get_the_exact_p_value_and_the_score_interval() -> None:
    rng = np.random.default_rng(2)
    ours, theirs = rng.integers(0, 2, (2, 50))
    found = Comparison(column(theirs), mean, Draws.of(keys(50)), first).of(column(ours))
    assert found.p_value == mcnemar(ours, theirs)
    gained, lost = int((ours > theirs).sum()), int((ours < theirs).sum())
    expected = naive_statistics.paired_score_interval(gained, lost, 50)
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-6)


def test_one_example_that_is_right_has_a_score_interval() -> None:
    found = Comparison(column([0]), mean, Draws.of(keys(1)), first).of(column([1]))
    assert (found.delta, found.low, found.high) == pytest.approx((1, -0.587, 1), abs=1e-3)
    assert found.p_value == 1


def test_examples_that_are_drawn_together_keep_the_bootstrap() -> None:
    rng = np.random.default_rng(6)
    ours, theirs = rng.integers(0, 2, (2, 50))
    paragraphs = Draws.of([f"paragraph {i // 5}" for i in range(50)], 300)
    found = Comparison(column(theirs), mean, paragraphs, first).of(column(ours))
    without = Comparison(column(theirs), mean, paragraphs).of(column(ours))
    assert paragraphs.clusters is not None
    assert Draws.of(keys(50)).clusters is None
    assert (found.low, found.high) == (without.low, without.high)
    assert found.p_value == mcnemar(ours, theirs, np.arange(50) // 5) != mcnemar(ours, theirs)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=12))
def test_mcnemar_by_clusters_is_the_share_of_all_signs(rows: list[tuple[int, int, int]]) -> None:
    """Every way to give the differences of clusters signs, counted one by one."""
    clusters, ours, theirs = map(np.array, zip(*rows, strict=True))
    sums = [int((ours - theirs)[clusters == c].sum()) for c in range(5)]
    ways = [abs(sum(s * d for s, d in zip(signs, sums, strict=True))) for signs in product((-1, 1), repeat=5)]
    expected = np.mean([way >= abs(sum(sums)) for way in ways])
    assert mcnemar(ours, theirs, clusters) == pytest.approx(expected)
    # Clusters of one are examples that are independent.
    assert mcnemar(ours, theirs, np.arange(len(rows))) == pytest.approx(mcnemar(ours, theirs))


@pytest.mark.parametrize(("runs", "most"), rest_slow_rows([(200, 0.096), (400, 0.075)]))
def test_clusters_that_change_sides_together_are_no_evidence_each(runs: int, most: float) -> None:
    """A hundred paragraphs of five questions that fare alike: the test errs with five in a hundred, at most."""
    rng, clusters, found = np.random.default_rng(11), np.repeat(np.arange(100), 5), []
    for _ in range(runs):
        ours, theirs = np.repeat(rng.integers(0, 2, (2, 100)), 5, axis=1)
        found.append((mcnemar(ours, theirs, clusters), mcnemar(ours, theirs)))
    by_clusters, by_examples = (np.array(found) < 0.05).mean(axis=0)
    assert by_clusters < most  # three standard errors above
    assert by_examples > 0.3


def test_the_interval_is_that_of_a_t_test_for_many_examples() -> None:
    rng = np.random.default_rng(3)
    theirs = rng.normal(size=800)
    ours = theirs + rng.normal(0.05, 0.5, size=800)
    found = compare_means(ours, theirs, Draws.of(keys(800), 2000))
    expected = stats.ttest_rel(ours, theirs)
    interval = expected.confidence_interval()
    assert found.low == pytest.approx(interval.low, abs=0.006)
    assert found.high == pytest.approx(interval.high, abs=0.006)
    assert found.p_value == pytest.approx(expected.pvalue, abs=0.02)


def test_p_values_are_even_when_systems_do_not_differ() -> None:
    rng = np.random.default_rng(4)
    draws = Draws.of(keys(100), 200)
    pairs = rng.normal(size=(200, 2, 100))
    p_values = [compare_means(a, b, draws).p_value for a, b in pairs]
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_the_same_system_differs_by_nothing() -> None:
    records = np.random.default_rng(5).normal(size=(30, 2))
    found = Comparison(records, correlation, Draws.of(keys(30), 100)).of(records)
    assert (found.delta, found.p_value) == (0, 1)
    assert np.isnan([found.low, found.high]).all(), "nothing is seen of what other examples would change"


def test_the_interval_has_the_difference_inside() -> None:
    found = compare_means([1, 0, 1, 1, 0] * 2, [0, 0, 0, 1, 0] * 2, Draws.of(keys(10), 2))
    assert found.low <= found.delta <= found.high


@pytest.mark.parametrize(("clusters", "known"), [(1, False), (2, False), (9, False), (10, True)])
def test_examples_of_few_clusters_have_no_interval(clusters: int, known: bool) -> None:
    """Many questions about one paragraph tell of that paragraph alone."""
    numbers = np.arange(40) % clusters
    records = np.random.default_rng(0).normal(size=clusters)[numbers]
    found = compare_means(records, np.zeros(40), Draws.of([f"paragraph {number}" for number in numbers], 200))
    assert np.isfinite([found.low, found.high, found.p_value]).all() == known


def test_replicates_without_a_value_are_left_out() -> None:
    never = Comparison(np.ones((10, 1)), lambda _, w: np.full(len(w), np.nan), Draws.of(keys(10), 5)).of(
        np.ones((10, 1))
    )
    assert np.isnan([never.delta, never.low, never.high, never.p_value]).all()


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20))
def test_holm_by_its_definition(percent: list[int]) -> None:
    p_values = [p / 100 for p in percent]
    found, order = holm(p_values), np.argsort(p_values)
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        assert found[i] == pytest.approx(highest)


def test_holm_is_that_of_statsmodels() -> None:
    p_values = np.random.default_rng(0).random(300) ** 4
    p_values[[3, 40]] = np.nan
    known = ~np.isnan(p_values)
    np.testing.assert_allclose(holm(p_values)[known], multipletests(p_values[known], method="holm")[1], rtol=1e-12)
    assert np.isnan(holm(p_values)[~known]).all()


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]).shape == (0,)


def test_holm_leaves_out_what_has_no_p_value() -> None:
    assert holm([0.01, np.nan, 0.04])[[0, 2]] == pytest.approx([0.02, 0.04])
    assert np.isnan(holm([0.01, np.nan])[1])
    assert np.isnan(holm([np.nan])).all()


def test_fewer_than_ten_examples_have_no_interval() -> None:
    for count, known in ((9, False), (10, True)):
        records = np.linspace(0, 1, count)[:, None]
        draws = Draws.of([str(i) for i in range(count)], 200)
        found = Comparison(records, mean, draws).of(1.1 * records)
        assert found.delta == pytest.approx(0.05)
        assert np.isfinite([found.low, found.high, found.p_value]).all() == known


def test_of_few_examples_corrected_p_values_are_not_too_small() -> None:
    """72 heads without any effect on 12 examples: some were significant in one data set of seven, by the tail alone."""
    random, found = np.random.default_rng(0), 0
    counts = random.poisson(1.0, (2000, 12))
    weights = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for _ in range(40):
        heads = random.normal(size=(12, 72))
        replicates, means = weights @ heads, heads.mean(axis=0)
        p_values = [p_from(replicates[:, head], means[head], 12) for head in range(72)]
        found += bool((holm(p_values) < 0.05).any())
    assert found <= 5, "0.05 of 40, and chance"


def test_the_tail_below_a_distance_is_that_of_a_t_test() -> None:
    x = np.random.default_rng(1).normal(0.4, 1.0, 15)
    # Replicates with exactly the standard deviation that infinitely many would have, and without skewness.
    replicates = x.mean() + x.std() / math.sqrt(15) * np.tile([-1.0, 1.0], 20)
    for against in (0.0, 0.9):
        one_sided = stats.ttest_1samp(x, against, alternative="less").pvalue
        assert t_below(replicates, x.mean() - against, 15) == pytest.approx(one_sided)
        # The deviation of three replicates is known by two degrees of freedom.
        t = (x.mean() - against) / x.std() * math.sqrt(14)
        few = x.mean() + x.std() / math.sqrt(15) * math.sqrt(1.5) * np.array([-1.0, 0.0, 1.0])
        assert t_below(few, x.mean() - against, 15) == pytest.approx(stats.t.cdf(t, 2))
    assert (t_below(np.zeros(3), -0.1, 9), t_below(np.zeros(3), 0.0, 9), t_below(np.zeros(3), 0.1, 9)) == (0, 0.5, 1)


@given(skewness=st.floats(1e-3, 2.0), distance=st.floats(0.01, 30.0))
def test_the_tail_of_a_gamma_variable_is_exact(skewness: float, distance: float) -> None:
    """Its estimated standard error is as many times the true one as it is the true mean."""
    estimate = 1 / (1 + skewness * distance / 2)
    assert (estimate - 1) / (estimate * skewness / 2) == pytest.approx(-distance)
    shape = 4 / skewness**2
    exact = max(stats.gamma.cdf(estimate, shape, scale=1 / shape), stats.norm.cdf(-distance))
    assert skewed_tail(-distance, skewness, math.inf) == pytest.approx(exact, rel=1e-6, abs=1e-300)
    # Of a sample that is skewed to the other side, Student's tail is the larger one.
    assert skewed_tail(-distance, -skewness, 20) == pytest.approx(stats.t.cdf(-distance, 20))
    assert skewed_tail(distance, skewness, 20) == pytest.approx(stats.t.cdf(distance, 20))


@pytest.mark.parametrize("distance", [0.5, 1.0, 2.0])
def test_the_tail_of_little_skewness_is_that_of_edgeworths_expansion(distance: float) -> None:
    """Hall 1992: the tail of t is that of a normal variable and g (2 t² + 1) / 6 times its density."""
    for skewness in (1e-4, 1e-3):
        more = skewness * (2 * distance**2 + 1) / 6 * stats.norm.pdf(distance)
        found = skewed_tail(-distance, skewness, math.inf) - stats.norm.cdf(-distance)
        assert found == pytest.approx(more, rel=0.01)


@given(st.floats(1e-3, 3.0), st.integers(2, 200))
def test_the_tail_falls_at_any_distance(skewness: float, degrees: int) -> None:
    """Hall's cubic stays at -1 / g from 3 / g standard errors on: what was 7 of them away was not significant."""
    tails = np.array([skewed_tail(-distance, skewness, degrees) for distance in np.linspace(0, 30, 61)])
    assert (tails[1:] < tails[:-1])[tails[:-1] > 0].all()


@settings(max_examples=30, deadline=None)
@given(tests=st.integers(1, 3000), replicates=st.integers(100, 300), better=st.booleans())
def test_a_large_difference_is_significant_among_any_number_of_tests(tests: int, replicates: int, better: bool) -> None:
    """A floor of 1 / (1 + replicates) left nothing significant among more tests than replicates / 20."""
    examples = np.random.default_rng(tests).normal(1.0 if better else -1.0, 0.3, (400, 1))
    found = Comparison(np.zeros((400, 1)), mean, Draws.of([*map(str, range(400))], replicates)).of(examples)
    assert holm([found.p_value, *[0.5] * (tests - 1)])[0] < 0.05


@pytest.mark.parametrize("draw", ["exponential", "lognormal"])
def test_few_examples_that_change_most_are_not_missed(draw: str) -> None:
    """54 heads without effect on 150 examples: by Student's t one was significant in one data set of eight or three."""
    random = np.random.default_rng(0)
    weights = random.multinomial(150, [1 / 150] * 150, 1000) / 150
    expected = {"exponential": 1.0, "lognormal": math.exp(0.5)}[draw]
    corrected, by_t = 0, 0
    for _ in range(40):
        heads = getattr(random, draw)(size=(150, 54)) - expected
        replicates, means = weights @ heads, heads.mean(axis=0)
        corrected += bool(min(p_from(replicates[:, head], means[head], 150) for head in range(54)) * 54 < 0.05)
        by_t += bool(stats.ttest_1samp(heads, 0.0).pvalue.min() * 54 < 0.05)
    assert corrected <= {"exponential": 3, "lognormal": 8}[draw]
    assert corrected < by_t / 1.5


@given(st.integers(0, 40), st.integers(0, 40))
def test_one_sided_mcnemar_against_the_binomial_sum(first: int, second: int) -> None:
    p = mcnemar_greater(np.array([first]), np.array([second]), np.array([100]))[0]
    assert p == pytest.approx(naive_statistics.paired_p_value(first, second), rel=1e-9)


@given(st.integers(1, 30), st.integers(0, 30))
def test_one_sided_mcnemar_against_statsmodels(first: int, second: int) -> None:
    """Its two-sided p-value is twice the smaller one-sided one."""
    p = mcnemar_greater(np.array([first]), np.array([second]), np.array([100]))[0]
    other = mcnemar_greater(np.array([second]), np.array([first]), np.array([100]))[0]
    two_sided = reference([[7, first], [second, 9]], exact=True).pvalue
    assert min(1.0, 2 * min(p, other)) == pytest.approx(two_sided, rel=1e-9)


def test_one_sided_mcnemar_without_differences_or_trials() -> None:
    p = mcnemar_greater(np.array([0, 0, 3]), np.array([0, 0, 0]), np.array([0, 10, 10]))
    assert math.isnan(p[0])
    assert p[1:].tolist() == pytest.approx([1, 1 / 8])


@pytest.mark.parametrize("noise", [0.0, 5.6e-17, 1e-13])
def test_rounding_is_no_difference(noise: float) -> None:
    """Where no resample differs from another there is no interval, and a difference of rounding is none."""
    replicates = 0.3 + noise * np.resize([1.0, -1.0, 0.0], 1000)
    assert np.isnan(interval_around(0.3, replicates)).all()
    assert p_from(np.full(1000, noise), noise, 50) == 1.0
    low, high = interval_around(0.3, 0.3 + np.resize([1e-6, -1e-6], 1000))
    assert low < 0.3 < high
    assert p_from(np.full(1000, 1e-3), 1e-3, 50) < 0.01
