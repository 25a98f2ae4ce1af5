"""How much of attention each method finds, and how sparse its graphs are, over the grids of the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from headlens.analyses.sparsefinder import predictors
from headlens.analyses.sparsefinder.fitting import Batches, FittedSite
from headlens.analyses.sparsefinder.measures import MEASURES, GraphCounts, GraphMeans, counts_by_window
from headlens.analyses.sparsefinder.options import ParameterGrid
from headlens.analyses.sparsefinder.predictors import FixedGraph, Predictor, RandomPredictor
from headlens.interventions.patterns import Global, Window
from headlens.statistics.bootstrap import FEWEST, Draws

POINT = ["method", "parameter", "value_of_parameter", "window", "global_tokens"]
PARETO_COLUMNS = [*POINT, "head", *MEASURES]
OWN = ("distance", "bucket", "cluster")  # methods of Sparsefinder; the others it is compared with
GOLD = "entmax"  # what attention itself leaves, as if it were a method


def grid_predictors(grid: ParameterGrid, fitted: FittedSite) -> Iterator[tuple[str, str, float, int, Predictor | None]]:
    """Yields method, name and value of its parameter, global tokens, and predictor; None for no graph but a window."""
    for tokens in dict.fromkeys(grid.global_tokens):
        for method, parameter, value, predictor in _content_predictors(grid, fitted):
            yield method, parameter, value, tokens, predictor | FixedGraph(Global(tokens)) if tokens else predictor
    for count in dict.fromkeys(grid.groups):
        yield "longformer", "global_tokens", count, count, FixedGraph(Global(count))
        yield "random", "keys", count, 0, RandomPredictor(count, fitted.seed)
        yield "bigbird", "keys", count, count, FixedGraph(Global(count)) | RandomPredictor(count, fitted.seed)
    yield "window", "window", np.nan, 0, None


def _content_predictors(grid: ParameterGrid, fitted: FittedSite) -> Iterator[tuple[str, str, float, Predictor]]:
    """Yields the predictors that look at queries and keys."""
    near = fitted.projections
    for threshold in dict.fromkeys(grid.thresholds):
        yield "distance", "threshold", threshold, predictors.DistancePredictor(near, threshold)
    for count in dict.fromkeys(grid.groups):
        centroids, routing = fitted.centroids[count], fitted.routing[count]
        yield "bucket", "buckets", count, predictors.BucketPredictor(near, count)
        yield "cluster", "clusters", count, predictors.ClusterPredictor(centroids, near, grid.top)
        yield "routing", "clusters", count, predictors.ClusterPredictor(routing, None, grid.top)
        yield "lsh", "hashes", count, predictors.HashPredictor(count, grid.rounds, fitted.seed)


def predictor_of(
    method: str, value: float, window: int, tokens: int, grid: ParameterGrid, fitted: FittedSite
) -> Predictor:
    """Finds the predictor at one point of the grid.

    Args:
        method: such as `distance`.
        value: of its parameter.
        window: keys in the window, 0 for none.
        tokens: global tokens.
        grid: that the point is of.
        fitted: of the site.

    Raises:
        KeyError: for a point that the grid does not have.
    """
    for name, _, grid_value, grid_tokens, predictor in grid_predictors(grid, fitted):
        if name == method and (method == "window" or (grid_value == value and grid_tokens == tokens)):
            base = predictor or predictors.EmptyPredictor()
            return base | FixedGraph(Window(radius(window))) if window else base
    raise KeyError(f"the grid has no {method} of {value:g}")


def radius(window: int) -> int:
    """Keys on each side of a query in a window of so many keys; -1 for no window."""
    return (window - 1) // 2 if window else -1


@dataclass(frozen=True, eq=False)
class SitePoints:
    """Recall and sparsity of every method with every parameter and window, at a site.

    Args:
        table: columns `PARETO_COLUMNS`, a row for each head; first of all those of `GOLD`, which finds everything.
        samples: recall and sparsity of every point over all heads in bootstrap samples of the sentences, float32,
            `(replicates, points, 2)`; points are in the order of the table.
    """

    table: pd.DataFrame
    samples: npt.NDArray[np.float32]


def pareto(batches: Batches, grid: ParameterGrid, fitted: FittedSite, replicates: int = 0) -> SitePoints:
    """Measures every method with every parameter and window on held-out sentences of a site.

    Args:
        batches: gives the sentences anew, in the same order.
        grid: the parameters.
        fitted: what was learned on other sentences.
        replicates: bootstrap samples, the same sentences at every site with as many; none for few sentences.
    """
    gold = GraphMeans()
    for batch in batches():
        gold.add([GraphCounts.of(batch.weights, batch.gold, batch.allowed)])
    sentences = len(gold.examples)
    draws = Draws.of(list(map(str, range(sentences))), replicates if sentences >= FEWEST else 0, fitted.seed)
    rows = _rows((GOLD, "none", np.nan, 0, 0), gold.heads[0])
    samples = [_sampled(gold.examples, draws)]
    windows = list(dict.fromkeys(grid.windows))
    for method, parameter, value, tokens, predictor in grid_predictors(grid, fitted):
        means = GraphMeans()
        for batch in batches():
            graph = (predictor or predictors.EmptyPredictor()).graph(batch).expand_as(batch.weights)
            means.add(counts_by_window(batch.weights, graph, batch.allowed, list(map(radius, windows))))
        samples.append(_sampled(means.examples, draws))
        for window, shares in zip(windows, means.heads, strict=True):
            rows += _rows((method, parameter, window if method == "window" else value, window, tokens), shares)
    return SitePoints(pd.DataFrame(rows, columns=PARETO_COLUMNS), np.concatenate(samples, axis=1))


def _sampled(shares: torch.Tensor, draws: Draws) -> npt.NDArray[np.float32]:
    """Recall and sparsity of some points over all heads, in samples: `(replicates, points, 2)`.

    Args:
        shares: of every sentence, `(sentences, points, 2)`, NaN where a sentence says nothing.
        draws: the samples.
    """
    flat = shares.flatten(1).numpy()
    known = np.isfinite(flat).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a sample may be of nothing
        means = [(weights @ np.nan_to_num(flat)) / (weights @ known) for weights in draws.blocks()]
    shape = (len(draws), *shares.shape[1:])
    return np.concatenate([*means, np.empty((0, flat.shape[1]))]).reshape(shape).astype(np.float32)


def _rows(point: tuple[Any, ...], shares: torch.Tensor) -> list[tuple[Any, ...]]:
    """The rows of a point in the table, one for each head, of `shares` `(measures, heads)`."""
    return [(*point, head, *measures) for head, measures in enumerate(shares.T.tolist())]
