"""The probes of `headlens classify --probes`: measured model by model, and written beside the other tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from headlens.corpora.sentence import Corpus
from headlens.findings.result_notes import notes_of_models
from headlens.models.loading import LoadedModel
from headlens.options import CIRCUITS_PROBE
from headlens.roles.role_probes import check_probes, held_heads, measure_probes
from headlens.roles.weight_circuits import check_circuits, measure_circuits
from headlens.runs.run import Run
from headlens.tables.circuit_tables import CIRCUITS
from headlens.tables.classify_tables import PROBES

FILE = "probes.json"  # beside the table: the heads that hold each role


@dataclass
class ProbedModels:
    """What probes give of the models of a run, one after the other.

    Args:
        run: under way.
        probes: names of the probes; none for nothing at all.
        seed: of the prompts.
        corpus: the texts of the run, of which probes of weights count the tokens.
    """

    run: Run
    probes: Sequence[str]
    seed: int
    corpus: Corpus
    _notes: dict[str, list[str]] = field(default_factory=dict)
    _by_model: dict[str, pd.DataFrame] = field(default_factory=dict)
    _circuits: list[dict[str, pd.DataFrame]] = field(default_factory=list)

    @property
    def _on_prompts(self) -> list[str]:
        return [name for name in self.probes if name != CIRCUITS_PROBE]

    def check(self, loaded: LoadedModel) -> None:
        """Refuses a model that cannot be asked, before anything is measured.

        Errors are those of `check_probes` and `check_circuits`.
        """
        if self._on_prompts:
            check_probes(loaded, self._on_prompts)
        if CIRCUITS_PROBE in self.probes:
            check_circuits(loaded)

    def measure(self, loaded: LoadedModel, label: str) -> None:
        """Measures the heads of a model on prompts; the tables call it by this label. Errors as in `measure_probes`."""
        if self._on_prompts:
            with self.run.reporter.status(f"probing the heads of {loaded.short_name}"):
                rows, notes = measure_probes(loaded, self._on_prompts, seed=self.seed)
            self._by_model[label] = rows.assign(model=label)[list(PROBES.names)]
            self._notes.setdefault(label, []).extend(notes)

    def measure_weights(self, loaded: LoadedModel, label: str) -> None:
        """Measures the weights of a model, whatever mask it reads under; label and errors as in `measure`."""
        if CIRCUITS_PROBE in self.probes:
            with self.run.reporter.status(f"multiplying the weights of the heads of {loaded.short_name}"):
                frames, notes = measure_circuits(loaded, self.corpus, seed=self.seed)
            self._circuits.append({s.name: frames[s.name].assign(model=label)[list(s.names)] for s in CIRCUITS})
            self._notes.setdefault(label, []).extend(notes)

    @property
    def notes(self) -> list[str]:
        """What to know about the numbers; of several models with their names, where it is not known of all."""
        return notes_of_models(self._notes, once=True)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of all models under each other; nothing of what was not asked for."""
        tables = {"probes": pd.concat(self._by_model.values(), ignore_index=True)} if self._by_model else {}
        for schema in CIRCUITS if self._circuits else ():
            tables[schema.name] = pd.concat([frames[schema.name] for frames in self._circuits], ignore_index=True)
        return tables

    def write(self) -> None:
        """Writes the heads that hold each role, by model and probe, as JSON."""
        if self._by_model:
            held = {label: held_heads(rows) for label, rows in self._by_model.items()}
            with self.run.file(FILE) as path:
                path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
