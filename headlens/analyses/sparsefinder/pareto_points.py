"""How much of attention each method finds, and how sparse its graphs are, over the grids of the paper.

`SparsitySweep` learns and measures all sites of a model, and remembers those that are done.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from headlens.analyses.sparsefinder import predictors
from headlens.analyses.sparsefinder.block_masks import BlockClusters, Version, of_blocks
from headlens.analyses.sparsefinder.fitting import Batches, FittedSite, fit_site, load_fitted, save_fitted
from headlens.analyses.sparsefinder.measures import MEASURES, GraphMeans, counts_by_window, graph_counts
from headlens.analyses.sparsefinder.options import FitOptions, ParameterGrid
from headlens.analyses.sparsefinder.predictors import Predictor, pattern_predictor
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore
from headlens.attention_masks.patterns import Global, Window
from headlens.errors import ResumeError, read_errors
from headlens.files import atomic_path, output_errors, read_csv, write_csv
from headlens.statistics.bootstrap import FEWEST, Draws
from headlens.tables import sparsefinder_tables
from headlens.tables.shared_columns import ALL
from headlens.tables.sparsefinder_tables import GOLD
from headlens.tables.table_schema import names_of

POINT = list(names_of(sparsefinder_tables.POINT))
PARETO_COLUMNS = [*POINT, "head", *MEASURES]
TIMES_COLUMNS = sparsefinder_tables.TIMES.names[2:]
OWN = ("distance", "bucket", "cluster")  # methods of Sparsefinder; the others it is compared with
BLOCK = "block_"  # before the names of methods whose graphs are of whole blocks
REPLICATES = 1000  # bootstrap samples


def grid_predictors(grid: ParameterGrid, fitted: FittedSite) -> Iterator[tuple[str, str, float, int, Predictor]]:
    """Yields method, name and value of its parameter, global tokens, and predictor, windows left out."""
    for tokens in dict.fromkeys(grid.global_tokens):
        for method, parameter, value, predictor in _content_predictors(grid, fitted):
            wider = predictor | pattern_predictor(Global(tokens)) if tokens else predictor
            yield method, parameter, value, tokens, wider
    for count in dict.fromkeys(grid.groups):
        first, drawn = pattern_predictor(Global(count)), predictors.random_predictor(count, fitted.seed)
        yield "longformer", "global_tokens", count, count, first
        yield "random", "keys", count, 0, drawn
        yield "bigbird", "keys", count, count, first | drawn
    if grid.block_size is not None:
        yield from _block_predictors(grid, grid.block_size, fitted)
    yield "window", "window", np.nan, 0, predictors.empty_predictor()


def _block_predictors(
    grid: ParameterGrid, size: int, fitted: FittedSite
) -> Iterator[tuple[str, str, float, int, Predictor]]:
    """Yields the same of graphs of blocks of so many tokens; global tokens are made up to whole blocks."""
    firsts = {-(-count // size): of_blocks(pattern_predictor(Global(-(-count // size))), size) for count in grid.groups}
    for blocks, first in firsts.items():
        yield "block_longformer", "global_blocks", blocks, blocks * size, first
    for count in dict.fromkeys(grid.groups):
        for version in get_args(Version):
            clusters = BlockClusters(fitted.projections, fitted.blocks[count], size, None, version, -1)
            yield f"{BLOCK}v{version}", "clusters", count, 0, clusters.predictor
        blocks, drawn = -(-count // size), of_blocks(predictors.random_predictor(count, fitted.seed), size)
        yield "block_bigbird", "random_blocks", count, blocks * size, firsts[blocks] | drawn


def _content_predictors(grid: ParameterGrid, fitted: FittedSite) -> Iterator[tuple[str, str, float, Predictor]]:
    """Yields the predictors that look at queries and keys."""
    near = fitted.projections
    for threshold in dict.fromkeys(grid.thresholds):
        yield "distance", "threshold", threshold, predictors.distance_predictor(near, threshold)
    for count in dict.fromkeys(grid.groups):
        centroids, routing = fitted.centroids[count], fitted.routing[count]
        yield "bucket", "buckets", count, predictors.bucket_predictor(near, count)
        yield "cluster", "clusters", count, predictors.cluster_predictor(centroids, near, grid.top)
        yield "routing", "clusters", count, predictors.cluster_predictor(routing, None, grid.top)
        yield "lsh", "hashes", count, predictors.hash_predictor(count, grid.rounds, fitted.seed)


def windows_of(method: str, grid: ParameterGrid) -> dict[int, int]:
    """The windows of a method: how far they reach on each side, -1 for none, by the keys that they have.

    Those of methods of blocks are made up to whole blocks, and reach so many of these; each is there once.
    """
    size = block_of(method, grid)
    reaches = [-(-((window - 1) // 2) // size) if window else -1 for window in grid.windows]
    return {max(0, (2 * reach + 1) * size): reach for reach in reaches}


def block_of(method: str, grid: ParameterGrid) -> int:
    """Tokens of the blocks that the graphs of a method are made of; 1 for those of tokens."""
    return grid.block_size or 1 if method.startswith(BLOCK) else 1


def key_of(point: Mapping[Any, Any]) -> tuple[str, Any, int, int]:
    """Identifies a point among those of a stack: method, value of its parameter, window, global tokens."""
    value = point["value_of_parameter"]
    known = None if pd.isna(value) else float(value)
    return str(point["method"]), known, int(point["window"]), int(point["global_tokens"])


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
            if not window:
                return predictor
            near, size = pattern_predictor(Window(windows_of(method, grid)[window])), block_of(method, grid)
            return predictor | (near if size == 1 else of_blocks(near, size))
    raise KeyError(f"the grid has no {method} of {value:g}")


class SitePoints(NamedTuple):
    """Recall and sparsity of every method with every parameter and window, at a site.

    Args:
        table: columns `PARETO_COLUMNS`, a row for each head; first of all those of `GOLD`, which finds everything.
        samples: recall and sparsity of every point over all heads in bootstrap samples of the sentences, float32,
            `(replicates, points, 2)`; points are in the order of the table.
        times: columns `TIMES_COLUMNS`, a row for each method and parameter: the time that all cores worked on
            predicting its graphs of all sentences and heads, windows left out, and on nothing else.
    """

    table: pd.DataFrame
    samples: npt.NDArray[np.float32]
    times: pd.DataFrame


def joined_sites(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Returns the tables of all sites, such as `encoder.0`, below each other, with columns stack and layer in front."""
    frames = []
    for site, table in tables.items():
        stack, _, layer = site.partition(".")
        frames.append(table.assign(stack=stack, layer=int(layer))[["stack", "layer", *table.columns]])
    return pd.concat(frames, ignore_index=True)


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
        gold.add([graph_counts(batch.weights, batch.gold, batch.allowed)])
    sentences = len(gold.examples)
    draws = Draws.of(list(map(str, range(sentences))), replicates if sentences >= FEWEST else 0, fitted.seed)
    rows = _rows((GOLD, "none", np.nan, 0, 0), gold.heads[0])
    samples = [_sampled(gold.examples, draws)]
    times = []
    for method, parameter, value, tokens, predictor in grid_predictors(grid, fitted):
        means, windows, seconds = GraphMeans(), windows_of(method, grid), 0.0
        for batch in batches():
            begun = time.process_time()
            graph = predictor.graph(batch)
            seconds += time.process_time() - begun
            graph = graph.expand_as(batch.weights)
            means.add(
                counts_by_window(batch.weights, graph, batch.allowed, list(windows.values()), block_of(method, grid))
            )
        samples.append(_sampled(means.examples, draws))
        times.append((method, parameter, value, tokens, seconds))
        for window, shares in zip(windows, means.heads, strict=True):
            rows += _rows((method, parameter, window if method == "window" else value, window, tokens), shares)
    tables = pd.DataFrame(rows, columns=PARETO_COLUMNS), pd.DataFrame(times, columns=TIMES_COLUMNS)
    return SitePoints(tables[0], np.concatenate(samples, axis=1), tables[1])


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


class SparsitySweepResult(NamedTuple):
    """Points and learned projections of every method at every site.

    Args:
        heads: columns stack, layer and `PARETO_COLUMNS`, a row for each head and point.
        fitted: what was learned, by site.
        samples: recall and sparsity of every point in bootstrap samples of the sentences, the mean over heads, by stack
            as of `of_stacks`: `(replicates, points, 2)`.
        times: columns stack, layer and `TIMES_COLUMNS`.
    """

    heads: pd.DataFrame
    fitted: dict[str, FittedSite]
    samples: dict[str, npt.NDArray[np.float64]]
    times: pd.DataFrame


@dataclass(frozen=True)
class SparsitySweep:
    """Learns and measures every method over the grid, for every site of a model.

    Args:
        train: what projections and clusters are learned from.
        held_out: what recall and sparsity are measured on.
        folder: where sites that are done stay, for a run that goes on after an interruption.
        grid: the parameters.
        fit: how projections are learned.
    """

    train: QueryKeyStore
    held_out: QueryKeyStore
    folder: Path
    grid: ParameterGrid = field(default_factory=ParameterGrid)
    fit: FitOptions = field(default_factory=FitOptions)

    def run(self, advance: Callable[[int], None] = lambda _: None) -> SparsitySweepResult:
        """Learns and measures all sites, one after the other.

        Args:
            advance: called with 1 after each site.

        Raises:
            OptionError: if there are too few sentences.
            OutputError: if the results of a site cannot be written.
        """
        tables, times = dict[str, pd.DataFrame](), dict[str, pd.DataFrame]()
        fitted: dict[str, FittedSite] = {}
        sums: defaultdict[str, npt.NDArray[np.float64]] = defaultdict(lambda: np.zeros(1))
        heads: Counter[str] = Counter()
        for site in self.train.sites():
            fitted[site], points = self._site(site)
            tables[site], times[site] = points.table, points.times
            count = points.table["head"].nunique()
            for level in (site.partition(".")[0], ALL):
                heads[level] += count
                sums[level] = sums[level] + points.samples * count
            advance(1)
        return SparsitySweepResult(
            joined_sites(tables),
            fitted,
            {level: total / heads[level] for level, total in sums.items()},
            joined_sites(times),
        )

    def _site(self, site: str) -> tuple[FittedSite, SitePoints]:
        ends = (".csv", ".safetensors", ".samples.npy", ".times.csv")
        table, projections, samples, times = (self.folder / f"{site}{end}" for end in ends)
        if not table.is_file():  # written last
            fitted = fit_site(lambda: self.train.batches(site), self.grid, self.fit)
            self.folder.mkdir(parents=True, exist_ok=True)
            save_fitted(projections, {site: fitted})
            points = pareto(lambda: self.held_out.batches(site), self.grid, fitted, REPLICATES)
            with output_errors(samples), atomic_path(samples) as temporary, temporary.open("wb") as file:
                np.save(file, points.samples)
            write_csv(points.times, times)
            write_csv(points.table, table)
        # Read also where it was just measured, so that a run that goes on has the same numbers.
        with read_errors(self.folder / site, "cannot be resumed from", "Start again with --overwrite.", ResumeError):
            rows, seconds = (
                read_csv(path, words=("method", "parameter"))[columns]
                for path, columns in ((table, PARETO_COLUMNS), (times, TIMES_COLUMNS))
            )
            return load_fitted(projections)[site], SitePoints(rows, np.load(samples), seconds)
