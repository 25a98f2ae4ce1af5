"""The probes of `headlens classify --probes`: measured model by model, and written beside the other tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from headlens.models.loading import LoadedModel
from headlens.roles.role_probes import check_probes, held_heads, measure_probes
from headlens.runs.run import Run
from headlens.tables.classify_tables import PROBES

FILE = "probes.json"  # beside the table: the heads that hold each role


@dataclass
class ProbedModels:
    """What probes give of the models of a run, one after the other.

    Args:
        run: under way.
        probes: names of the probes; none for nothing at all.
        seed: of the prompts.
        notes: what to know about the numbers.
    """

    run: Run
    probes: Sequence[str]
    seed: int
    notes: list[str] = field(default_factory=list)
    _by_model: dict[str, pd.DataFrame] = field(default_factory=dict)

    def check(self, loaded: LoadedModel) -> None:
        """Refuses a model that cannot be asked, before anything is measured; errors as in `check_probes`."""
        if self.probes:
            check_probes(loaded, self.probes)

    def measure(self, loaded: LoadedModel, label: str) -> None:
        """Measures the heads of a model, which the tables call by this label; errors as in `measure_probes`."""
        if self.probes:
            with self.run.reporter.status(f"probing the heads of {loaded.short_name}"):
                rows, notes = measure_probes(loaded, self.probes, seed=self.seed)
            self._by_model[label] = rows.assign(model=label)[list(PROBES.names)]
            self.notes = list(dict.fromkeys([*self.notes, *notes]))

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The table `probes` of all models under each other; nothing without any."""
        return {"probes": pd.concat(self._by_model.values(), ignore_index=True)} if self._by_model else {}

    def write(self) -> None:
        """Writes the heads that hold each role, by model and probe, as JSON."""
        if self._by_model:
            held = {label: held_heads(rows) for label, rows in self._by_model.items()}
            with self.run.file(FILE) as path:
                path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
