"""The bootstrap over examples against drawing with replacement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headlens.statistics import bootstrap
from headlens.statistics.bootstrap import Draws, bias_corrected_interval, percentile_interval


def keys(n: int) -> list[str]:
    return [f"example {i}" for i in range(n)]


def means(values: np.ndarray, draws: Draws) -> np.ndarray:
    return np.concatenate([(w @ values) / w.sum(axis=1)[:, None] for w in draws.blocks()])


def test_draws_depend_on_the_key_and_the_seed_alone() -> None:
    names = ["a", "b", "Zoë", "\ud800"]
    draws = Draws.of(names, 50, seed=3)
    assert draws.counts.shape == (50, 4)
    assert (len(draws), draws.examples) == (50, 4)
    assert (Draws.of(["b"], 50, 3).counts[:, 0] == draws.counts[:, 1]).all()
    assert (Draws.of(names[::-1], 50, 3).counts[:, ::-1] == draws.counts).all()
    assert (Draws.of(names, 50, 4).counts != draws.counts).any(axis=0).all()
    assert (Draws.of(["a"], 50, -1).counts != draws.counts[:, :1]).any()


def test_equal_keys_are_drawn_together() -> None:
    together = Draws.of(["a", "a", "b"], 50)
    assert (together.counts[:, 0] == together.counts[:, 1]).all()
    assert (together.counts[:, 0] != together.counts[:, 2]).any()


def test_draws_are_poisson_with_mean_1() -> None:
    counts = Draws.of(keys(400), 500).counts.astype(float)
    assert counts.mean() == pytest.approx(1, abs=0.01)
    assert counts.var() == pytest.approx(1, abs=0.02)
    assert np.corrcoef(counts[:, :20].T)[np.triu_indices(20, 1)].std() < 0.06


def test_blocks_are_the_counts_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = Draws.of(keys(5), 30)
    monkeypatch.setattr(bootstrap, "_CELLS", 20)
    blocks = list(draws.blocks())
    assert len(blocks) == 8
    np.testing.assert_array_equal(np.concatenate(blocks), draws.counts)
    assert blocks[0].dtype == np.float64
    assert next(iter(Draws.of([], 3).blocks())).shape == (3, 0)


def test_intervals_are_those_of_drawing_with_replacement() -> None:
    generator = np.random.default_rng(0)
    values = generator.exponential(size=(300, 2))
    low, high = percentile_interval(means(values, Draws.of(keys(300), 4000)))
    chosen = values[generator.integers(300, size=(4000, 300))].mean(axis=1)
    np.testing.assert_allclose([low, high], np.quantile(chosen, [0.025, 0.975], axis=0), atol=0.012)
    assert (low < values.mean(axis=0)).all()
    assert (values.mean(axis=0) < high).all()


def test_most_intervals_hold_the_truth() -> None:
    generator, hits = np.random.default_rng(1), 0
    for trial in range(100):
        values = generator.normal(2.0, 1.0, size=(80, 1))
        low, high = percentile_interval(means(values, Draws.of([f"{trial}.{i}" for i in range(80)], 300)))
        hits += bool(low[0] <= 2.0 <= high[0])
    assert 0.88 <= hits / 100 <= 0.99


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.sampled_from([0.5, 0.9, 0.95]))
def test_the_interval_is_between_quantiles(values: list[float], level: float) -> None:
    low, high = percentile_interval(np.array(values), level)
    assert float(low) == pytest.approx(np.quantile(values, (1 - level) / 2))
    assert float(high) == pytest.approx(np.quantile(values, (1 + level) / 2))


def test_replicates_without_a_value_are_left_out() -> None:
    low, high = percentile_interval(np.array([[np.nan, 1.0, np.nan], [2.0, 1.0, np.inf], [3.0, 1.0, np.nan]]), 0.999999)
    assert low == pytest.approx([2, 1, np.nan], nan_ok=True, abs=1e-3)
    assert high == pytest.approx([3, 1, np.nan], nan_ok=True, abs=1e-3)
    assert np.isnan(percentile_interval(np.empty(0))).all()


def test_a_bias_is_corrected_or_there_is_no_interval() -> None:
    """Of normal replicates in closed form: those of a mean are moved by twice the bias."""
    grid = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    assert bias_corrected_interval(0.0, grid) == pytest.approx((-1.96, 1.96), abs=1e-2)
    assert bias_corrected_interval(0.5, grid) == pytest.approx((-0.96, 2.96), abs=2e-2)
    assert bias_corrected_interval(0.5, np.append(grid, [np.nan, np.inf])) == pytest.approx((-0.96, 2.96), abs=2e-2)
    for value, drawn in ((1.1, grid), (-1.1, grid), (9.0, grid), (0.0, np.array([np.nan]))):
        assert np.isnan(bias_corrected_interval(value, drawn)).all()
    assert bias_corrected_interval(1.0, np.ones(9)) == (1.0, 1.0), "nothing moves"
