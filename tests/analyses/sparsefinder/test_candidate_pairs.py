"""Predicted graphs against loops over pairs, and what must hold of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headlens.analyses.sparsefinder.measures import allowed_pairs, graph_counts
from headlens.analyses.sparsefinder.predictors import (
    buckets_of,
    clusters_of,
    hashes_of,
    in_one_bucket,
    in_one_cluster,
    in_one_hash,
    random_rotations,
    within,
)

SHAPE = (2, 3, 9, 7, 4)  # batch, heads, queries, keys, dimensions
seeds = st.integers(0, 10_000)


def vectors(seed: int, queries: int = 9, keys: int = 7, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(2, 3, queries, size, generator=generator).double(),
        torch.randn(2, 3, keys, size, generator=generator).double(),
    )


def real(seed: int, tokens: int) -> torch.Tensor:
    """Two examples, the second one shorter."""
    shorter = 1 + seed % tokens
    return torch.arange(tokens) < torch.tensor([[tokens], [shorter]])


def pairs(queries: torch.Tensor, keys: torch.Tensor) -> list[tuple[int, int, int, int]]:
    batch, heads, n, _ = queries.shape
    return [(b, h, i, j) for b in range(batch) for h in range(heads) for i in range(n) for j in range(keys.shape[2])]


@given(seeds, st.floats(0, 4))
def test_distances_pair_by_pair(seed: int, threshold: float) -> None:
    q, k = vectors(seed)
    graph = within(q, k, threshold)
    for b, h, i, j in pairs(q, k):
        apart = math.dist(q[b, h, i].tolist(), k[b, h, j].tolist())
        if abs(apart - threshold) > 1e-9:
            assert bool(graph[b, h, i, j]) == (apart <= threshold)


@given(seeds, st.integers(1, 12))
def test_buckets_by_sorting(seed: int, buckets: int) -> None:
    q, k = vectors(seed)
    rq, rk = real(seed, 9), real(seed + 3, 7)
    graph = in_one_bucket(q, k, buckets, rq, rk)
    for b in range(2):
        for h in range(3):
            expected = torch.zeros(9, 7, dtype=torch.bool)
            for dimension in range(4):
                bins = []
                for own, inside in ((q, rq), (k, rk)):
                    values = own[b, h, :, dimension][inside[b]]
                    bins.append(chunks(values.tolist(), buckets))
                for i, one in enumerate(bins[0]):
                    for j, other in enumerate(bins[1]):
                        expected[i, j] |= one == other
            inside = rq[b][:, None] & rk[b][None, :]
            assert torch.equal(graph[b, h][inside], expected[inside])


def chunks(values: list[float], buckets: int) -> list[int]:
    """Buckets of values, filled one after the other in rising order; as many a bucket as β of them need to hold all."""
    room = next(size for size in range(1, len(values) + 1) if size * buckets >= len(values))
    found, bucket, free = [0] * len(values), 0, room
    for place in sorted(range(len(values)), key=values.__getitem__):
        if not free:
            bucket, free = bucket + 1, room
        found[place], free = bucket, free - 1
    return found


@given(seeds, st.integers(1, 9))
def test_buckets_have_one_size_but_for_the_last(seed: int, buckets: int) -> None:
    q, _ = vectors(seed)
    inside = real(seed, 9)
    found = buckets_of(q, buckets, inside)
    for b in range(2):
        own = found[b][:, inside[b]]
        counts = torch.stack([(own == number).sum(dim=1) for number in range(int(own.max()) + 1)])
        assert len(counts) <= buckets
        assert (counts[:-1] == counts[0]).all()
        assert (counts[-1] <= counts[0]).all()
        assert (found[b][:, ~inside[b]] == -1).all()


def test_buckets_of_one_size_may_be_fewer() -> None:
    ten = torch.arange(10.0).flip(0).view(1, 1, 10, 1)
    assert buckets_of(ten, 6).flatten().tolist() == [4, 4, 3, 3, 2, 2, 1, 1, 0, 0]
    assert buckets_of(ten, 4).flatten().tolist() == [3, 2, 2, 2, 1, 1, 1, 0, 0, 0]
    assert buckets_of(ten, 20).flatten().tolist() == list(range(9, -1, -1))


@given(seeds, st.integers(1, 6), st.integers(1, 3))
def test_clusters_by_nearest_centroids(seed: int, clusters: int, top: int) -> None:
    q, k = vectors(seed)
    centroids = torch.randn(3, clusters, 4, generator=torch.Generator().manual_seed(seed + 1)).double()
    graph = in_one_cluster(q, k, centroids, top)

    def nearest(vector: torch.Tensor, head: int) -> set[int]:
        apart = [math.dist(vector.tolist(), c.tolist()) for c in centroids[head]]
        return set(sorted(range(clusters), key=apart.__getitem__)[:top])

    for b, h, i, j in pairs(q, k):
        assert bool(graph[b, h, i, j]) == bool(nearest(q[b, h, i], h) & nearest(k[b, h, j], h))
    assert clusters_of(q, centroids, top).shape == (2, 3, 9, min(top, clusters))


@given(seeds, st.integers(1, 4), st.integers(1, 3))
def test_hashes_by_hand(seed: int, half: int, rounds: int) -> None:
    q, k = vectors(seed)
    rotations = random_rotations(3, 4, 2 * half, rounds, seed).double()
    graph = in_one_hash(q, k, rotations)

    def hashed(vector: torch.Tensor, head: int, number: int) -> int:
        turned = (vector @ rotations[head, number]).tolist()
        every = [*turned, *(-t for t in turned)]
        return every.index(max(every))

    for b, h, i, j in pairs(q, k):
        alike = any(hashed(q[b, h, i], h, r) == hashed(k[b, h, j], h, r) for r in range(rounds))
        assert bool(graph[b, h, i, j]) == alike
    assert torch.equal(hashes_of(q, rotations), hashes_of(3 * q, rotations)), "directions alone count"


@given(seeds)
def test_graphs_at_the_ends_of_their_scales(seed: int) -> None:
    """All pairs, and next to none."""
    q, k = vectors(seed)
    allowed = allowed_pairs(torch.ones(2, 9, dtype=torch.bool), torch.ones(2, 7, dtype=torch.bool))
    gold = torch.rand(2, 3, 9, 7, generator=torch.Generator().manual_seed(seed)) < 0.3
    whole = (within(q, k, math.inf), in_one_bucket(q, k, 1), in_one_cluster(q, k, torch.zeros(3, 1, 4).double()))
    for graph in whole:
        counts = graph_counts(gold, graph, allowed)
        assert (counts.shares[1] == 0).all()
        assert (counts.shares[0].nan_to_num(1.0) == 1).all()
        assert (counts.shares[2] == 1).all()
    assert not within(q, k, 0.0).any()
    own = in_one_bucket(q, q, 9)
    assert float(own.double().mean()) <= 4 / 9, "a token alone in each of four dimensions"


@given(seeds, st.floats(0, 3), st.floats(0, 2))
def test_recall_rises_with_the_threshold_and_sparsity_falls(seed: int, low: float, more: float) -> None:
    q, k = vectors(seed)
    allowed = allowed_pairs(real(seed, 9), real(seed + 1, 7))
    gold = torch.rand(2, 3, 9, 7, generator=torch.Generator().manual_seed(seed)) < 0.3
    small, large = (graph_counts(gold, within(q, k, t), allowed) for t in (low, low + more))
    assert (large.counted >= small.counted).all()


@pytest.mark.parametrize("seed", range(3))
def test_planted_clusters_are_recovered(seed: int) -> None:
    """Queries and keys around shared centres: pairs of one centre are found, and no others."""
    generator = torch.Generator().manual_seed(seed)
    centres = 6 * torch.randn(2, 5, 4, generator=generator)
    which_q, which_k = (torch.randint(0, 5, (3, 2, 40), generator=generator) for _ in range(2))
    q, k = (
        torch.stack([centres[h][which[:, h]] for h in range(2)], dim=1)
        + 0.1 * torch.randn(3, 2, 40, 4, generator=generator)
        for which in (which_q, which_k)
    )
    gold = which_q[..., :, None] == which_k[..., None, :]
    allowed = torch.ones(3, 1, 40, 40, dtype=torch.bool)
    for graph in (in_one_cluster(q, k, centres), within(q, k, 2.0)):
        counts = graph_counts(gold, graph, allowed)
        assert float(counts.shares[0].min()) > 0.99
        assert float((counts.shares[1] - (1 - gold.double().mean(dim=(2, 3)))).abs().max()) < 0.01
