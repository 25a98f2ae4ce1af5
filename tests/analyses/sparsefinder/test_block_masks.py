"""Blocks against loops over tokens and clusters, and block-sparse attention against a dense mask."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headlens.analyses.sparsefinder.block_masks import (
    BlockClusters,
    block_attention,
    block_means,
    by_cluster,
    by_query,
    of_blocks,
)
from headlens.analyses.sparsefinder.predictors import (
    QueryKeyProjections,
    QueryKeyVectors,
    pattern_predictor,
    random_predictor,
)
from headlens.attention_masks.patterns import Global, Window

SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))


def drawn(n: int, m: int, seed: int = 0) -> tuple[QueryKeyVectors, QueryKeyProjections]:
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (torch.randn(2, 2, length, 6, generator=generator) for length in (n, m))
    real = [torch.arange(length) < torch.tensor([[length], [max(1, length - 2)]]) for length in (n, m)]
    torch.manual_seed(seed)
    return QueryKeyVectors(queries, keys, *real), QueryKeyProjections(2, 6, 3).requires_grad_(requires_grad=False)


def nearest(blocks: list[Tensor], centroid: Tensor, top: int) -> list[int]:
    apart = [float((block - centroid).norm()) for block in blocks]
    return sorted(range(len(blocks)), key=apart.__getitem__)[:top]


def naive(vectors: QueryKeyVectors, own: BlockClusters) -> list[list[set[tuple[int, int]]]]:
    """Pairs of blocks of every sentence and head, one centroid after the other."""
    queries, keys = own.projections(vectors.queries, vectors.keys)
    found = []
    for row in range(len(queries)):
        found.append([])
        for head in range(queries.shape[1]):
            means = []
            for x, real in ((queries, vectors.real_queries), (keys, vectors.real_keys)):
                length = int(real[row].sum())
                means.append([x[row, head, a : min(a + own.size, length)].mean(0) for a in range(0, length, own.size)])
            ours, theirs = means
            tops = [own.top or len(side) // own.centroids.shape[1] + 1 for side in means]
            pairs = {(i, j) for i in range(len(ours)) for j in range(len(theirs)) if abs(i - j) <= own.window}
            centroids = own.centroids[head]
            if own.version == 1:
                for i, block in enumerate(ours):
                    centroid = centroids[int((centroids - block).norm(dim=-1).argmin())]
                    pairs |= {(i, j) for j in nearest(theirs, centroid, tops[1])}
            else:
                for centroid in centroids:
                    pairs |= {
                        (i, j) for i in nearest(ours, centroid, tops[0]) for j in nearest(theirs, centroid, tops[1])
                    }
            found[-1].append(pairs)
    return found


@pytest.mark.parametrize("version", [1, 2])
@given(sizes=SIZES, window=st.integers(-1, 1), seed=st.integers(0, 5), balanced=st.booleans())
def test_blocks_by_loops(version: int, sizes: tuple[int, ...], window: int, seed: int, balanced: bool) -> None:
    n, m, size, top, clusters = sizes
    top = None if balanced else top
    vectors, projections = drawn(n, m, seed)
    centroids = torch.randn(2, clusters, 3, generator=torch.Generator().manual_seed(seed))
    own = BlockClusters(projections, centroids, size, top, version, window)
    found, graph = own.blocks(vectors), own.predictor.graph(vectors)
    for row, heads in enumerate(naive(vectors, own)):
        for head, pairs in enumerate(heads):
            assert {(int(i), int(j)) for i, j in found[row, head].nonzero()} == pairs
            for i in range(n):
                for j in range(m):
                    assert bool(graph[row, head, i, j]) == ((i // size, j // size) in pairs)


def test_blocks_of_half_precision() -> None:
    vectors, projections = drawn(12, 12)
    own = BlockClusters(projections, torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(1)), 4, 1, 1)
    coarse = QueryKeyVectors(
        vectors.queries.bfloat16(), vectors.keys.bfloat16(), vectors.real_queries, vectors.real_keys
    )
    exact = QueryKeyVectors(coarse.queries.float(), coarse.keys.float(), vectors.real_queries, vectors.real_keys)
    half = BlockClusters(copy.deepcopy(projections).bfloat16(), own.centroids, 4, 1, 1)
    assert half.blocks(coarse).shape == own.blocks(exact).shape
    assert half.blocks(coarse).any(dim=-1).equal(own.blocks(exact).any(dim=-1))


@pytest.mark.parametrize("causal", [False, True])
@given(sizes=SIZES)
def test_places_of_blocks_by_loops(causal: bool, sizes: tuple[int, ...]) -> None:
    """A pair of tokens is there if their blocks are, as the pattern of so many blocks, or the draw, has it."""
    n, m, size, width, count = sizes
    m = n if causal else m
    vectors, _ = drawn(n, m)
    vectors = replace(vectors, causal=causal)
    window, first, chosen = (
        pattern_predictor(Window(width - 1)),
        pattern_predictor(Global(count)),
        random_predictor(count, seed=3),
    )
    graphs = [of_blocks(places, size).graph(vectors) for places in (window, first, chosen)]
    for row in range(2):
        length, of_keys = int(vectors.real_queries[row].sum()), int(vectors.real_keys[row].sum())
        n_blocks = -(-of_keys // size)
        for i in range(length):
            own = i // size
            assert {j for j in range(of_keys) if graphs[0][row, 0, i, j]} == {
                j for j in range(of_keys) if abs(own - j // size) < width
            }
            assert [bool(x) for x in graphs[1][row, 0, i, :of_keys]] == [
                own < count or j // size < count for j in range(of_keys)
            ]
            possible = own if causal else n_blocks - (own < n_blocks)
            for head in range(2):
                blocks = [j // size for j in range(of_keys) if graphs[2][row, head, i, j]]
                assert len(set(blocks)) == min(count, possible)
                assert own not in blocks
                assert not causal or max(blocks, default=-1) < own
                assert all(blocks.count(b) == min(size, of_keys - b * size) for b in set(blocks)), "whole blocks"
                first_of_block = graphs[2][row, head, own * size]
                assert graphs[2][row, head, i].equal(first_of_block), "queries of a block look at the same keys"


@given(sizes=SIZES, more=st.integers(1, 7))
def test_blocks_of_a_text_that_is_written(sizes: tuple[int, ...], more: int) -> None:
    """With a cache the last queries alone are asked: they look where they do in the whole text."""
    n, _, size, width, count = sizes
    whole, _ = drawn(n + more, n + more)
    whole = replace(whole, real_queries=torch.ones(2, n + more).bool(), real_keys=torch.ones(2, n + more).bool())
    whole = replace(whole, causal=True)
    last = replace(whole, queries=whole.queries[:, :, n:], real_queries=whole.real_queries[:, n:], before=n)
    for places in (pattern_predictor(Window(width - 1)), pattern_predictor(Global(count)), random_predictor(count)):
        own = of_blocks(places, size)
        assert own.pairwise
        assert own.graph(last).equal(own.graph(whole)[:, :, n:])


def test_how_many_pairs_there_are() -> None:
    """Version 1 gives every query k key blocks; version 2 at most k x k blocks for a cluster."""
    vectors, projections = drawn(64, 64)
    real = torch.ones(2, 64, dtype=torch.bool)
    queries, keys = projections(vectors.queries, vectors.keys)
    (ours, _), (theirs, _) = (block_means(x, real, 4) for x in (queries, keys))
    centroids = torch.randn(2, 5, 3)
    blocks = torch.ones(2, 16, dtype=torch.bool)
    assert (by_query(ours, theirs, centroids, 3, blocks).sum(-1) == 3).all()
    assert (by_cluster(ours, theirs, centroids, 3, blocks, blocks).sum((-1, -2)) <= 5 * 9).all()
    assert bool(by_query(ours, theirs, centroids, 99, blocks).all())
    assert bool(by_cluster(ours, theirs, centroids, 99, blocks, blocks).all())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_of_blocks() -> None:
    generator = torch.Generator().manual_seed(1)
    queries, keys, values = (torch.randn(2, 2, 64, 8, generator=generator) for _ in range(3))
    blocks = torch.rand(2, 2, 4, 4, generator=generator) < 0.4
    blocks[..., 1] |= ~blocks.any(dim=-1)
    allowed = blocks.repeat_interleave(16, 2).repeat_interleave(16, 3)
    scores = (queries @ keys.transpose(-1, -2) / math.sqrt(8)).masked_fill(~allowed, -torch.inf)
    expected = scores.softmax(dim=-1) @ values
    found = block_attention(queries, keys, values, blocks, 16)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.gpu
def test_attention_of_blocks_on_a_gpu() -> None:
    generator = torch.Generator(device="cuda").manual_seed(1)
    queries, keys, values = (torch.randn(1, 4, 1024, 64, device="cuda", generator=generator) for _ in range(3))
    blocks = torch.rand(1, 4, 8, 8, device="cuda", generator=generator) < 0.4
    blocks |= torch.eye(8, dtype=torch.bool, device="cuda")
    allowed = blocks.repeat_interleave(128, 2).repeat_interleave(128, 3)
    expected = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=allowed)
    assert torch.allclose(block_attention(queries, keys, values, blocks, 128), expected, atol=2e-2)
