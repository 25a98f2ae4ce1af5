"""What is remembered of the runs of a sweep over gates, and the tables that are made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pandas as pd

from headlens.analyses.prune.sweep_runs import UNPRUNED
from headlens.analyses.training.sweep import Record
from headlens.attention.sites import Site
from headlens.heads import KEY_COLUMNS, STACKS, Head, Stack
from headlens.pages.formatting import DIFFERENCE


@dataclass(frozen=True)
class PenaltyOutcome:
    """What one run of a sweep gave; everything in it can be written as JSON.

    Args:
        run: its name, such as `penalty-0.1`; `unpruned` for the model as it was.
        penalty: λ; None for the model as it was.
        removed: heads whose gates are closed.
        values: the gate of every gated head, by its name.
        gates: rows of `gates.csv` without run and penalty.
        log: rows of the training's log.
        metrics: of the model on what was held out, a row each.
        checkpoint: its folder, below that of the run; None for the model as it was.
        roles: role and roles of every head, by its name; empty where roles were not asked for.
        scratch: metrics of a model of the same shape that was trained from random weights; empty where there is none.
        scratch_checkpoint: its folder.
        notes, scratch_notes: what to know about the metrics of either.
        records, keys: of the model as it was, which others are compared with, see `Baseline`; empty for others.
    """

    run: str
    penalty: float | None = None
    removed: list[str] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    gates: list[Record] = field(default_factory=list)
    log: list[Record] = field(default_factory=list)
    metrics: list[Record] = field(default_factory=list)
    checkpoint: str | None = None
    roles: dict[str, list[str]] = field(default_factory=dict)
    scratch: list[Record] = field(default_factory=list)
    scratch_checkpoint: str | None = None
    notes: list[str] = field(default_factory=list)
    scratch_notes: list[str] = field(default_factory=list)
    records: list[list[float]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    @property
    def heads(self) -> list[Head]:
        """Heads whose gates closed and that the pruned model does not have."""
        return [Head.parse(name) for name in self.removed]

    @property
    def between(self) -> int:
        """Gates that are neither closed nor 1."""
        return sum(0.0 < value < 1.0 for value in self.values.values())


# What an outcome has of the model from random weights, which runs with the same heads share.
OF_SCRATCH = ("scratch", "scratch_checkpoint", "scratch_notes")
GATE_COLUMNS = ["run", "penalty", "step", *KEY_COLUMNS, "log_alpha", "p_open", "gate", "model"]
SWEEP_COLUMNS = [
    *("run", "penalty", "init", "heads_encoder", "heads_decoder", "heads_cross"),
    *("metric", "value", "ci_low", "ci_high", "model", "task", "n", "n_heads"),
    *("total_encoder", "total_decoder", "total_cross", "between", "removed", "penalty_kind", "checkpoint"),
    *DIFFERENCE,
]
ROLE_COLUMNS = ["run", "penalty", "model", *KEY_COLUMNS, "role", "roles", "kept", "role_pruned"]


@dataclass(frozen=True)
class GateTables:
    """Makes the tables.

    Args:
        model: what tables call it.
        task: its name.
        kind: "mean" or "sum", what λ multiplies.
        sites: all layers of the model as it was.
        gated: the stacks that have gates.
        outcomes: of all runs, the model as it was first.
    """

    model: str
    task: str
    kind: str
    sites: Sequence[Site]
    gated: Sequence[Stack]
    outcomes: Sequence[PenaltyOutcome]

    def frames(self) -> dict[str, pd.DataFrame]:
        """`gates`, `sweep`, `log`, and `roles` where they were asked for."""
        tables = {"gates": self.gates(), "sweep": self.sweep(), "log": self.log()}
        return tables | ({"roles": self.roles()} if any(o.roles for o in self.outcomes) else {})

    def gates(self) -> pd.DataFrame:
        """A row per run, logged update and gated head, update 0 being before training."""
        rows = [
            {"run": o.run, "penalty": o.penalty, **row, "model": self.model} for o in self.outcomes for row in o.gates
        ]
        return pd.DataFrame(rows, columns=GATE_COLUMNS)

    def log(self) -> pd.DataFrame:
        """The log of every training; `loss` has the penalty in it."""
        return pd.DataFrame([{"run": o.run, "penalty": o.penalty, **row} for o in self.outcomes for row in o.log])

    def sweep(self) -> pd.DataFrame:
        """Returns `sweep.csv`: a row for every run, kind of initial weights and metric."""
        rows = [row for o in self.outcomes for row in self._measured(o)]
        return pd.DataFrame(rows, columns=SWEEP_COLUMNS).astype({f"heads_{s}": "Int64" for s in STACKS})

    def roles(self) -> pd.DataFrame:
        """A row per run and head of the model as it was, with its role there and what it is where others are gone."""
        before = next(o for o in self.outcomes if o.run == UNPRUNED).roles
        rows: list[Record] = []
        for outcome in self.outcomes:
            for head in self._heads() if outcome.run != UNPRUNED else ():
                if (name := str(head)) not in before:
                    continue
                kept = name not in outcome.removed
                rows.append(
                    {
                        "run": outcome.run,
                        "penalty": outcome.penalty,
                        "model": self.model,
                        **head._asdict(),
                        "role": before[name][0],
                        "roles": before[name][1],
                        "kept": kept,
                        "role_pruned": outcome.roles[name][0] if kept and name in outcome.roles else None,
                    }
                )
        return pd.DataFrame(rows, columns=ROLE_COLUMNS)

    def _measured(self, outcome: PenaltyOutcome) -> Iterator[Record]:
        heads = self._heads()
        total = Counter(h.stack for h in heads)
        left = Counter(h.stack for h in heads if str(h) not in outcome.removed)
        common: Record = {
            "run": outcome.run,
            "penalty": outcome.penalty,
            **{f"heads_{s}": left[s] if total[s] else None for s in STACKS},
            "n_heads": sum(n for s, n in total.items() if s in self.gated),
            **{f"total_{s}": total[s] for s in STACKS},
            "between": outcome.between,
            "removed": " ".join(outcome.removed),
            "penalty_kind": self.kind,
            "model": self.model,
            "task": self.task,
        }
        trained = ("trained", outcome.metrics, outcome.checkpoint)
        scratch = ("scratch", outcome.scratch, outcome.scratch_checkpoint)
        for init, metrics, checkpoint in (trained, scratch):
            for row in metrics:
                record = {k: row[k] for k in ("metric", "value", "ci_low", "ci_high", "n")}
                record |= {k: row[k] for k in DIFFERENCE if k in row}
                yield common | record | {"init": init, "checkpoint": checkpoint}

    def _heads(self) -> list[Head]:
        return [h for s in self.sites for h in s.heads]
