"""How much of attention each method finds, and how sparse its graphs are, over the grids of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from headlens.analyses.sparsefinder.fitting import fit_centroids, fit_projections, points_of
from headlens.analyses.sparsefinder.measures import MEASURES, GraphCounts, GraphMeans, counts_by_window
from headlens.analyses.sparsefinder.options import FitOptions, ParameterGrid
from headlens.analyses.sparsefinder.predictors import (
    BucketPredictor,
    ClusterPredictor,
    DistancePredictor,
    EmptyPredictor,
    FixedGraph,
    HashPredictor,
    Predictor,
    RandomPredictor,
    directions,
)
from headlens.analyses.sparsefinder.query_key_projection import QueryKeyProjections
from headlens.analyses.sparsefinder.query_key_store import StoredBatch
from headlens.interventions.patterns import Global, Window
from headlens.statistics.bootstrap import FEWEST, Draws

PARETO_COLUMNS = [
    *("method", "parameter", "value_of_parameter", "window", "global_tokens", "head"),
    *MEASURES,
]
OWN = ("distance", "bucket", "cluster")  # methods of Sparsefinder; the others it is compared with
GOLD = "entmax"  # what attention itself leaves, as if it were a method
Batches = Callable[[], Iterable[StoredBatch]]


@dataclass(frozen=True, eq=False)
class FittedSite:
    """What was learned for a site.

    Args:
        projections: of its heads.
        losses: the mean loss of a query in every epoch.
        centroids: of projected queries and keys, by the number of clusters.
        routing: of the directions of queries and keys as they are.
        seed: of what is drawn at random where nothing is learned: hashes, random keys.
    """

    projections: QueryKeyProjections
    losses: list[float]
    centroids: Mapping[int, torch.Tensor] = field(default_factory=dict)
    routing: Mapping[int, torch.Tensor] = field(default_factory=dict)
    seed: int = 0


def fit_site(
    batches: Batches,
    grid: ParameterGrid,
    options: FitOptions | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> FittedSite:
    """Learn projections, then clusters of every number of the grid.

    Args:
        batches: gives the sentences of a site anew.
        grid: says which numbers of clusters.
        options: of the projections.
        advance: called with the number of sentences done, in every epoch.

    Raises:
        OptionError: if there are no sentences, or fewer tokens than clusters.
    """
    options = options or FitOptions()
    projections, losses = fit_projections(batches, options, advance)
    near = points_of(((*projections(own.queries, own.keys), own) for own in batches()), seed=options.seed)
    raw = points_of(((directions(own.queries), directions(own.keys), own) for own in batches()), seed=options.seed)
    centroids, routing = (
        {count: fit_centroids(points, count, options.seed) for count in grid.groups} for points in (near, raw)
    )
    return FittedSite(projections, losses, centroids, routing, options.seed)


def predictors(grid: ParameterGrid, fitted: FittedSite) -> Iterator[tuple[str, str, float, int, Predictor | None]]:
    """Method, name and value of its parameter, global tokens, and what predicts; None for no graph but a window."""
    for tokens in dict.fromkeys(grid.global_tokens):
        for method, parameter, value, predictor in _by_content(grid, fitted):
            yield method, parameter, value, tokens, predictor | FixedGraph(Global(tokens)) if tokens else predictor
    for count in dict.fromkeys(grid.groups):
        yield "longformer", "global_tokens", count, count, FixedGraph(Global(count))
        yield "random", "keys", count, 0, RandomPredictor(count, fitted.seed)
        yield "bigbird", "keys", count, count, FixedGraph(Global(count)) | RandomPredictor(count, fitted.seed)
    yield "window", "window", np.nan, 0, None


def _by_content(grid: ParameterGrid, fitted: FittedSite) -> Iterator[tuple[str, str, float, Predictor]]:
    """What looks at queries and keys."""
    for threshold in dict.fromkeys(grid.thresholds):
        yield "distance", "threshold", threshold, DistancePredictor(fitted.projections, threshold)
    for count in dict.fromkeys(grid.groups):
        yield "bucket", "buckets", count, BucketPredictor(fitted.projections, count)
        yield "cluster", "clusters", count, ClusterPredictor(fitted.centroids[count], fitted.projections, grid.top)
        yield "routing", "clusters", count, ClusterPredictor(fitted.routing[count], None, grid.top)
        yield "lsh", "hashes", count, HashPredictor(count, grid.rounds, fitted.seed)


def predictor_of(
    method: str, value: float, window: int, tokens: int, grid: ParameterGrid, fitted: FittedSite
) -> Predictor:
    """What predicts at one point of the grid.

    Args:
        method: such as `distance`.
        value: of its parameter.
        window: keys in the window, 0 for none.
        tokens: global ones.
        grid: that the point is of.
        fitted: of the site.

    Raises:
        KeyError: for a point that the grid does not have.
    """
    for name, _, own, ours, predictor in predictors(grid, fitted):
        if name == method and (method == "window" or (own == value and ours == tokens)):
            width = FixedGraph(Window(radius(window))) if window else None
            if predictor is None:
                return width or EmptyPredictor()
            return predictor if width is None else predictor | width
    raise KeyError(f"the grid has no {method} of {value:g}")


def radius(window: int) -> int:
    """Keys on each side of a query in a window of so many keys; -1 for no window."""
    return (window - 1) // 2 if window else -1


@dataclass(frozen=True, eq=False)
class SitePoints:
    """Every method with every parameter and window, at a site.

    Args:
        table: columns `PARETO_COLUMNS`, a row for each head; first of all those of `GOLD`, which finds everything.
        samples: recall and sparsity of every point over all heads in bootstrap samples of the sentences, float32,
            (replicates, points, 2); points are in the order of the table.
    """

    table: pd.DataFrame
    samples: np.ndarray[Any, Any]


def pareto(batches: Batches, grid: ParameterGrid, fitted: FittedSite, replicates: int = 0) -> SitePoints:
    """Every method with every parameter and window, on held-out sentences of a site.

    Args:
        batches: gives them anew, in the same order.
        grid: the parameters.
        fitted: what was learned on other sentences.
        replicates: bootstrap samples, the same sentences at every site with as many; none for few sentences.
    """
    gold = GraphMeans()
    for own in batches():
        gold.add([GraphCounts.of(own.weights, own.gold, own.allowed)])
    sentences = len(gold.examples)
    keys = [str(place) for place in range(sentences)]
    draws = Draws.of(keys, replicates if sentences >= FEWEST else 0, fitted.seed)
    rows: list[dict[str, Any]] = _rows((GOLD, "none", np.nan, 0, 0), gold.heads[0])
    samples = [_sampled(gold.examples, draws)]
    windows = list(dict.fromkeys(grid.windows))
    widths = [radius(window) for window in windows]
    for method, parameter, value, tokens, predictor in predictors(grid, fitted):
        means = GraphMeans()
        for own in batches():
            base = torch.zeros_like(own.weights, dtype=torch.bool)
            if predictor is not None:
                base = predictor.graph(own.vectors).expand_as(own.weights)
            means.add(counts_by_window(own.weights, base, own.allowed, widths))
        samples.append(_sampled(means.examples, draws))
        for window, shares in zip(windows, means.heads, strict=True):
            about = (method, parameter, value if method != "window" else window, window, tokens)
            rows += _rows(about, shares)
    return SitePoints(pd.DataFrame(rows, columns=PARETO_COLUMNS), np.concatenate(samples, axis=1))


def _sampled(shares: torch.Tensor, draws: Draws) -> np.ndarray[Any, Any]:
    """Recall and sparsity of some points over all heads, in samples: (replicates, points, 2), float32.

    Args:
        shares: of every sentence, (sentences, points, 2).
        draws: the samples.
    """
    flat = shares.flatten(1).numpy()
    known = np.isfinite(flat).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a sample may be of nothing
        found = [(weights @ np.nan_to_num(flat)) / (weights @ known) for weights in draws.blocks()]
    shape = (len(draws), *shares.shape[1:])
    return np.concatenate([*found, np.empty((0, flat.shape[1]))]).reshape(shape).astype(np.float32)


def _rows(about: tuple[Any, ...], shares: torch.Tensor) -> list[dict[str, Any]]:
    heads = enumerate(shares.T.tolist())
    return [dict(zip(PARETO_COLUMNS, (*about, head, *numbers), strict=True)) for head, numbers in heads]
