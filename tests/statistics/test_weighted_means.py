"""Weighted statistics are those of the sample with repetitions, as other packages compute them."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from headlens.statistics import weighted_means as own

Oracle = Callable[[Any, Any], float]


def oracle_f1(labels: Any, predicted: Any) -> float:
    return float(metrics.f1_score(labels == 1, predicted == 1, zero_division=0.0))


def oracle_pearson(x: Any, y: Any) -> float:
    return float(stats.pearsonr(x, y).statistic) if len(x) > 1 else float("nan")


def oracle_spearman(x: Any, y: Any) -> float:
    return float(stats.spearmanr(x, y).statistic) if len(x) > 1 else float("nan")


def quiet(oracle: Oracle, *columns: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return oracle(*columns)


@st.composite
def samples(draw: st.DrawFn, *, classes: int) -> tuple[Any, Any, Any]:
    n = draw(st.integers(1, 12))
    values = st.lists(st.integers(0, classes - 1), min_size=n, max_size=n)
    weights = draw(st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=1, max_size=3))
    return np.array(draw(values), float), np.array(draw(values), float), np.array(weights, float)


def assert_same(found: Any, oracle: Oracle, sample: tuple[Any, Any, Any]) -> None:
    x, y, weights = sample
    assert found.shape == (len(weights),)
    for value, times in zip(found, weights.astype(int), strict=True):
        if times.sum() == 0:
            assert np.isnan(value) or value == 0
        else:
            assert value == pytest.approx(quiet(oracle, x.repeat(times), y.repeat(times)), abs=1e-9, nan_ok=True)


@given(samples(classes=2))
def test_f1(sample: tuple[Any, Any, Any]) -> None:
    assert_same(own.f1(*sample), oracle_f1, sample)


@given(samples(classes=4))
def test_matthews(sample: tuple[Any, Any, Any]) -> None:
    assert_same(own.matthews(*sample), lambda a, b: float(metrics.matthews_corrcoef(a, b)), sample)


@given(samples(classes=5))
def test_pearson(sample: tuple[Any, Any, Any]) -> None:
    assert_same(own.pearson(*sample), oracle_pearson, sample)


@given(samples(classes=5))
def test_spearman(sample: tuple[Any, Any, Any]) -> None:
    assert_same(own.weighted_spearman(*sample), oracle_spearman, sample)


@given(samples(classes=5))
def test_ranks(sample: tuple[Any, Any, Any]) -> None:
    """Correlations cannot tell whether all ranks are moved by as much, so the ranks themselves are compared."""
    values, _, weights = sample
    for found, times in zip(own.ranks(values, weights), weights.astype(int), strict=True):
        assert found.repeat(times).tolist() == stats.rankdata(values.repeat(times)).tolist()


def test_ranks_begin_with_one_and_ties_share_their_mean() -> None:
    # Sorted and repeated: 1 1 1 3 5 5.
    assert own.ranks(np.array([5.0, 1.0, 3.0, 5.0]), np.array([[1.0, 3.0, 1.0, 1.0]])).tolist() == [[5.5, 2, 4, 5.5]]


@given(samples(classes=5))
def test_mean(sample: tuple[Any, Any, Any]) -> None:
    assert_same(own.mean(sample[0], sample[2]), lambda a, _: float(a.mean()), sample)


def test_a_constant_far_from_zero_has_no_correlation() -> None:
    x, y = np.full(50, 1e8 + 0.1), np.arange(50.0)
    assert np.isnan(own.pearson(x, y, np.ones((1, 50))))[0]
    assert own.pearson(y + 1e6, y * 1e-6, np.ones((1, 50)))[0] == pytest.approx(1.0)


@given(samples(classes=3), st.randoms(use_true_random=False))
def test_best_threshold(sample: tuple[Any, Any, Any], random: Any) -> None:
    scores, above, weights = sample
    below = np.array([random.random() for _ in scores])
    found = own.best_threshold(scores, above, below, weights)
    for value, times in zip(found, weights, strict=True):
        cuts = [-np.inf, *scores]
        tried = [(times * np.where(scores > cut, above, below)).sum() for cut in cuts]
        expected = max(tried) / times.sum() if times.sum() else np.nan
        assert value == pytest.approx(expected, nan_ok=True)
