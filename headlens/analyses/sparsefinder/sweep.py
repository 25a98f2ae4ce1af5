"""Sparsefinder for all sites of a model: learned, measured and remembered site by site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.sparsefinder.options import FitOptions, ParameterGrid
from headlens.analyses.sparsefinder.pareto_curves import EVERY
from headlens.analyses.sparsefinder.pareto_points import PARETO_COLUMNS, FittedSite, fit_site, pareto
from headlens.analyses.sparsefinder.projection_files import load_fitted, save_fitted
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore
from headlens.files import atomic_path, output_errors, read_csv, write_csv

SITE_COLUMNS = ["stack", "layer"]
REPLICATES = 1000  # bootstrap samples
Advance = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class SparsitySweepResult:
    """Every method at every site.

    Args:
        heads: columns stack, layer and `PARETO_COLUMNS`, a row for each head and point.
        fitted: what was learned, by site.
        samples: recall and sparsity of every point in bootstrap samples of the sentences, the mean over heads, by stack
            as of `of_stacks`: (replicates, points, 2).
    """

    heads: pd.DataFrame
    fitted: dict[str, FittedSite]
    samples: dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class SparsitySweep:
    """Every method over the grid, for every site of a model.

    Args:
        train: what projections and clusters are learned from.
        held: what recall and sparsity are measured on.
        kept: a folder where sites that are done stay, for a run that goes on after an interruption.
        grid: the parameters.
        fit: how projections are learned.
    """

    train: QueryKeyStore
    held: QueryKeyStore
    kept: Path
    grid: ParameterGrid = field(default_factory=ParameterGrid)
    fit: FitOptions = field(default_factory=FitOptions)

    def run(self, advance: Advance = lambda _: None) -> SparsitySweepResult:
        """All sites, one after the other.

        Args:
            advance: called with 1 after each.

        Raises:
            OptionError: if there are too few sentences.
            OutputError: if what is kept cannot be written.
        """
        tables, fitted = [], {}
        sums: dict[str, np.ndarray[Any, Any]] = {}
        heads: dict[str, int] = {}
        for site in self.train.sites():
            table, fitted[site], samples = self._site(site)
            stack, _, layer = site.partition(".")
            count = table["head"].nunique()
            for level in (stack, EVERY):
                sums[level] = sums.get(level, np.zeros(1)) + samples * count
                heads[level] = heads.get(level, 0) + count
            table.insert(0, "stack", stack)
            table.insert(1, "layer", int(layer))
            tables.append(table)
            advance(1)
        means = {level: own / heads[level] for level, own in sums.items()}
        return SparsitySweepResult(pd.concat(tables, ignore_index=True), fitted, means)

    def _site(self, site: str) -> tuple[pd.DataFrame, FittedSite, np.ndarray[Any, Any]]:
        table, learned, drawn = (self.kept / f"{site}{end}" for end in (".csv", ".safetensors", ".samples.npy"))
        if not table.is_file():  # written last
            found = fit_site(lambda: self.train.batches(site), self.grid, self.fit)
            self.kept.mkdir(parents=True, exist_ok=True)
            save_fitted(learned, {site: found})
            swept = pareto(lambda: self.held.batches(site), self.grid, found, REPLICATES)
            with output_errors(drawn), atomic_path(drawn) as temporary, temporary.open("wb") as file:
                np.save(file, swept.samples)
            write_csv(swept.table, table)
        # Read also where it was just made, so that a run that goes on has the same numbers.
        rows = read_csv(table, words=("method", "parameter"))[PARETO_COLUMNS]
        return rows, load_fitted(learned)[site], np.load(drawn)
