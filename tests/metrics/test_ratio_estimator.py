"""Intervals of means over tokens that come in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from handmade import Row, call, uniform
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tiers import rest_slow

from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView
from headlens.metrics.ratio_estimator import ratio_interval, ratio_mean, ratio_sums, row_sums

VIEW = CallView(call([Row(uniform())]))


def sums_of(sentences: Sequence[Sequence[float]]) -> dict[str, Array]:
    """Sums over sentences of different length, as one padded batch with garbage in the padding."""
    longest = max(map(len, sentences))
    values = torch.tensor([[*s, *[9.0] * (longest - len(s))] for s in sentences], dtype=torch.float64)
    counted = torch.arange(longest) < torch.tensor([len(s) for s in sentences])[:, None]
    return {k: v.numpy() for k, v in ratio_sums("v", VIEW, values[:, None], counted).items()}


def interval(sentences: Sequence[Sequence[float]], level: float = 0.95) -> tuple[float, float]:
    low, high = ratio_interval("v", sums_of(sentences), level=level)
    return float(low[0]), float(high[0])


def naive_interval(sentences: Sequence[Sequence[float]], level: float) -> tuple[float, float]:
    """Residuals of every sentence from the mean over all tokens, added up and squared."""
    counted = [s for s in sentences if len(s)]
    n, m = sum(map(len, counted)), len(counted)
    mean = math.fsum(v for s in counted for v in s) / n
    residuals = [math.fsum(v - mean for v in s) for s in counted]
    error = math.sqrt(m / (m - 1) * math.fsum(r * r for r in residuals)) / n
    wide = stats.t(m - 1).ppf((1 + level) / 2) * error
    return mean - wide, mean + wide


corpora = st.lists(st.lists(st.floats(0, 1), max_size=6), min_size=2, max_size=12).filter(
    lambda c: sum(bool(s) for s in c) > 1
)


@given(sentences=corpora, level=st.sampled_from([0.8, 0.95, 0.99]))
def test_against_written_out_residuals(sentences: list[list[float]], level: float) -> None:
    tokens = [v for s in sentences for v in s]
    assert ratio_mean("v", sums_of(sentences))[0] == pytest.approx(np.mean(tokens), abs=1e-12)
    assert interval(sentences, level) == pytest.approx(naive_interval(sentences, level), abs=1e-6)


def test_by_hand() -> None:
    # mean 1/2, residuals +1/2 and -1/2 (twice), t quantile of 1 degree of freedom 12.706
    low, high = interval([[1.0], [0.0]])
    assert (low + high) / 2 == pytest.approx(0.5)
    assert (high - low) / 2 == pytest.approx(12.7062 * math.sqrt(2 * 0.5) / 2, rel=1e-4)


def test_equal_sentences_have_no_spread() -> None:
    assert interval([[0.25, 0.75]] * 5) == pytest.approx((0.5, 0.5), abs=1e-7)


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.6576), (1.0, 0.3424, 1.0)])
def test_shares_on_which_all_sentences_agree_have_the_interval_of_so_many_examples(
    value: float, low: float, high: float
) -> None:
    """Wilson's of two sentences by hand: z² / (2 + z²) is .6576, however many tokens these have."""
    found = ratio_interval("v", sums_of([[value], [value] * 5, []]), share=True)
    assert [float(end[0]) for end in found] == pytest.approx([low, high], abs=1e-4)
    many = ratio_interval("v", sums_of([[value]] * 400), share=True)
    assert float(many[1][0] - many[0][0]) == pytest.approx(1.96**2 / (400 + 1.96**2), rel=1e-3)
    single = ratio_interval("v", sums_of([[value] * 9]), share=True)
    assert all(map(math.isnan, (float(end[0]) for end in single)))


@given(sentences=corpora)
def test_intervals_of_shares_hold_the_share_and_have_a_width_at_both_ends(sentences: list[list[float]]) -> None:
    sums = sums_of(sentences)
    low, high = (float(end[0]) for end in ratio_interval("v", sums, share=True))
    mean = float(ratio_mean("v", sums)[0])
    assert 0 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1
    assert low < high or mean not in (0.0, 1.0)


@pytest.mark.parametrize("sentences", [[[0.5, 0.7]], [[0.5], []]])
def test_one_sentence_has_no_interval(sentences: list[list[float]]) -> None:
    assert all(map(math.isnan, interval(sentences)))


def test_nothing_counted_has_no_mean() -> None:
    sums = sums_of([[], [], []])
    assert math.isnan(ratio_mean("v", sums)[0])
    assert all(math.isnan(v[0]) for v in ratio_interval("v", sums))


def test_counts_by_head() -> None:
    values = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    counted = torch.tensor([[[True, False], [True, True]]])
    sums = {k: v.numpy() for k, v in ratio_sums("v", VIEW, values, counted).items()}
    assert ratio_mean("v", sums).tolist() == [1.0, 3.5]
    assert sums["v.n"].tolist() == [1, 2]
    assert sums["v.n"].dtype == np.int64


def simulate(rng: np.random.Generator, correlated: bool) -> list[npt.NDArray[np.float64]]:
    """Sixty sentences of 2 to 19 tokens; longer ones tend lower, tokens of one sentence may share an effect."""
    found = []
    for n in rng.integers(2, 20, 60):
        effect = rng.normal(0, 0.5) if correlated else 0.0
        found.append(0.5 - 0.01 * n + effect + rng.normal(0, 0.5, n))
    return found


@pytest.mark.parametrize("runs", rest_slow([200, 800]))
@pytest.mark.parametrize("correlated", [True, False])
def test_coverage(correlated: bool, runs: int) -> None:
    rng = np.random.default_rng(3)
    lengths = np.arange(2, 20)
    truth = (lengths * (0.5 - 0.01 * lengths)).sum() / lengths.sum()
    bounds = [interval(simulate(rng, correlated)) for _ in range(runs)]
    covered = np.mean([low <= truth <= high for low, high in bounds])
    # four standard errors of a share of so many
    assert covered == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / runs))


def test_an_interval_that_ignores_sentences_would_be_too_narrow() -> None:
    rng = np.random.default_rng(4)
    sentences = simulate(rng, correlated=True)
    low, high = interval(sentences)
    tokens = np.concatenate(sentences)
    naive = 2 * 1.96 * tokens.std(ddof=1) / math.sqrt(len(tokens))
    assert high - low > 1.5 * naive


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans()), max_size=30))
def test_rows_of_any_sentence_are_added_up_by_it(rows: list[tuple[int, int, bool]]) -> None:
    view = CallView(call([Row(uniform())] * 4))
    sentence, hits, counted = (torch.tensor([row[i] for row in rows], dtype=torch.int64) for i in range(3))
    sums = row_sums("v", view, sentence, hits[:, None], counted.bool())
    by_sentence = [[float(hit) for own, hit, counts in rows if own == i and counts] for i in range(4)]
    expected = sums_of([values or [] for values in by_sentence])
    for name, value in expected.items():
        np.testing.assert_allclose(sums[name].numpy(), value, err_msg=name)
