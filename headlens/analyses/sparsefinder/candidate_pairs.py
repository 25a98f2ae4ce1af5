"""Which queries and keys may meet, by what they are like in a small space (Treviso et al. 2022, section 4).

All functions take vectors `(batch, heads, tokens, r)` and give graphs `(batch, heads, query, key)`, True where a query
is predicted to look; pairs with padding mean nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


def within(queries: Tensor, keys: Tensor, threshold: float) -> Tensor:
    """Pairs of projected vectors that are at most `threshold` apart: ‖q' - k'‖ ≤ t."""
    return torch.cdist(queries, keys) <= threshold


def in_one_bucket(
    queries: Tensor, keys: Tensor, buckets: int, real_queries: Tensor | None = None, real_keys: Tensor | None = None
) -> Tensor:
    """Pairs that are in the same bucket of any dimension, see `buckets_of`."""
    return _agree(buckets_of(queries, buckets, real_queries), buckets_of(keys, buckets, real_keys))


def _agree(queries: Tensor, keys: Tensor) -> Tensor:
    """Pairs with the same label in any dimension, of labels `(batch, heads, tokens, r)`."""
    graph = torch.zeros(*queries.shape[:3], keys.shape[2], dtype=torch.bool, device=queries.device)
    # Dimension by dimension: all at once would need r times the memory.
    for query_labels, key_labels in zip(queries.unbind(-1), keys.unbind(-1), strict=True):
        graph |= query_labels[..., :, None] == key_labels[..., None, :]
    return graph


def buckets_of(vectors: Tensor, buckets: int, real: Tensor | None = None) -> Tensor:
    """The bucket of every token in each dimension: the tokens of an example are cut into β parts of equal count.

    The token that is the i-th smallest of n, from 0, is in bucket ⌊i β / n⌋. Queries are ranked among queries, keys
    among keys.

    Args:
        vectors: `(batch, heads, tokens, r)`.
        buckets: β.
        real: which are tokens, `(batch, tokens)`; None for all. Padding ranks last, and is in no bucket: -1.

    Returns:
        int64, `(batch, heads, tokens, r)`.
    """
    if real is None:
        real = vectors.new_ones(len(vectors), vectors.shape[2], dtype=torch.bool)
    inside = real[:, None, :, None]
    # The rank of a token is where the order of the tokens has it: the inverse of a permutation is its argsort.
    order = vectors.masked_fill(~inside, torch.inf).argsort(dim=2, stable=True)
    ranks = order.argsort(dim=2)
    return (ranks * buckets // real.sum(dim=1).clamp(min=1)[:, None, None, None]).masked_fill(~inside, -1)


def in_one_cluster(queries: Tensor, keys: Tensor, centroids: Tensor, top: int = 1) -> Tensor:
    """Pairs that have one of their nearest centroids in common, see `clusters_of`."""

    def members(vectors: Tensor) -> Tensor:
        """Which clusters every token is in, as 0 and 1: `(batch, heads, tokens, clusters)`."""
        none = torch.zeros(*vectors.shape[:3], centroids.shape[1], device=vectors.device)
        return none.scatter_(-1, clusters_of(vectors, centroids, top), 1.0)

    return (members(queries) @ members(keys).transpose(-1, -2)) > 0


def clusters_of(vectors: Tensor, centroids: Tensor, top: int = 1) -> Tensor:
    """The nearest centroids of every token, the nearest first.

    Args:
        vectors: `(batch, heads, tokens, r)`.
        centroids: of every head, `(heads, clusters, r)`.
        top: how many centroids of a token, at most all.

    Returns:
        int64, `(batch, heads, tokens, top)`.
    """
    distances = torch.cdist(vectors, centroids[None].to(vectors))
    return distances.topk(min(top, centroids.shape[1]), dim=-1, largest=False).indices


def in_one_hash(queries: Tensor, keys: Tensor, rotations: Tensor) -> Tensor:
    """Pairs that are hashed alike in any round: locality-sensitive hashing as in Reformer (Kitaev et al. 2020).

    Args:
        queries: `(batch, heads, query, d)`; only their directions count.
        keys: `(batch, heads, key, d)`.
        rotations: random matrices, see `random_rotations`.
    """
    return _agree(hashes_of(queries, rotations), hashes_of(keys, rotations))


def hashes_of(vectors: Tensor, rotations: Tensor) -> Tensor:
    """Argmax of [x R; -x R] of every round: int64, `(batch, heads, tokens, rounds)`."""
    # (batch, heads, rounds, tokens, half of the hashes)
    rotated = vectors[:, :, None] @ rotations.to(vectors)
    return torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1).transpose(2, 3)


def random_rotations(heads: int, size: int, hashes: int, rounds: int = 1, seed: int = 0) -> Tensor:
    """Standard normal numbers for each head and round: `(heads, rounds, d, hashes / 2)`.

    Args:
        heads: number of heads.
        size: d.
        hashes: how many different hashes there are, an even number.
        rounds: how often is hashed.
        seed: of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(heads, rounds, size, hashes // 2, generator=generator)
