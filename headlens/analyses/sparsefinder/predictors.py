"""Methods that predict where attention has weight, Sparsefinder's own and others (Treviso et al. 2022, section 5)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headlens.analyses.sparsefinder.candidate_pairs import (
    in_one_bucket,
    in_one_cluster,
    in_one_hash,
    random_rotations,
    within,
)
from headlens.analyses.sparsefinder.query_key_projection import QueryKeyProjections
from headlens.interventions.patterns import Global, Pattern, Window, cached_positions, parts_of


@dataclass(frozen=True, eq=False)
class QueryKeyVectors:
    """Queries and keys of some sentences at one site, padded at their ends.

    Args:
        queries: (batch, heads, query, d).
        keys: (batch, heads, key, d).
        real_queries: which are tokens, bool, (batch, query).
        real_keys: the same, (batch, key).
        before: how many queries came before these, in passes whose keys were kept.
        causal: whether a query looks at no key behind it.
    """

    queries: Tensor
    keys: Tensor
    real_queries: Tensor
    real_keys: Tensor
    before: int = 0
    causal: bool = False


class Predictor(ABC):
    """Gives a graph of queries and keys; pairs with padding, or not allowed, mean nothing.

    A predictor is `pairwise` if a pair depends neither on other queries nor on what keys hold but its own, and in a
    decoder not on later keys, so that a text can be written with a cache.
    """

    pairwise: bool = False

    @abstractmethod
    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """True where a query is predicted to look: (batch, heads or 1, query, key)."""

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
        return within(queries, keys, self.threshold)


@dataclass(frozen=True, eq=False)
class BucketPredictor(Predictor):
    """Sparsefinder by buckets: any of r dimensions, each cut into β buckets of equal count, has both in one."""

    projections: QueryKeyProjections
    buckets: int

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns pairs that share a bucket in at least one dimension: bool, `(batch, heads, query, key)`."""
        queries, keys = self.projections(vectors.queries, vectors.keys)
        return in_one_bucket(queries, keys, self.buckets, vectors.real_queries, vectors.real_keys)


@dataclass(frozen=True, eq=False)
class ClusterPredictor(Predictor):
    """By clusters: a query and a key have one of their nearest centroids in common.

    With projections Sparsefinder's, without them those of the Routing Transformer (Roy et al. 2021), which clusters
    directions: vectors are brought to the length √d.

    Args:
        centroids: of every head, (heads, clusters, r or d), see `fit_centroids`.
        projections: to r dimensions; None for queries and keys as they are.
        top: how many centroids each has.
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
        return in_one_cluster(queries, keys, self.centroids, self.top)


@dataclass(frozen=True, eq=False)
class HashPredictor(Predictor):
    """Reformer's locality-sensitive hashing (Kitaev et al. 2020): alike in any of some rounds.

    Args:
        hashes: how many different ones there are, an even number.
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
        rotations = random_rotations(heads, size, self.hashes, self.rounds, self.seed)
        return in_one_hash(vectors.queries, vectors.keys, rotations)


@dataclass(frozen=True)
class FixedGraph(Predictor):
    """A fixed pattern, whatever queries and keys are like: window, Longformer.

    Each sentence has the pattern of its own length, the longer of its two sides where these differ.
    """

    pattern: Pattern

    @property
    def pairwise(self) -> bool:  # type: ignore[override]
        """Whether rows of the pattern are the same at every length: random ones are drawn anew."""
        return all(isinstance(part, Window | Global) for part in parts_of(self.pattern))

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns the pattern of every sentence's own length: bool, `(batch, 1, query, key)`, False at padding."""
        n, m = vectors.real_queries.shape[1], vectors.real_keys.shape[1]
        found = torch.zeros(len(vectors.real_queries), 1, n, m, dtype=torch.bool)
        before = vectors.before
        lengths = torch.stack([vectors.real_queries.sum(dim=1), vectors.real_keys.sum(dim=1)], dim=1).cpu()
        for own, other in sorted(set(map(tuple, lengths.tolist()))):
            # Copied: what is made once for all sentences of a length cannot be written to.
            allowed = torch.tensor(cached_positions(self.pattern, max(before + own, other)))
            rows = (lengths == torch.tensor([own, other])).all(dim=1)
            found[rows, :, :own, :other] = allowed[before : before + own, :other]
        return found.to(vectors.queries.device)


@dataclass(frozen=True)
class RandomPredictor(Predictor):
    """Random keys: every query looks at r of those that it may look at, that in its own place not among them.

    Every head has its own. A query's keys are the same in every text of as many keys, in a decoder whatever comes
    after.

    Args:
        count: r; queries with fewer keys look at all of them.
        seed: of the draw.
    """

    count: int
    seed: int = 0
    pairwise = True

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns at most r randomly drawn keys for every query of every head: bool, `(batch, heads, query, key)`."""
        (_, heads, n, _), m = vectors.queries.shape, vectors.keys.shape[2]
        ends, device = vectors.before + n, vectors.real_keys.device
        queries = torch.arange(vectors.before, ends, device=device)[:, None]
        keys = torch.arange(m, device=device)
        others = keys < queries if vectors.causal else keys != queries
        numbers = _numbers(heads, _rounded(ends), _rounded(m), self.seed)[:, vectors.before : ends, :m]
        # Each takes the r lowest of its row, whose first numbers do not depend on how many there are.
        possible = others & vectors.real_keys[:, None, None, :]
        ranked = torch.tensor(numbers, device=device).masked_fill(~possible, torch.inf)
        lowest, places = ranked.topk(min(self.count, m), dim=-1, largest=False)
        return torch.zeros_like(ranked, dtype=torch.bool).scatter(-1, places, lowest.isfinite())


@lru_cache(maxsize=8)
def _numbers(heads: int, rows: int, columns: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """From 0 to 1, each row of each head from a stream of its own."""
    streams = [[np.random.default_rng([seed, head, row]) for row in range(rows)] for head in range(heads)]
    return np.array([[stream.random(columns) for stream in own] for own in streams])


def _rounded(count: int) -> int:
    """Up to a power of two, so that growing texts share what is drawn."""
    return 1 << max(count - 1, 0).bit_length()


@dataclass(frozen=True)
class EmptyPredictor(Predictor):
    """Predicts an empty graph, in which no query looks at any key."""

    pairwise = True

    def graph(self, vectors: QueryKeyVectors) -> Tensor:
        """Returns a graph without any pair: bool, `(batch, 1, query, key)`, False everywhere."""
        n, m = vectors.real_queries.shape[1], vectors.real_keys.shape[1]
        device = vectors.queries.device
        return torch.zeros(len(vectors.real_queries), 1, n, m, dtype=torch.bool, device=device)


def windowed(width: int) -> FixedGraph:
    """Makes a predictor of a fixed window, in which query i looks at key j if |i - j| ≤ w."""
    return FixedGraph(Window(width))


def directions(vectors: Tensor) -> Tensor:
    """Vectors brought to the length √d; of length 0 they stay."""
    found: Tensor = torch.nn.functional.normalize(vectors, dim=-1) * math.sqrt(vectors.shape[-1])
    return found
