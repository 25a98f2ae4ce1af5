"""Sparsefinder on blocks of tokens, as hardware wants it (Treviso et al. 2022, section 7).

Tokens are cut into contiguous blocks; a block is where the mean of its projected vectors is. Two versions say which key
blocks a query block looks at:

1. `by_query`: those k nearest to the centroid that the query block is nearest to, so that every query has as many keys.
2. `by_cluster`: of each centroid the k nearest query blocks look at the k nearest key blocks; a block may be in several
   clusters, or in none.

A window of neighbouring blocks is added to both. Blocks without a real token are never chosen.

The two versions are our reading of the paper's text. The authors' released model for language modelling is another:
it clusters the projected vectors of a block laid end to end, instead of their mean; each block is in its two nearest
clusters, and meets the nearest of those that share one; the first and last block are global, as in BigBird.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from headlens.analyses.sparsefinder.predictors import Predictor, QueryKeyVectors
from headlens.analyses.sparsefinder.query_key_projection import QueryKeyProjections
from headlens.attention.kernels.block_sparse import block_sparse_attention

Version = Literal[1, 2]


def block_means(vectors: Tensor, real: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Mean vectors of blocks of tokens.

    Args:
        vectors: (batch, heads, tokens, r).
        real: which are tokens, bool, (batch, tokens).
        size: tokens of a block; the last one may be shorter.

    Returns:
        (batch, heads, blocks, r), and which blocks have a real token, (batch, blocks).
    """
    room = -vectors.shape[2] % size
    batch, heads, tokens, width = vectors.shape
    count = (tokens + room) // size
    counted = functional.pad(real, (0, room)).reshape(batch, count, size).to(vectors.dtype)
    padded = functional.pad(vectors, (0, 0, 0, room)).reshape(batch, heads, count, size, width)
    sums = (padded * counted[:, None, :, :, None]).sum(dim=3)
    totals = counted.sum(dim=2)
    return sums / totals.clamp(min=1)[:, None, :, None], totals > 0


def by_query(queries: Tensor, keys: Tensor, centroids: Tensor, top: int, real_keys: Tensor) -> Tensor:
    """Each query block and the `top` key blocks nearest to its centroid: bool, (batch, heads, queries, keys).

    Args:
        queries: block means, (batch, heads, query blocks, r).
        keys: the same of keys.
        centroids: (heads, clusters, r).
        top: key blocks of a query block, at most all.
        real_keys: which key blocks have a token, (batch, key blocks).
    """
    nearest = _nearest(keys, centroids, top, real_keys)
    group = torch.cdist(queries, centroids[None].to(queries)).argmin(dim=-1)
    return nearest.gather(2, group[..., None].expand(-1, -1, -1, keys.shape[2]))


def by_cluster(
    queries: Tensor, keys: Tensor, centroids: Tensor, top: int, real_queries: Tensor, real_keys: Tensor
) -> Tensor:
    """The `top` query blocks nearest to each centroid and the `top` key blocks nearest to it; arguments as above."""
    ours, theirs = (_nearest(x, centroids, top, real) for x, real in ((queries, real_queries), (keys, real_keys)))
    found: Tensor = (ours.transpose(2, 3).float() @ theirs.float()) > 0
    return found


def _nearest(blocks: Tensor, centroids: Tensor, top: int, real: Tensor) -> Tensor:
    """Which blocks are among those nearest to each centroid: bool, (batch, heads, clusters, blocks)."""
    apart = torch.cdist(centroids[None].to(blocks), blocks).masked_fill(~real[:, None, None], torch.inf)
    chosen = apart.topk(min(top, blocks.shape[2]), dim=-1, largest=False).indices
    return torch.zeros_like(apart, dtype=torch.bool).scatter_(-1, chosen, value=True) & real[:, None, None]


def neighbours(queries: int, keys: int, width: int) -> Tensor:
    """Blocks at most `width` apart: bool, (query blocks, key blocks)."""
    return (torch.arange(queries)[:, None] - torch.arange(keys)).abs() <= width


@dataclass(frozen=True, eq=False)
class Blocked(Predictor):
    """Sparsefinder by clusters of blocks.

    Args:
        projections: of queries and keys.
        centroids: of projected vectors, (heads, clusters, r).
        size: tokens of a block.
        top: k, blocks of a query (version 1) or of a cluster (version 2).
        version: see the module.
        window: blocks on each side that are added; -1 for none.
    """

    projections: QueryKeyProjections
    centroids: Tensor
    size: int = 64
    top: int = 2
    version: Version = 2
    window: int = 1

    def blocks(self, vectors: QueryKeyVectors) -> Tensor:
        """Which blocks meet: (batch, heads, query blocks, key blocks)."""
        # Distances have no kernel for half precision on the processor.
        projected = (x.float() for x in self.projections(vectors.queries, vectors.keys))
        (queries, ours), (keys, theirs) = (
            block_means(x, real, self.size)
            for x, real in zip(projected, (vectors.real_queries, vectors.real_keys), strict=True)
        )
        if self.version == 1:
            found = by_query(queries, keys, self.centroids, self.top, theirs)
        else:
            found = by_cluster(queries, keys, self.centroids, self.top, ours, theirs)
        near = neighbours(found.shape[2], found.shape[3], self.window).to(found.device)
        return (found | near) & ours[:, None, :, None] & theirs[:, None, None, :]

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """All pairs of tokens of these blocks."""
        found = self.blocks(vectors).repeat_interleave(self.size, 2).repeat_interleave(self.size, 3)
        return found[:, :, : vectors.queries.shape[2], : vectors.keys.shape[2]]


def block_attention(queries: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, size: int) -> Tensor:
    """Softmax attention of blocks that meet, and of no others, by FlexAttention: (batch, heads, query, d).

    On a GPU this runs compiled, and blocks that do not meet cost nothing; tokens must fill whole blocks of 128 there.

    Args:
        queries: (batch, heads, query, d).
        keys: (batch, heads, key, d).
        values: (batch, heads, key, d).
        blocks: which blocks meet, see `Blocked.blocks`; every query block meets one.
        size: tokens of a block.
    """
    from torch.nn.attention.flex_attention import BlockMask  # noqa: PLC0415 - slow to import

    counts = blocks.sum(dim=-1).int()
    # Those that meet first, in order.
    order = blocks.int().argsort(dim=-1, descending=True, stable=True).int()

    def meet(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # Blocks that meet do so whole, so that a compiled kernel never asks; without one, nothing else is asked.
        return blocks[batch, head, query // size, key // size]

    lengths = queries.shape[2], keys.shape[2]
    none = torch.zeros_like(counts)
    mask = BlockMask.from_kv_blocks(none, order, counts, order, BLOCK_SIZE=size, mask_mod=meet, seq_lengths=lengths)
    return block_sparse_attention(queries, keys, values, mask)
