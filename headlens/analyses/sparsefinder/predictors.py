"""Methods that predict where attention has weight, Sparsefinder's own and others (Treviso et al. 2022, section 5)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headlens.analyses.sparsefinder import candidate_pairs
from headlens.analyses.sparsefinder.measures import allowed_pairs
from headlens.analyses.sparsefinder.query_key_projection import QueryKeyProjections
from headlens.interventions.patterns import Global, Pattern, Window, cached_positions, parts_of


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


class Predictor(ABC):
    """Gives a graph of queries and keys; pairs with padding, or not allowed, mean nothing.

    A predictor is `pairwise` if a pair depends neither on other queries nor on what keys hold but its own, and in a
    decoder not on later keys, so that a text can be written with a cache.
    """

    pairwise: bool = False

    @abstractmethod
    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Predicts where queries look: bool, `(batch, heads or 1, query, key)`."""

    def __or__(self, other: Predictor) -> Predictor:
        """Combines two predictors into one that predicts every pair that at least one of them predicts."""
        return UnionPredictor(self, other)


@dataclass(frozen=True, eq=False)
class UnionPredictor(Predictor):
    """Predicts the union of two graphs: the pairs that at least one of two predictors predicts."""

    first: Predictor
    second: Predictor

    @property
    def pairwise(self) -> bool:  # type: ignore[override]
        """Whether both predictors are `pairwise`, and so their union is."""
        return self.first.pairwise and self.second.pairwise

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns the union of the two predicted graphs: bool, `(batch, heads or 1, query, key)`."""
        return self.first.graph(vectors) | self.second.graph(vectors)


@dataclass(frozen=True, eq=False)
class DistancePredictor(Predictor):
    """Sparsefinder by distance: predicts pairs of projected queries q' and keys k' with ‖q' - k'‖ ≤ t."""

    projections: QueryKeyProjections
    threshold: float
    pairwise = True

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns pairs whose projected vectors are at most `threshold` apart: bool, `(batch, heads, query, key)`."""
        queries, keys = self.projections(vectors.queries, vectors.keys)
        return candidate_pairs.within(queries, keys, self.threshold)


@dataclass(frozen=True, eq=False)
class BucketPredictor(Predictor):
    """Sparsefinder by buckets: any of r dimensions, each cut into β buckets of equal count, has both in one."""

    projections: QueryKeyProjections
    buckets: int

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns pairs that share a bucket in at least one dimension: bool, `(batch, heads, query, key)`."""
        queries, keys = self.projections(vectors.queries, vectors.keys)
        return candidate_pairs.in_one_bucket(queries, keys, self.buckets, vectors.real_queries, vectors.real_keys)


@dataclass(frozen=True, eq=False)
class ClusterPredictor(Predictor):
    """Predicts pairs of a query and a key that have one of their nearest centroids in common.

    With projections this is Sparsefinder's clustering, without them that of the Routing Transformer (Roy et al. 2021),
    which clusters directions: vectors are brought to the length √d.

    Args:
        centroids: of every head, `(heads, clusters, r or d)`, see `fit_centroids`.
        projections: to r dimensions; None for queries and keys as they are.
        top: how many centroids a token has.
    """

    centroids: Tensor
    projections: QueryKeyProjections | None = None
    top: int = 1
    pairwise = True

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns pairs that share one of their `top` nearest centroids: bool, `(batch, heads, query, key)`."""
        if self.projections is None:
            queries, keys = directions(vectors.queries), directions(vectors.keys)
        else:
            queries, keys = self.projections(vectors.queries, vectors.keys)
        return candidate_pairs.in_one_cluster(queries, keys, self.centroids, self.top)


@dataclass(frozen=True, eq=False)
class HashPredictor(Predictor):
    """Reformer's locality-sensitive hashing (Kitaev et al. 2020): predicts pairs with the same hash in any round.

    Args:
        hashes: how many different hashes there are, an even number.
        rounds: how often is hashed.
        seed: of the rotations.
    """

    hashes: int
    rounds: int = 4
    seed: int = 0
    pairwise = True

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns pairs with the same hash in at least one round: bool, `(batch, heads, query, key)`."""
        _, heads, _, size = vectors.queries.shape
        rotations = candidate_pairs.random_rotations(heads, size, self.hashes, self.rounds, self.seed)
        return candidate_pairs.in_one_hash(vectors.queries, vectors.keys, rotations)


@dataclass(frozen=True)
class FixedGraph(Predictor):
    """Predicts the pairs of a fixed pattern, whatever queries and keys are like: window, Longformer.

    Each sentence has the pattern of its own length, the longer of its two sides where these differ.
    """

    pattern: Pattern

    @property
    def pairwise(self) -> bool:  # type: ignore[override]
        """Whether rows of the pattern are the same at every length: random ones are drawn anew."""
        return all(isinstance(part, Window | Global) for part in parts_of(self.pattern))

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns the pattern of every sentence's own length: bool, `(batch, 1, query, key)`, False at padding."""
        graph, before = EmptyPredictor().graph(vectors).cpu(), vectors.before
        lengths = torch.stack([vectors.real_queries.sum(dim=1), vectors.real_keys.sum(dim=1)], dim=1).cpu()
        # Once for all sentences of a length.
        for n, m in sorted(set(map(tuple, lengths.tolist()))):
            # Copied: the cached pattern of a length cannot be written to.
            allowed = torch.tensor(cached_positions(self.pattern, max(before + n, m)))
            rows = (lengths == torch.tensor([n, m])).all(dim=1)
            graph[rows, :, :n, :m] = allowed[before : before + n, :m]
        return graph.to(vectors.queries.device)


@dataclass(frozen=True)
class RandomPredictor(Predictor):
    """Predicts random keys: r of those that a query may look at, the one in its own place not among them.

    Every head has keys of its own. A query's keys are the same in every text of as many keys, in a decoder whatever
    comes after.

    Args:
        count: r; queries with fewer keys look at all of them.
        seed: of the random numbers.
    """

    count: int
    seed: int = 0
    pairwise = True

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns at most r randomly drawn keys for every query of every head: bool, `(batch, heads, query, key)`."""
        (_, heads, n, _), m = vectors.queries.shape, vectors.keys.shape[2]
        end, device = vectors.before + n, vectors.real_keys.device
        queries, keys = torch.arange(vectors.before, end, device=device)[:, None], torch.arange(m, device=device)
        others = keys < queries if vectors.causal else keys != queries
        numbers = _random_numbers(heads, _power_of_two(end), _power_of_two(m), self.seed)[:, vectors.before : end, :m]
        # The r lowest numbers of a row are its keys; a row's first numbers do not depend on how many there are.
        possible = others & vectors.real_keys[:, None, None, :]
        ranked = torch.tensor(numbers, device=device).masked_fill(~possible, torch.inf)  # (batch, heads, query, key)
        lowest, places = ranked.topk(min(self.count, m), dim=-1, largest=False)
        return torch.zeros_like(ranked, dtype=torch.bool).scatter(-1, places, lowest.isfinite())


@lru_cache(maxsize=8)
def _random_numbers(heads: int, rows: int, columns: int, seed: int) -> npt.NDArray[np.float64]:
    """Draws numbers from 0 to 1, `(heads, rows, columns)`: each row of each head from a stream of its own."""
    numbers = [np.random.default_rng([seed, *place]).random(columns) for place in np.ndindex(heads, rows)]
    return np.array(numbers).reshape(heads, rows, columns)


def _power_of_two(count: int) -> int:
    """Rounds up to a power of two, so that growing texts share their random numbers."""
    return 1 << max(count - 1, 0).bit_length()


@dataclass(frozen=True)
class EmptyPredictor(Predictor):
    """Predicts an empty graph, in which no query looks at any key."""

    pairwise = True

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns a graph without any pair: bool, `(batch, 1, query, key)`, False everywhere."""
        size = len(vectors.real_queries), 1, vectors.real_queries.shape[1], vectors.real_keys.shape[1]
        return torch.zeros(size, dtype=torch.bool, device=vectors.queries.device)


def directions(vectors: Tensor) -> Tensor:
    """Brings vectors to the length √d; those of length 0 stay."""
    unit: Tensor = torch.nn.functional.normalize(vectors, dim=-1)
    return unit * math.sqrt(vectors.shape[-1])
