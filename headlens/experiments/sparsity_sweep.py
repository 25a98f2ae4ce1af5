"""Sparsefinder for all sites of a model: learned, measured and remembered site by site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from headlens.report.files import read_csv, write_csv
from headlens.sparsefinder.files import load_fitted, save_fitted
from headlens.sparsefinder.fitting import FitOptions
from headlens.sparsefinder.pareto import PARETO_COLUMNS, Fitted, Grid, fit_site, pareto
from headlens.sparsefinder.store import Store

SITE_COLUMNS = ["stack", "layer"]
Advance = Callable[[int], None]


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

    train: Store
    held: Store
    kept: Path
    grid: Grid = field(default_factory=Grid)
    fit: FitOptions = field(default_factory=FitOptions)

    def run(self, advance: Advance = lambda _: None) -> tuple[pd.DataFrame, dict[str, Fitted]]:
        """All sites, one after the other.

        Args:
            advance: called with 1 after each.

        Returns:
            Columns stack, layer and `PARETO_COLUMNS`, a row for each head and point; what was learned, by site.

        Raises:
            OptionError: if there are too few sentences.
            OutputError: if what is kept cannot be written.
        """
        tables, fitted = [], {}
        for site in self.train.sites():
            table, fitted[site] = self._site(site)
            stack, _, layer = site.partition(".")
            table.insert(0, "stack", stack)
            table.insert(1, "layer", int(layer))
            tables.append(table)
            advance(1)
        return pd.concat(tables, ignore_index=True), fitted

    def _site(self, site: str) -> tuple[pd.DataFrame, Fitted]:
        table, learned = self.kept / f"{site}.csv", self.kept / f"{site}.safetensors"
        if not table.is_file():  # written last
            found = fit_site(lambda: self.train.batches(site), self.grid, self.fit)
            self.kept.mkdir(parents=True, exist_ok=True)
            save_fitted(learned, {site: found})
            write_csv(pareto(lambda: self.held.batches(site), self.grid, found), table)
        # Read also where it was just made, so that a run that goes on has the same numbers.
        return read_csv(table, words=("method", "parameter"))[PARETO_COLUMNS], load_fitted(learned)[site]
