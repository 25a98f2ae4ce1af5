"""Sparsefinder on blocks of tokens, as hardware wants it (Treviso et al. 2022, section 7).

Tokens are cut into contiguous blocks; a block is where the mean of its projected vectors is. Two versions say which key
blocks a query block looks at:

1. `by_query`: those k nearest to the centroid that the query block is nearest to, so that every query has as many keys.
2. `by_cluster`: of each centroid the k nearest query blocks look at the k nearest key blocks; a block may be in several
   clusters, or in none.

A window of neighbouring blocks is added to both. Blocks without a real token are never chosen. Of n blocks and C
clusters k is ⌊n / C⌋ + 1, as in the authors' code of clusters of one size, or a number that is given.

The two versions are our reading of the paper's text. The authors' released model for language modelling is another:
it clusters the projected vectors of a block laid end to end, instead of their mean; each block is in its two nearest
clusters, and meets the nearest of those that share one; the first and last block are global, as in BigBird.

What they are compared with, windows, global tokens (Longformer) and random keys (BigBird), has blocks in the place of
tokens by `of_blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from headlens.analyses.sparsefinder.predictors import Predictor, QueryKeyProjections, QueryKeyVectors
from headlens.attention.kernels.block_sparse import flex_attention

Version = Literal[1, 2]


def block_means(vectors: Tensor, real: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Mean vectors of blocks of tokens, padding left out.

    Args:
        vectors: `(batch, heads, tokens, r)`.
        real: which are tokens, bool, `(batch, tokens)`.
        size: tokens of a block; the last one may be shorter.

    Returns:
        `(batch, heads, blocks, r)`, float32 at least, and which blocks have a real token, `(batch, blocks)`.
    """
    if padding := -vectors.shape[2] % size:  # torch copies also where there is none
        real, vectors = functional.pad(real, (0, padding)), functional.pad(vectors, (0, 0, 0, padding))
    # Tokens of a block stand along their own axis: (batch, blocks, size) and (batch, heads, blocks, size, r).
    counted = real.view(len(real), -1, size).to(vectors.dtype)
    blocks = vectors.reshape(*vectors.shape[:2], -1, size, vectors.shape[3])
    exact = torch.promote_types(vectors.dtype, torch.float32)
    sums, totals = (blocks * counted[:, None, :, :, None]).sum(dim=3, dtype=exact), counted.sum(dim=2, dtype=exact)
    return sums / totals.clamp(min=1)[:, None, :, None], totals > 0


def projected_blocks(
    projections: QueryKeyProjections, vectors: QueryKeyVectors, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean projected queries and keys of blocks, and which of them have a token; see `block_means`."""
    queries, real_queries = block_means(vectors.queries, vectors.real_queries, size)
    keys, real_keys = block_means(vectors.keys, vectors.real_keys, size)
    # Of a linear map the mean of what it gives is what it gives for the mean, and blocks are few.
    queries, keys = projections(queries, keys)
    return queries, keys, real_queries, real_keys


def by_query(queries: Tensor, keys: Tensor, centroids: Tensor, top: int | None, real_keys: Tensor) -> Tensor:
    """Pairs of each query block and the `top` key blocks nearest to its centroid: bool, `(batch, heads, query, key)`.

    Args:
        queries: block means, `(batch, heads, query blocks, r)`.
        keys: block means, `(batch, heads, key blocks, r)`.
        centroids: `(heads, clusters, r)`.
        top: k, key blocks of a query block, at most all; None for ⌊n / C⌋ + 1 of n real blocks and C clusters.
        real_keys: which key blocks have a token, `(batch, key blocks)`.
    """
    key_blocks = _nearest(keys, centroids, top, real_keys)
    cluster = torch.cdist(queries, centroids[None].to(queries)).argmin(dim=-1)
    return key_blocks.gather(2, cluster[..., None].expand(-1, -1, -1, keys.shape[2]))


def by_cluster(
    queries: Tensor, keys: Tensor, centroids: Tensor, top: int | None, real_queries: Tensor, real_keys: Tensor
) -> Tensor:
    """Pairs of the `top` query blocks and the `top` key blocks nearest to any centroid; arguments as in `by_query`."""
    query_blocks = _nearest(queries, centroids, top, real_queries)
    key_blocks = _nearest(keys, centroids, top, real_keys)
    meetings: Tensor = query_blocks.transpose(2, 3).float() @ key_blocks.float()
    return meetings > 0


def _nearest(blocks: Tensor, centroids: Tensor, top: int | None, real: Tensor) -> Tensor:
    """Which blocks are among those nearest to each centroid: bool, `(batch, heads, clusters, blocks)`."""
    distances = torch.cdist(centroids[None].to(blocks), blocks).masked_fill(~real[:, None, None], torch.inf)
    share = (real.sum(dim=1) // centroids.shape[1] + 1)[:, None, None, None]
    order = distances.argsort(dim=-1, stable=True)
    first = torch.arange(order.shape[-1], device=order.device) < (share if top is None else top)
    chosen = torch.empty_like(order, dtype=torch.bool).scatter_(-1, order, first.expand(order.shape))
    # Where there are fewer real blocks than `top`, the others are taken out again.
    return chosen & real[:, None, None]


@dataclass(frozen=True, eq=False)
class BlockClusters:
    """Sparsefinder by clusters of blocks.

    Args:
        projections: of queries and keys.
        centroids: of means of blocks, `(heads, clusters, r)`.
        size: tokens of a block.
        top: k, blocks of a query (version 1) or of a cluster (version 2); None for a share of them, see the module.
        version: see the module.
        window: blocks on each side that are added; -1 for none.
    """

    projections: QueryKeyProjections
    centroids: Tensor
    size: int = 64
    top: int | None = 2
    version: Version = 2
    window: int = 1

    def blocks(self, vectors: QueryKeyVectors) -> Tensor:
        """Predicts which blocks meet: bool, `(batch, heads, query blocks, key blocks)`."""
        queries, keys, real_queries, real_keys = projected_blocks(self.projections, vectors, self.size)
        if self.version == 1:
            meet = by_query(queries, keys, self.centroids, self.top, real_keys)
        else:
            meet = by_cluster(queries, keys, self.centroids, self.top, real_queries, real_keys)
        if self.window >= 0:
            query_places, key_places = (torch.arange(n, device=meet.device) for n in meet.shape[2:])
            meet = meet | ((query_places[:, None] - key_places).abs() <= self.window)
        return meet & real_queries[:, None, :, None] & real_keys[:, None, None, :]

    @property
    def predictor(self) -> Predictor:
        """Predicts all pairs of tokens of blocks that meet."""
        return Predictor(lambda vectors: _pairs_of_tokens(self.blocks(vectors), self.size, vectors))


def of_blocks(places: Predictor, size: int) -> Predictor:
    """Predicts of blocks what a predictor that looks at places alone predicts of tokens, of which a block is one.

    Args:
        places: such as windows, global tokens or random keys; what it says of token i holds for block i.
        size: tokens of a block; the last one of a text may be shorter.
    """

    def graph(vectors: QueryKeyVectors) -> Tensor:
        inside = vectors.before % size  # tokens of the first query's block that came before it
        # The first token of a block stands for it: no block is real without that, and nobody asks what vectors hold.
        blocks = QueryKeyVectors(
            functional.pad(vectors.queries, (0, 0, inside, 0))[:, :, ::size],
            vectors.keys[:, :, ::size],
            functional.pad(vectors.real_queries, (inside, 0), value=True)[:, ::size],
            vectors.real_keys[:, ::size],
            vectors.before // size,
            causal=vectors.causal,
        )
        return _pairs_of_tokens(places.graph(blocks), size, vectors)

    return Predictor(graph, places.pairwise)


def _pairs_of_tokens(pairs: Tensor, size: int, vectors: QueryKeyVectors) -> Tensor:
    """The pairs of tokens of pairs of blocks, the first of which has the first query: `(batch, heads, query, key)`."""
    inside = vectors.before % size
    tokens = pairs.repeat_interleave(size, 2).repeat_interleave(size, 3)
    return tokens[:, :, inside : inside + vectors.queries.shape[2], : vectors.keys.shape[2]]


def block_attention(queries: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, size: int) -> Tensor:
    """Softmax attention of blocks that meet, and of no others, by FlexAttention: `(batch, heads, query, d)`.

    On a GPU this runs compiled, and blocks that do not meet cost nothing; tokens must fill whole blocks of 128 there.

    Args:
        queries: `(batch, heads, query, d)`.
        keys: `(batch, heads, key, d)`.
        values: `(batch, heads, key, d)`.
        blocks: which blocks meet, see `BlockClusters.blocks`; every query block meets one.
        size: tokens of a block.
    """
    from torch.nn.attention.flex_attention import BlockMask  # noqa: PLC0415 - slow to import

    counts = blocks.sum(dim=-1).int()
    # Key blocks of each query block: those that it meets first, in order.
    order = blocks.int().argsort(dim=-1, descending=True, stable=True).int()

    def meet(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # Blocks that meet do so whole, so that a compiled kernel never asks; without one, nothing else is asked.
        return blocks[batch, head, query // size, key // size]

    lengths = queries.shape[2], keys.shape[2]
    none = torch.zeros_like(counts)
    # Which query blocks a key block meets is asked for gradients only.
    mask = BlockMask.from_kv_blocks(
        none, order, counts, order, BLOCK_SIZE=size, mask_mod=meet, seq_lengths=lengths,
        compute_q_blocks=any(t.requires_grad for t in (queries, keys, values)),
    )  # fmt: skip
    return flex_attention(queries, keys, values, mask)
