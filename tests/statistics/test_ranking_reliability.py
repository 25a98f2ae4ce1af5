"""Shares of variance and reliabilities of simulated rankings whose components are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headlens.statistics.ranking_reliability import (
    between_halves,
    disattenuated_correlations,
    random_halves,
    spearman_brown,
    unit_ranks,
    variance_shares,
)

ITEMS, METHODS, EXAMPLES, SPLITS = 600, 3, 40, 4


def simulated(of_items: float, of_methods: float, shared: float, own: float) -> tuple[np.ndarray, np.ndarray]:
    """Ranks on both halves of examples, (splits, methods, items), of scores with these variances.

    `shared` and `own` are those of the noise of a mean over all examples, common to the methods and of each alone.
    """
    rng = np.random.default_rng(0)
    item = rng.normal(0, np.sqrt(of_items), (1, ITEMS, 1))
    method = rng.normal(0, np.sqrt(of_methods), (METHODS, ITEMS, 1))
    noise = rng.normal(0, np.sqrt(shared * EXAMPLES), (1, ITEMS, EXAMPLES))
    noise = noise + rng.normal(0, np.sqrt(own * EXAMPLES), (METHODS, ITEMS, EXAMPLES))
    scores = item + method + noise
    halves = random_halves([f"{n}" for n in range(EXAMPLES)], SPLITS, 1)
    first, second = (np.stack([scores[:, :, half].mean(-1) for half in way]) for way in (halves, ~halves))
    return stats.rankdata(first, axis=-1), stats.rankdata(second, axis=-1)


@pytest.mark.parametrize(
    "variances", [(1.0, 0.5, 0.0, 0.3), (1.0, 0.0, 0.4, 0.2), (0.2, 1.0, 0.1, 0.1), (1.0, 1.0, 0.0, 0.0)]
)
def test_components_that_were_put_in_come_out(variances: tuple[float, float, float, float]) -> None:
    of_items, of_methods, shared, own = variances
    first, second = simulated(*variances)
    total = sum(variances)
    expected = (of_items / total, of_methods / total, (shared + own) / total)
    assert variance_shares(first, second) == pytest.approx(expected, abs=0.06)
    within = float(np.diag(between_halves(first, second)).mean())
    assert spearman_brown(within) == pytest.approx((of_items + of_methods) / total, abs=0.04)
    # What two methods would agree in without noise, although part of their noise is the same.
    correlation = disattenuated_correlations(first, second)
    assert correlation[0, 1] == pytest.approx(of_items / (of_items + of_methods), abs=0.09)
    np.testing.assert_allclose(np.diag(correlation), 1)


def test_reliability_is_the_correlation_with_as_many_other_examples() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(size=(2000, 1))
    one, other = (truth + rng.normal(0, 5, (2000, 50)) for _ in range(2))
    halves = random_halves([f"{n}" for n in range(50)], 6, 0)
    first, second = (stats.rankdata(np.stack([one[:, h].mean(1) for h in way]), axis=-1) for way in (halves, ~halves))
    found = spearman_brown((unit_ranks(first) * unit_ranks(second)).sum(-1).mean())
    assert found == pytest.approx(stats.spearmanr(one.mean(1), other.mean(1)).statistic, abs=0.04)


def test_unit_ranks_give_spearmans_correlation() -> None:
    values = np.random.default_rng(1).integers(0, 5, (2, 30))
    one, other = unit_ranks(stats.rankdata(values, axis=-1))
    assert one @ other == pytest.approx(stats.spearmanr(*values).statistic)
    assert np.isnan(unit_ranks(np.ones(4))).all()


def test_a_variance_that_cannot_be_divided_is_not() -> None:
    """Two strategies that agree with each other on other examples, and not with themselves: nothing adds up to that."""
    order = np.arange(8.0)
    first, second = np.tile([order, -order], (5, 1, 1)), np.tile([-order, order], (5, 1, 1))
    assert between_halves(first, second).tolist() == pytest.approx(np.array([[-1, 1], [1, -1]]))
    assert np.isnan(variance_shares(first, second)).all()
    assert variance_shares(first, first).method == pytest.approx(1), "each agrees with itself, and not with the other"


def test_halves_keep_examples_with_equal_keys_together() -> None:
    keys = ["a", "a", "b", "c", "c", "c", "d"]
    halves = random_halves(keys, 50, 0)
    assert (halves[:, 0] == halves[:, 1]).all()
    assert (halves[:, 3] == halves[:, 5]).all()
    assert {tuple(half[[0, 2, 3, 6]]) for half in halves} == {
        tuple(n in pair for n in range(4)) for pair in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    }


@pytest.mark.parametrize(("correlation", "factor", "expected"), [(0.5, 2, 2 / 3), (0.2, 3, 0.6 / 1.4), (0, 2, 0)])
def test_the_formula_of_spearman_and_brown(correlation: float, factor: float, expected: float) -> None:
    assert spearman_brown(correlation, factor) == pytest.approx(expected)


def test_halves_that_disagree_have_no_reliability() -> None:
    assert spearman_brown([-1.0, -0.4667, -1e-9, 0.0]).tolist() == [0, 0, 0, 0]
    assert np.isnan(spearman_brown(np.nan))


def test_noise_alone_has_no_reliability_and_no_corrected_correlation() -> None:
    rng = np.random.default_rng(0)
    first, second = (stats.rankdata(rng.normal(size=(5, 2, 400)), axis=-1) for _ in range(2))
    shares = variance_shares(first, second)
    assert shares.examples > 0.9
    assert sum(shares) == pytest.approx(1)
    assert (np.diag(between_halves(first, second)) > 0).any(), "by chance above 0, and nothing to divide by"
    assert np.isnan(disattenuated_correlations(first, second)).all()
