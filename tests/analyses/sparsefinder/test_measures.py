"""Recall, sparsity and exact queries against counting one by one; and why exact queries are exact."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headlens.analyses.sparsefinder.measures import GraphMeans, allowed_pairs, counts_by_window, graph_counts
from headlens.attention.normalizers import Entmax

seeds = st.integers(0, 10_000)


def graphs(seed: int, queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    gold, predicted = torch.rand(2, 3, 2, queries, keys, generator=generator).unbind(0)
    return gold < 0.3, predicted < 0.6


def weighted(gold: torch.Tensor, seed: int) -> torch.Tensor:
    """Some weight for each pair that has any."""
    return gold * (0.01 + torch.rand(gold.shape, generator=torch.Generator().manual_seed(seed)))


def lengths(seed: int, tokens: int) -> torch.Tensor:
    return torch.arange(tokens) < torch.tensor([[tokens], [1 + seed % tokens], [1 + (seed // 7) % tokens]])


@given(seeds, st.integers(1, 7), st.integers(1, 7), st.booleans())
def test_counts_one_by_one(seed: int, queries: int, keys: int, causal: bool) -> None:
    keys = queries if causal else keys
    gold, predicted = graphs(seed, queries, keys)
    weights = weighted(gold, seed)
    rq, rk = lengths(seed, queries), lengths(seed if causal else seed + 1, keys)
    found = graph_counts(weights, predicted, allowed_pairs(rq, rk, causal=causal))
    for b in range(3):
        for h in range(2):
            own = [
                (i, j) for i in range(queries) for j in range(keys) if rq[b, i] and rk[b, j] and (not causal or j <= i)
            ]
            golds = {p for p in own if gold[b, h, p[0], p[1]]}
            guessed = {p for p in own if predicted[b, h, p[0], p[1]]}
            real = {i for i, _ in own}
            exact = [i for i in real if {p for p in golds if p[0] == i} <= guessed]
            assert float(found.shares[1][b, h]) == pytest.approx(1 - len(guessed) / len(own))
            assert float(found.shares[2][b, h]) == pytest.approx(len(exact) / len(real))
            kept, whole = (sum(float(weights[b, h, i, j]) for i, j in pairs) for pairs in (golds & guessed, golds))
            mass = float(found.shares[3][b, h])
            assert math.isnan(mass) if not golds else mass == pytest.approx(kept / whole)
            recall = float(found.shares[0][b, h])
            assert math.isnan(recall) if not golds else recall == pytest.approx(len(golds & guessed) / len(golds))


def test_examples_have_equal_weight_and_empty_heads_do_not_count() -> None:
    gold = torch.zeros(2, 2, 2, 2, dtype=torch.bool)
    gold[0, 0] = True
    gold[1, 0, 0, 0] = True
    predicted = torch.zeros_like(gold)
    predicted[0, 0, 0, 0] = True
    predicted[1, 0] = True
    means = GraphMeans()
    means.add([graph_counts(gold, predicted, torch.ones(2, 1, 2, 2, dtype=torch.bool))])
    ((recall, sparsity, exact, mass),) = means.heads
    assert torch.equal(mass.nan_to_num(-1), recall.nan_to_num(-1)), "pairs without weights count alike"
    assert float(recall[0]) == pytest.approx((1 / 4 + 1) / 2)
    assert math.isnan(float(recall[1]))
    assert sparsity.tolist() == pytest.approx([(3 / 4 + 0) / 2, 1.0])
    assert exact.tolist() == pytest.approx([(0 + 1) / 2, 1.0])
    # Of each example over the heads that have gold pairs
    assert means.examples[:, 0].flatten().tolist() == pytest.approx([1 / 4, (3 / 4 + 1) / 2, 1.0, (0 + 1) / 2])


@given(seeds, st.integers(1, 7), st.integers(1, 7), st.booleans())
def test_windows_are_counted_as_if_each_had_been_added(seed: int, queries: int, keys: int, causal: bool) -> None:
    keys = queries if causal else keys
    gold, base = graphs(seed, queries, keys)
    weights = weighted(gold, seed)
    rq, rk = lengths(seed, queries), lengths(seed if causal else seed + 1, keys)
    allowed = allowed_pairs(rq, rk, causal=causal)
    offset = (torch.arange(queries)[:, None] - torch.arange(keys)).abs()
    for windows in ([-1, 0, 1, 2, 5, 9], [-1], [2, 0]):
        for window, found in zip(windows, counts_by_window(weights, base, allowed, windows), strict=True):
            expected = graph_counts(weights, base | (offset <= window), allowed)
            assert torch.equal(found.totals, expected.totals)
            assert torch.equal(found.counted[:3], expected.counted[:3]), (windows, window)
            assert torch.allclose(expected.counted[3], found.counted[3], rtol=1e-6, atol=1e-6), (windows, window)


def test_batches_add_up() -> None:
    gold, predicted = graphs(1, 5, 6)
    allowed = allowed_pairs(lengths(1, 5), lengths(2, 6))
    whole, parts = GraphMeans(), GraphMeans()
    for means, slices in ((whole, [slice(0, 3)]), (parts, [slice(0, 1), slice(1, 3)])):
        for s in slices:
            means.add(counts_by_window(gold[s], predicted[s], allowed[s], [-1, 1]))
    assert whole.heads.shape == (2, 4, 2)
    assert torch.allclose(whole.heads, parts.heads, atol=1e-12, rtol=0)
    assert torch.equal(whole.examples, parts.examples)
    assert whole.examples.shape == (3, 2, 2)


@given(seeds, st.sampled_from([1.5, 2.0, 1.3]))
def test_attention_over_a_graph_that_holds_the_gold_one_is_the_full_one(seed: int, alpha: float) -> None:
    """Sparse consistency: what entmax left at zero can be left out, query by query."""
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(2, 3, 8, 9, generator=generator)
    normalizer = Entmax(alpha)
    full = normalizer(scores)
    gold = full > 0
    predicted = gold | (torch.rand(gold.shape, generator=generator) < 0.3)
    predicted[0, 0, 0] = False  # a query that misses all of its keys
    predicted[1, 2, 3] &= ~gold[1, 2, 3]
    allowed = torch.ones(2, 1, 8, 9, dtype=torch.bool)
    exact = (~(gold & ~predicted)).all(dim=-1)
    restricted = normalizer(scores.masked_fill(~predicted, torch.finfo(scores.dtype).min))
    assert torch.allclose(restricted[exact], full[exact], atol=1e-6)
    counts = graph_counts(gold, predicted, allowed)
    assert int(counts.counted[2].sum()) == int(exact.sum()) == 2 * 3 * 8 - 2
