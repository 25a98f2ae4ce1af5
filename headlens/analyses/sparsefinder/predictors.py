"""Methods that predict where attention has weight, Sparsefinder's own and others (Treviso et al. 2022).

Functions take vectors `(batch, heads, tokens, r)` of a small space in which queries are near the keys they look at, and
give graphs `(batch, heads, query, key)`, True where a query is predicted to look; pairs with padding mean nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headlens.analyses.sparsefinder.measures import allowed_pairs
from headlens.attention_masks.patterns import Global, Pattern, Window, cached_positions, parts_of

# Brings queries and keys to r dimensions, as `QueryKeyProjections` do.
Projection = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


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
    """The bucket of every token in each dimension: the tokens of an example are cut into β parts of one size.

    The token that is the i-th smallest of n, from 0, is in bucket ⌊i / ⌈n / β⌉⌋: as in the authors' code
    (`enforce_equal_size`) all buckets have the same number of tokens but the last, which has what is left. There may be
    fewer than β: 10 tokens and β = 6 give 5 buckets of 2. The authors give that number of tokens, here it follows from
    β for each example. Queries are ranked among queries, keys among keys.

    Args:
        vectors: `(batch, heads, tokens, r)`.
        buckets: β.
        real: which are tokens, `(batch, tokens)`; None for all. Padding ranks last, and is in no bucket: -1.

    Returns:
        int64, `(batch, heads, tokens, r)`.
    """
    real = vectors.new_ones(len(vectors), vectors.shape[2], dtype=torch.bool) if real is None else real
    inside = real[:, None, :, None]
    # The rank of a token is where the order of the tokens has it: the inverse of a permutation is its argsort.
    order = vectors.masked_fill(~inside, torch.inf).argsort(dim=2, stable=True)
    ranks = order.argsort(dim=2)
    sizes = (real.sum(dim=1).clamp(min=1) + buckets - 1) // buckets  # rounded up
    return (ranks // sizes[:, None, None, None]).masked_fill(~inside, -1)


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


class QueryKeyProjections(nn.Module):
    """A linear map to r dimensions for each head: q' = q W + b, k' = k V + c.

    Args:
        heads: number of heads, each with maps of its own.
        size: d of their queries and keys.
        dimensions: r.
        shared: whether W = V and b = c.
    """

    def __init__(self, heads: int, size: int, dimensions: int = 4, *, shared: bool = True) -> None:
        super().__init__()
        maps = 1 if shared else 2
        spread = 1 / math.sqrt(size)  # as in a linear layer
        self.weight = nn.Parameter(torch.empty(maps, heads, size, dimensions).uniform_(-spread, spread))
        self.bias = nn.Parameter(torch.empty(maps, heads, 1, dimensions).uniform_(-spread, spread))

    def forward(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Projects queries and keys `(batch, heads, tokens, d)`, each to `(batch, heads, tokens, r)`."""
        weight, bias = self.weight.to(queries), self.bias.to(queries)
        # The last map is the first one where both are shared.
        return queries @ weight[0] + bias[0], keys @ weight[-1] + bias[-1]


@dataclass(frozen=True, eq=False)
class QueryKeyVectors:
    """Queries and keys of some sentences at one site, padded at their ends.

    Args:
        queries: `(batch, heads, query, d)`.
        keys: `(batch, heads, key, d)`.
        real_queries: which queries are tokens, bool, `(batch, query)`.
        real_keys: which keys are tokens, bool, `(batch, key)`.
        before: how many queries came before these, in passes whose keys were kept.
        causal: whether a query looks at no key behind it.
    """

    queries: Tensor
    keys: Tensor
    real_queries: Tensor
    real_keys: Tensor
    before: int = 0
    causal: bool = False

    @property
    def allowed(self) -> Tensor:
        """Pairs that could have weight, where no queries came before: bool, `(batch, 1, query, key)`."""
        return allowed_pairs(self.real_queries, self.real_keys, causal=self.causal)


@dataclass(frozen=True, eq=False)
class Predictor:
    """Gives a graph of queries and keys; pairs with padding, or not allowed, mean nothing.

    Args:
        graph: predicts where queries look: bool, `(batch, heads or 1, query, key)`.
        pairwise: whether a pair depends neither on other queries nor on what keys hold but its own, and in a decoder
            not on later keys, so that a text can be written with a cache.
    """

    graph: Callable[[QueryKeyVectors], Tensor]
    pairwise: bool = False

    def __or__(self, other: Predictor) -> Predictor:
        """Combines two predictors into one that predicts every pair that at least one of them predicts."""
        return Predictor(lambda v: self.graph(v) | other.graph(v), self.pairwise and other.pairwise)


def distance_predictor(projected: Projection, threshold: float) -> Predictor:
    """Sparsefinder by distance: predicts pairs of projected queries q' and keys k' with ‖q' - k'‖ ≤ t."""
    return Predictor(lambda v: within(*projected(v.queries, v.keys), threshold), pairwise=True)


def bucket_predictor(projected: Projection, buckets: int) -> Predictor:
    """Sparsefinder by buckets: any of r dimensions, each cut into at most β buckets of one size, has both in one."""
    return Predictor(lambda v: in_one_bucket(*projected(v.queries, v.keys), buckets, v.real_queries, v.real_keys))


def cluster_predictor(centroids: Tensor, projected: Projection | None = None, top: int = 1) -> Predictor:
    """Predicts pairs of a query and a key that have one of their nearest centroids in common.

    With projections this is Sparsefinder's clustering, without them that of the Routing Transformer (Roy et al. 2021),
    which clusters directions: vectors are brought to the length √d.

    Args:
        centroids: of every head, `(heads, clusters, r or d)`, see `fit_centroids`.
        projected: projections to r dimensions; None for queries and keys as they are.
        top: how many centroids a token has.
    """
    project = projected or (lambda queries, keys: (directions(queries), directions(keys)))
    return Predictor(lambda v: in_one_cluster(*project(v.queries, v.keys), centroids, top), pairwise=True)


def hash_predictor(hashes: int, rounds: int = 4, seed: int = 0) -> Predictor:
    """Reformer's locality-sensitive hashing (Kitaev et al. 2020): predicts pairs with the same hash in any round.

    Args:
        hashes: how many different hashes there are, an even number.
        rounds: how often is hashed.
        seed: of the rotations.
    """

    def graph(vectors: QueryKeyVectors) -> Tensor:
        _, heads, _, size = vectors.queries.shape
        return in_one_hash(vectors.queries, vectors.keys, random_rotations(heads, size, hashes, rounds, seed))

    return Predictor(graph, pairwise=True)


def pattern_predictor(pattern: Pattern) -> Predictor:
    """Predicts the pairs of a fixed pattern, whatever queries and keys are like: window, Longformer.

    Each sentence has the pattern of its own length, the longer of its two sides where these differ. The graph is
    `(batch, 1, query, key)`, False at padding; `pairwise` if rows are the same at every length: random ones are drawn
    anew.
    """

    def graph(vectors: QueryKeyVectors) -> Tensor:
        predicted, before = empty_predictor().graph(vectors).cpu(), vectors.before
        lengths = torch.stack([vectors.real_queries.sum(dim=1), vectors.real_keys.sum(dim=1)], dim=1).cpu()
        # Once for all sentences of a length.
        for n, m in sorted(set(map(tuple, lengths.tolist()))):
            # Copied: the cached pattern of a length cannot be written to.
            allowed = torch.tensor(cached_positions(pattern, max(before + n, m)))
            rows = (lengths == torch.tensor([n, m])).all(dim=1)
            predicted[rows, :, :n, :m] = allowed[before : before + n, :m]
        return predicted.to(vectors.queries.device)

    return Predictor(graph, all(isinstance(part, Window | Global) for part in parts_of(pattern)))


def random_predictor(count: int, seed: int = 0) -> Predictor:
    """Predicts random keys: r of those that a query may look at, the one in its own place not among them.

    Every head has keys of its own. A query's keys are the same in every text of as many keys, in a decoder whatever
    comes after.

    Args:
        count: r; queries with fewer keys look at all of them.
        seed: of the random numbers.
    """

    def graph(vectors: QueryKeyVectors) -> Tensor:
        (_, heads, n, _), m = vectors.queries.shape, vectors.keys.shape[2]
        end, device = vectors.before + n, vectors.real_keys.device
        queries, keys = torch.arange(vectors.before, end, device=device)[:, None], torch.arange(m, device=device)
        others = keys < queries if vectors.causal else keys != queries
        numbers = _random_numbers(heads, _power_of_two(end), _power_of_two(m), seed)[:, vectors.before : end, :m]
        # The r lowest numbers of a row are its keys; a row's first numbers do not depend on how many there are.
        possible = others & vectors.real_keys[:, None, None, :]
        ranked = torch.tensor(numbers, device=device).masked_fill(~possible, torch.inf)  # (batch, heads, query, key)
        lowest, places = ranked.topk(min(count, m), dim=-1, largest=False)
        return torch.zeros_like(ranked, dtype=torch.bool).scatter(-1, places, lowest.isfinite())

    return Predictor(graph, pairwise=True)


@lru_cache(maxsize=8)
def _random_numbers(heads: int, rows: int, columns: int, seed: int) -> npt.NDArray[np.float64]:
    """Draws numbers from 0 to 1, `(heads, rows, columns)`: each row of each head from a stream of its own."""
    numbers = [np.random.default_rng([seed, *place]).random(columns) for place in np.ndindex(heads, rows)]
    return np.array(numbers).reshape(heads, rows, columns)


def _power_of_two(count: int) -> int:
    """Rounds up to a power of two, so that growing texts share their random numbers."""
    return 1 << max(count - 1, 0).bit_length()


def empty_predictor() -> Predictor:
    """Predicts an empty graph, `(batch, 1, query, key)`, in which no query looks at any key."""

    def graph(vectors: QueryKeyVectors) -> Tensor:
        size = len(vectors.real_queries), 1, vectors.real_queries.shape[1], vectors.real_keys.shape[1]
        return torch.zeros(size, dtype=torch.bool, device=vectors.queries.device)

    return Predictor(graph, pairwise=True)


def directions(vectors: Tensor) -> Tensor:
    """Brings vectors to the length √d; those of length 0 stay."""
    unit: Tensor = torch.nn.functional.normalize(vectors, dim=-1)
    return unit * math.sqrt(vectors.shape[-1])
