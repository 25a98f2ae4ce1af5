"""Sparsefinder for all sites of a model: learned, measured and remembered site by site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.analyses.sparsefinder.fitting import FittedSite, fit_site, load_fitted, save_fitted
from headlens.analyses.sparsefinder.options import FitOptions, ParameterGrid
from headlens.analyses.sparsefinder.pareto_curves import EVERY
from headlens.analyses.sparsefinder.pareto_points import PARETO_COLUMNS, SitePoints, pareto
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore
from headlens.files import atomic_path, output_errors, read_csv, write_csv

REPLICATES = 1000  # bootstrap samples


@dataclass(frozen=True, eq=False)
class SparsitySweepResult:
    """Points and learned projections of every method at every site.

    Args:
        heads: columns stack, layer and `PARETO_COLUMNS`, a row for each head and point.
        fitted: what was learned, by site.
        samples: recall and sparsity of every point in bootstrap samples of the sentences, the mean over heads, by stack
            as of `of_stacks`: `(replicates, points, 2)`.
    """

    heads: pd.DataFrame
    fitted: dict[str, FittedSite]
    samples: dict[str, npt.NDArray[np.float64]]


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
        tables, fitted = [], {}
        sums: dict[str, npt.NDArray[np.float64]] = {}
        heads: dict[str, int] = {}
        for site in self.train.sites():
            fitted[site], points = self._site(site)
            stack, _, layer = site.partition(".")
            count = points.table["head"].nunique()
            for level in (stack, EVERY):
                sums[level] = sums.get(level, np.zeros(1)) + points.samples * count
                heads[level] = heads.get(level, 0) + count
            points.table.insert(0, "stack", stack)
            points.table.insert(1, "layer", int(layer))
            tables.append(points.table)
            advance(1)
        means = {level: total / heads[level] for level, total in sums.items()}
        return SparsitySweepResult(pd.concat(tables, ignore_index=True), fitted, means)

    def _site(self, site: str) -> tuple[FittedSite, SitePoints]:
        table, projections, samples = (self.folder / f"{site}{end}" for end in (".csv", ".safetensors", ".samples.npy"))
        if not table.is_file():  # written last
            fitted = fit_site(lambda: self.train.batches(site), self.grid, self.fit)
            self.folder.mkdir(parents=True, exist_ok=True)
            save_fitted(projections, {site: fitted})
            points = pareto(lambda: self.held_out.batches(site), self.grid, fitted, REPLICATES)
            with output_errors(samples), atomic_path(samples) as temporary, temporary.open("wb") as file:
                np.save(file, points.samples)
            write_csv(points.table, table)
        # Read also where it was just measured, so that a run that goes on has the same numbers.
        rows = read_csv(table, words=("method", "parameter"))[PARETO_COLUMNS]
        return load_fitted(projections)[site], SitePoints(rows, np.load(samples))
