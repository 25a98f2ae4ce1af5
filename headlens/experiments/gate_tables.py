"""The tables of a sweep of gates, from the outcomes of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from headlens.attention.sites import Site
from headlens.experiments.gate_outcome import UNPRUNED, Outcome, Record
from headlens.heads import KEY_COLUMNS, STACKS, Head, Stack

GATE_COLUMNS = ["run", "penalty", "step", *KEY_COLUMNS, "log_alpha", "p_open", "gate", "model"]
SWEEP_COLUMNS = [
    *("run", "penalty", "init", "heads_encoder", "heads_decoder", "heads_cross", "metric", "value", "ci_low", "ci_high"),
    *("model", "task", "n", "n_heads", "total_encoder", "total_decoder", "total_cross", "gated", "between", "removed"),
    *("kind", "checkpoint"),
]
ROLE_COLUMNS = ["run", "penalty", "model", *KEY_COLUMNS, "role", "roles", "kept", "role_pruned"]
RESULT_COLUMNS = [
    *("run", "penalty", "heads", "metric", "trained", "trained_low", "trained_high"),
    *("scratch", "scratch_low", "scratch_high", "model", "task", "n"),
]


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
    outcomes: Sequence[Outcome]

    def frames(self) -> dict[str, pd.DataFrame]:
        """`gates`, `sweep`, `results`, and `roles` where they were asked for."""
        found = {"gates": self.gates(), "sweep": self.sweep(), "results": self.results()}
        return found | ({"roles": self.roles()} if any(o.roles for o in self.outcomes) else {})

    def gates(self) -> pd.DataFrame:
        """A row per run, logged update and gated head, update 0 being before training."""
        rows = [{"run": o.run, "penalty": o.penalty, **row, "model": self.model} for o in self.outcomes for row in o.gates]
        return pd.DataFrame(rows, columns=GATE_COLUMNS)

    def log(self) -> pd.DataFrame:
        """The log of every training; `loss` has the penalty in it."""
        return pd.DataFrame([{"run": o.run, "penalty": o.penalty, **row} for o in self.outcomes for row in o.log])

    def sweep(self) -> pd.DataFrame:
        """A row per run, start and metric."""
        rows = [row for o in self.outcomes for row in self._measured(o)]
        return _whole(pd.DataFrame(rows, columns=SWEEP_COLUMNS), [c for c in SWEEP_COLUMNS if c.startswith("heads_")])

    def _measured(self, outcome: Outcome) -> Iterator[Record]:
        left, total = self._left(outcome), Counter(h.stack for h in self._heads())
        common: Record = {
            "run": outcome.run,
            "penalty": outcome.penalty,
            **{f"heads_{s}": left[s] if total[s] else None for s in STACKS},
            "n_heads": sum(left.values()),
            **{f"total_{s}": total[s] for s in STACKS},
            "gated": sum(n for s, n in total.items() if s in self.gated),
            "between": outcome.between,
            "removed": " ".join(outcome.removed),
            "kind": self.kind,
            "model": self.model,
            "task": self.task,
        }
        starts = (("trained", outcome.metrics, outcome.checkpoint), ("scratch", outcome.scratch, outcome.scratch_checkpoint))
        for init, metrics, checkpoint in starts:
            for row in metrics:
                found = {k: row[k] for k in ("metric", "value", "ci_low", "ci_high", "n")}
                yield common | found | {"init": init, "checkpoint": checkpoint}

    def results(self) -> pd.DataFrame:
        """A row per run and metric: heads that are left, the metric from trained, and from random weights."""
        rows = []
        for outcome in self.outcomes:
            scratch = {row["metric"]: row for row in outcome.scratch}
            for row in outcome.metrics:
                name = row["metric"]
                common = {"run": outcome.run, "penalty": outcome.penalty, "heads": self._counts(outcome), "metric": name}
                common |= {"model": self.model, "task": self.task, "n": row["n"]}
                rows.append(common | _interval("trained", row) | _interval("scratch", scratch.get(name, {})))
        return pd.DataFrame(rows, columns=RESULT_COLUMNS)

    def roles(self) -> pd.DataFrame:
        """A row per run and head of the model as it was, with its role there and what it is where others are gone."""
        whole = next(o for o in self.outcomes if o.run == UNPRUNED).roles
        rows = []
        for outcome in self.outcomes:
            for head in self._heads():
                if (before := whole.get(str(head))) is not None and outcome.run != UNPRUNED:
                    rows.append(self._role(outcome, head, before))
        return pd.DataFrame(rows, columns=ROLE_COLUMNS)

    def _role(self, outcome: Outcome, head: Head, before: list[str]) -> Record:
        kept = str(head) not in outcome.removed
        after = outcome.roles.get(str(head))
        return {
            **{"run": outcome.run, "penalty": outcome.penalty, "model": self.model},
            **dict(zip(KEY_COLUMNS, head, strict=True)),
            **{"role": before[0], "roles": before[1], "kept": kept},
            "role_pruned": after[0] if kept and after is not None else None,
        }

    def markdown(self) -> str:
        """The results as a table for people."""
        of = {"encoder": "e", "decoder": "d", "cross": "d-e"}
        heads = "/".join(of[s] for s in STACKS if any(x.stack == s for x in self.sites))
        title = f"# {self.model} pruned by gates\n\nTask {self.task}. λ multiplies the {self.kind} "
        title += "over layers of the expected number of open gates" if self.kind == "mean" else "over all layers of it"
        lines = [
            f"{title}; brackets hold 95 % bootstrap intervals.\n",
            f"| heads ({heads}) | λ | metric | from trained | from scratch |",
            "|---|---:|---|---|---|",
        ]
        for row in self.results().to_dict("records"):
            strength = "unpruned" if pd.isna(row["penalty"]) else f"{row['penalty']:g}"
            cells = [row["heads"], strength, row["metric"], shown(row, "trained"), shown(row, "scratch")]
            lines.append(f"| {' | '.join(map(str, cells))} |")
        return "\n".join(lines) + "\n"

    def _heads(self) -> list[Head]:
        return [h for s in self.sites for h in s.heads]

    def _left(self, outcome: Outcome) -> Counter[Stack]:
        return Counter(h.stack for h in self._heads() if str(h) not in outcome.removed)

    def _counts(self, outcome: Outcome) -> str:
        left = self._left(outcome)
        return "/".join(str(left[s]) for s in STACKS if any(x.stack == s for x in self.sites))


def shown(row: Any, name: str) -> str:
    """A value with its interval, as text; empty where there is none."""
    value, low, high = (row[c] for c in (name, f"{name}_low", f"{name}_high"))
    if value is None or pd.isna(value):
        return ""
    return f"{value:.4g}" if pd.isna(low) else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def _interval(name: str, row: Record) -> Record:
    return {name: row.get("value"), f"{name}_low": row.get("ci_low"), f"{name}_high": row.get("ci_high")}


def _whole(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Whole numbers, of which some may be missing."""
    return frame.astype({column: "Int64" for column in columns})
