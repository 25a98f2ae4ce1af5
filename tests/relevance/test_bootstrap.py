"""Bootstrap by Poisson draws."""

from __future__ import annotations

import numpy as np
import pytest

from headlens.relevance.bootstrap import interval, poisson_weights


def test_draws_depend_on_the_key_and_the_seed_alone() -> None:
    keys = ["a", "b", "Zoë", "\ud800"]
    draws = poisson_weights(keys, 50, seed=3)
    assert draws.shape == (50, 4)
    assert (poisson_weights(["b"], 50, 3)[:, 0] == draws[:, 1]).all()
    assert (poisson_weights(keys[::-1], 50, 3)[:, ::-1] == draws).all()
    assert (poisson_weights(keys, 50, 4) != draws).any(axis=0).all()
    assert (poisson_weights(["a"], 50, -1) != draws[:, :1]).any()


def test_draws_are_poisson_with_mean_1() -> None:
    draws = poisson_weights([str(i) for i in range(400)], 500, 0)
    assert draws.mean() == pytest.approx(1, abs=0.01)
    assert draws.var() == pytest.approx(1, abs=0.02)
    assert np.corrcoef(draws[:, :20].T)[np.triu_indices(20, 1)].std() < 0.06
    assert (draws == np.round(draws)).all()


def test_intervals_are_those_of_drawing_with_replacement() -> None:
    generator = np.random.default_rng(0)
    values = generator.exponential(size=(300, 2))
    draws = poisson_weights([str(i) for i in range(300)], 4000, 0)
    low, high = interval(draws @ values, draws.sum(axis=1))
    chosen = values[generator.integers(300, size=(4000, 300))].mean(axis=1)
    np.testing.assert_allclose([low, high], np.quantile(chosen, [0.025, 0.975], axis=0), atol=0.012)
    assert (low < values.mean(axis=0)).all()
    assert (values.mean(axis=0) < high).all()


def test_most_intervals_hold_the_truth() -> None:
    generator, hits = np.random.default_rng(1), 0
    for trial in range(200):
        values = generator.normal(2.0, 1.0, size=(80, 1))
        draws = poisson_weights([f"{trial}.{i}" for i in range(80)], 300, 0)
        low, high = interval(draws @ values, draws.sum(axis=1))
        hits += bool(low[0] <= 2.0 <= high[0])
    assert 0.88 <= hits / 200 <= 0.99


def test_replicates_that_drew_nothing_are_left_out() -> None:
    low, high = interval(np.array([[0.0], [2.0], [3.0]]), np.array([0.0, 1.0, 1.0]))
    assert 2 <= low[0] <= high[0] <= 3
    assert np.isnan(interval(np.zeros((3, 2)), np.zeros(3))).all()
