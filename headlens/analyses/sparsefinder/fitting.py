"""Learning projections and clusters of one site from what was collected (Treviso et al. 2022, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from headlens.analyses.sparsefinder.options import FitOptions
from headlens.analyses.sparsefinder.query_key_projection import QueryKeyProjections, margin_losses
from headlens.analyses.sparsefinder.query_key_store import StoredBatch
from headlens.errors import OptionError

_POINTS = 8_000  # vectors of a head that clusters are fitted to


def fit_projections(
    batches: Callable[[], Iterable[StoredBatch]],
    options: FitOptions | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[QueryKeyProjections, list[float]]:
    """Learn the projections of all heads of a site at once.

    Args:
        batches: gives the sentences anew for every epoch.
        options: size of the space, length and step size.
        advance: called with the number of sentences done.

    Returns:
        The projections, and the mean loss of a query in every epoch.

    Raises:
        OptionError: if there are no sentences.
    """
    options = options or FitOptions()
    generator = torch.Generator().manual_seed(options.seed)
    projections: QueryKeyProjections | None = None
    optimiser: torch.optim.Optimizer | None = None
    losses = []
    for _ in range(options.epochs):
        total, count = 0.0, 0
        for pairs in batches():
            if projections is None or optimiser is None:
                projections = _first(pairs, options)
                optimiser = torch.optim.Adam(projections.parameters(), lr=options.learning_rate)
            optimiser.zero_grad()
            queries, keys = projections(pairs.queries, pairs.keys)
            own = margin_losses(queries, keys, pairs.gold, pairs.allowed, options.margin, generator)
            asked = int((pairs.gold & pairs.allowed).any(dim=-1).sum())
            # A mean over the queries of each head, summed over heads, which share nothing.
            loss = own.sum() * own.shape[1] / max(asked, 1)
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(projections.parameters(), options.clip)
            optimiser.step()
            total, count = total + float(own.detach().sum()), count + asked
            advance(len(pairs.queries))
        losses.append(total / max(count, 1))
    if projections is None:
        raise OptionError("There are no sentences to learn projections from.", "Collect some first.")
    return projections.requires_grad_(requires_grad=False), losses


def _first(pairs: StoredBatch, options: FitOptions) -> QueryKeyProjections:
    heads, size = pairs.queries.shape[1], pairs.queries.shape[3]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        return QueryKeyProjections(heads, size, options.dimensions, shared=options.shared)


def fit_centroids(vectors: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """Centroids of queries and keys together, by k-means for each head: (heads, clusters, r).

    Args:
        vectors: (heads, points, r), see `points_of`.
        clusters: how many, at most as many as points.
        seed: of the first centroids.

    Raises:
        OptionError: for more clusters than points.
    """
    from sklearn.cluster import KMeans  # noqa: PLC0415 - heavy, and needed here alone

    if clusters > vectors.shape[1]:
        raise OptionError(
            f"{clusters} clusters are more than {vectors.shape[1]} queries and keys.", "Collect more sentences."
        )
    found = [
        KMeans(clusters, n_init=1, random_state=seed).fit(own.numpy().astype(np.float64)).cluster_centers_
        for own in vectors
    ]
    return torch.from_numpy(np.stack(found)).float()


def points_of(batches: Iterable[tuple[Tensor, Tensor, StoredBatch]], most: int = _POINTS, seed: int = 0) -> Tensor:
    """Queries and keys of every head without padding, a random part of them where there are many: (heads, points, r).

    Memory is bounded: while more come, those that are kept are a uniform sample of all so far (reservoir sampling), the
    same tokens for all heads.

    Args:
        batches: vectors of queries and of keys, (batch, heads, tokens, r), and the sentences that they are of.
        most: points that are kept.
        seed: of the sample.
    """
    generator = torch.Generator().manual_seed(seed)
    kept: Tensor | None = None
    draws = torch.zeros(0)
    for part in _flattened(batches):
        own = torch.rand(part.shape[1], generator=generator)
        kept = part if kept is None else torch.cat([kept, part], dim=1)
        draws = torch.cat([draws, own])
        if len(draws) > most:
            # The points with the smallest numbers of all are as good as drawn.
            stay = draws.argsort(stable=True)[:most].sort().values
            kept, draws = kept[:, stay], draws[stay]
    if kept is None:
        raise OptionError("There are no sentences to find clusters in.", "Collect some first.")
    return kept


def _flattened(batches: Iterable[tuple[Tensor, Tensor, StoredBatch]]) -> Iterator[Tensor]:
    for queries, keys, pairs in batches:
        for vectors, real in ((queries, pairs.real_queries), (keys, pairs.real_keys)):
            yield vectors.transpose(0, 1)[:, real]
