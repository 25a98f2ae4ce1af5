"""Which queries and keys may meet, by what they are like in a small space (Treviso et al. 2022, section 4).

All functions take vectors (batch, heads, tokens, r) and give graphs (batch, heads, query, key), True where a query is
predicted to look; pairs with padding mean nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


def within(queries: Tensor, keys: Tensor, threshold: float) -> Tensor:
    """Pairs that are at most so far apart: ‖q' - k'‖ ≤ t."""
    return torch.cdist(queries, keys) <= threshold


def in_one_bucket(
    queries: Tensor, keys: Tensor, buckets: int, real_queries: Tensor | None = None, real_keys: Tensor | None = None
) -> Tensor:
    """Pairs that are in the same bucket of any dimension, see `buckets_of`."""
    ours, theirs = buckets_of(queries, buckets, real_queries), buckets_of(keys, buckets, real_keys)
    found = torch.zeros(*queries.shape[:3], keys.shape[2], dtype=torch.bool, device=queries.device)
    # Dimension by dimension: all at once would need r times the memory.
    for own, other in zip(ours.unbind(-1), theirs.unbind(-1), strict=True):
        found |= own[..., :, None] == other[..., None, :]
    return found


def buckets_of(vectors: Tensor, buckets: int, real: Tensor | None = None) -> Tensor:
    """Of each dimension the bucket of every token: those of an example are cut into β parts of equal count.

    The token that is the i-th smallest of n, from 0, is in bucket ⌊i β / n⌋. Queries are ranked among queries, keys
    among keys.

    Args:
        vectors: (batch, heads, tokens, r).
        buckets: β.
        real: which are tokens, (batch, tokens); None for all. Padding ranks last, and is in no bucket: -1.

    Returns:
        Whole numbers, (batch, heads, tokens, r).
    """
    batch, _, tokens, _ = vectors.shape
    if real is None:
        real = torch.ones(batch, tokens, dtype=torch.bool, device=vectors.device)
    inside = real[:, None, :, None]
    order = vectors.masked_fill(~inside, torch.inf).transpose(2, 3).argsort(dim=-1, stable=True)
    places = torch.arange(tokens, device=vectors.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(-1, order, places).transpose(2, 3)
    found = ranks * buckets // real.sum(dim=1).clamp(min=1)[:, None, None, None]
    return found.masked_fill(~inside, -1)


def in_one_cluster(queries: Tensor, keys: Tensor, centroids: Tensor, top: int = 1) -> Tensor:
    """Pairs that have one of their nearest centroids in common, see `clusters_of`."""
    ours, theirs = (members(clusters_of(x, centroids, top), centroids.shape[1]) for x in (queries, keys))
    return (ours @ theirs.transpose(-1, -2)) > 0


def clusters_of(vectors: Tensor, centroids: Tensor, top: int = 1) -> Tensor:
    """The nearest centroids of every token, the nearest first.

    Args:
        vectors: (batch, heads, tokens, r).
        centroids: of every head, (heads, clusters, r).
        top: how many, at most all.

    Returns:
        Whole numbers, (batch, heads, tokens, top).
    """
    apart = torch.cdist(vectors, centroids[None].to(vectors))
    return apart.topk(min(top, centroids.shape[1]), dim=-1, largest=False).indices


def members(clusters: Tensor, count: int) -> Tensor:
    """Which of so many clusters every token is in, as 0 and 1: (batch, heads, tokens, clusters)."""
    found = torch.zeros(*clusters.shape[:3], count, device=clusters.device)
    return found.scatter_(-1, clusters, 1.0)


def in_one_hash(queries: Tensor, keys: Tensor, rotations: Tensor) -> Tensor:
    """Pairs that are hashed alike in any round: locality-sensitive hashing as in Reformer (Kitaev et al. 2020).

    Args:
        queries: (batch, heads, query, d); only their directions count.
        keys: (batch, heads, key, d).
        rotations: random matrices, see `random_rotations`.
    """
    ours, theirs = hashes_of(queries, rotations), hashes_of(keys, rotations)
    found = torch.zeros(*queries.shape[:3], keys.shape[2], dtype=torch.bool, device=queries.device)
    for own, other in zip(ours.unbind(-1), theirs.unbind(-1), strict=True):
        found |= own[..., :, None] == other[..., None, :]
    return found


def hashes_of(vectors: Tensor, rotations: Tensor) -> Tensor:
    """Argmax of [x R; -x R] of every round: whole numbers, (batch, heads, tokens, rounds)."""
    # (batch, heads, rounds, tokens, half of the hashes)
    turned = vectors[:, :, None] @ rotations.to(vectors)
    return torch.cat([turned, -turned], dim=-1).argmax(dim=-1).transpose(2, 3)


def random_rotations(heads: int, size: int, hashes: int, rounds: int = 1, seed: int = 0) -> Tensor:
    """Normal numbers for each head and round: (heads, rounds, d, hashes / 2).

    Args:
        heads: how many heads.
        size: d.
        hashes: how many different ones there are, an even number.
        rounds: how often is hashed.
        seed: of the draw.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(heads, rounds, size, hashes // 2, generator=generator)
