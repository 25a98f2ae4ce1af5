"""Bootstrap samples and intervals."""

import numpy as np
import pytest

from headlens.tasks import resampling
from headlens.tasks.resampling import interval, resamples


def test_every_sample_draws_as_many_as_there_are() -> None:
    weights = np.concatenate(list(resamples(7, 100)))
    assert weights.shape == (100, 7)
    assert (weights.sum(axis=1) == 7).all()
    assert abs(weights.mean() - 1) < 1e-12
    assert 0.7 < weights.var() < 1.0  # binomial: 6/7


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(resamples(5, 30, seed=3)))
    monkeypatch.setattr(resampling, "MOST_CELLS", 20)
    blocks = list(resamples(5, 30, seed=3))
    assert len(blocks) == 8
    np.testing.assert_array_equal(np.concatenate(blocks), whole)
    assert not np.array_equal(np.concatenate(list(resamples(5, 30, seed=4))), whole)


def test_the_interval_of_a_mean_is_the_normal_one() -> None:
    values = np.random.default_rng(0).normal(size=400)
    low, high = interval(lambda weights: weights @ values / 400, 400, 4000)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.012)


def test_samples_without_a_value_are_left_out() -> None:
    low, high = interval(lambda weights: np.where(weights[:, 0] > 0, 1.0, np.nan), 3)
    assert (low, high) == (1.0, 1.0)
    assert np.isnan(interval(lambda weights: np.full(len(weights), np.nan), 3)).all()
    assert np.isnan(interval(lambda weights: weights.sum(axis=1), 0)).all()
