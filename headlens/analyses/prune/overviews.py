"""What a reader of a sweep over λ looks for first: what it gave, which heads remained, which roles die last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headlens.analyses.prune.results_table import result_digits, results_table
from headlens.analyses.prune.roles_figure import Bar, RoleSet, role_sets
from headlens.analyses.prune.sweep_runs import GatedRun, gated_runs, open_heads, penalty_text
from headlens.analyses.prune.sweep_summary import SCRATCH, TRAINED, UNPRUNED
from headlens.pages.page_tables import Cell, PageTable, interval_cell, page_table
from headlens.plots.head_grid import float_column
from headlens.plots.role_colours import NONE
from headlens.runs.reading import RecordedRun, run_label, tables_of

_NAMED = 24  # heads of a stack; more are not listed
_WORDS = {TRAINED: "from trained", SCRATCH: "from scratch"}


def results_overview(runs: Sequence[RecordedRun]) -> PageTable:
    """Heads left and the task's metrics, from a trained model and from scratch."""
    records = [
        run_label(run, runs) | record
        for run, sweep in tables_of(runs, "sweep")
        for _, rows in results_table(sweep).groupby(["model", "task", "metric"], sort=False)
        for record in _results(rows)
    ]
    about = (
        "From most heads to fewest (encoder/decoder/cross): the task with a trained model whose heads were pruned, and "
        "with the same architecture trained from scratch, with 95 % intervals (dot, line; tick: the unpruned model)."
    )
    return page_table("Heads left and what they achieve", records, about)


def remaining_heads(runs: Sequence[RecordedRun]) -> PageTable:
    """How many heads each run left in which stack, and which where they are few."""
    records = [
        run_label(run, runs) | _remaining(run_rows, stack)
        for run, gates in tables_of(runs, "gates")
        for run_rows in gated_runs(gates)
        for stack in run_rows.stacks
    ]
    about = (
        "What is left at the last update, by the penalty λ: heads whose gate is not 0, named by layer and head where "
        f"they are at most {_NAMED}. A layer without heads passes on what it gets."
    )
    return page_table("What remained", records, about)


def lasting_roles(runs: Sequence[RecordedRun]) -> PageTable:
    """For every role of a stack with how few heads it still occurs, those that last longest first."""
    records = [
        run_label(run, runs) | record
        for run, roles in tables_of(runs, "roles")
        for roles_of_stack in role_sets(roles)
        for record in _lasting(roles_of_stack)
    ]
    about = (
        "Roles are those that heads had before any were removed. The fewer heads are left when a role still occurs, "
        "the later it dies; beside it the share of its heads that a run leaves on average, and the same of all heads."
    )
    return page_table("Which roles die last", records, about)


def _results(rows: pd.DataFrame) -> list[dict[str, Any]]:
    every = np.concatenate([float_column(rows, f"{init}{end}") for init in _WORDS for end in ("", "_low", "_high")])
    known = every[np.isfinite(every)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    ends = low, high if high > low else low + 1.0
    unpruned = float_column(rows[rows["run"] == UNPRUNED], TRAINED)
    level = float(unpruned[0]) if unpruned.size else float("nan")
    return [_result(row, level, ends, result_digits(rows)) for row in rows.to_dict("records")]


def _result(row: Mapping[Any, Any], level: float, ends: tuple[float, float], digits: int) -> dict[str, Any]:
    record = {name: row[name] for name in ("model", "task", "metric")}
    record |= {"λ": _cell(float(row["penalty"]), "g") if row["run"] != UNPRUNED else Cell(UNPRUNED, "-1")}
    record |= {"heads": row["heads"]}
    for init, words in _WORDS.items():
        value, low, high = (float(row[init + end]) for end in ("", "_low", "_high"))
        record |= {
            words: _cell(value, f".{digits}f"),
            f"95 % CI {words}": interval_cell((low, value, high, level), ends),
        }
    return record | {"n": row["n"]}


def _remaining(run: GatedRun, stack: str) -> dict[str, Any]:
    rows = run.last[run.last["stack"] == stack]
    left = rows[float_column(rows, "gate") > 0].sort_values(["layer", "head"])
    names = [f"{layer}.{head}" for layer, head in zip(left["layer"], left["head"], strict=True)]
    empty = sorted(set(rows["layer"]) - set(left["layer"]))
    return {
        "model": run.model,
        "λ": _penalty(run),
        "stack": stack,
        "left": open_heads(rows),
        "of": len(rows),
        "layers without heads": ", ".join(map(str, empty)),
        "heads left": ", ".join(names) if len(names) <= _NAMED else "",
    }


def _penalty(run: GatedRun) -> Cell:
    return Cell(penalty_text(run.run, run.penalty), repr(run.penalty) if np.isfinite(run.penalty) else "-1")


def _lasting(roles: RoleSet) -> list[dict[str, Any]]:
    unpruned, *bars = roles.bars
    if not bars:
        return []
    lasting = [_Lasting.of(name, unpruned, bars) for name in unpruned.counts]
    share = float(np.mean([bar.left / unpruned.left for bar in bars]))
    return [
        {
            "model": roles.model,
            "stack": roles.stack,
            "role": "no role" if role.name == NONE else role.name,
            "heads with it": unpruned.counts[role.name],
            "fewest heads left with it": Cell(str(role.left), str(role.left)) if role.run else Cell("never"),
            "λ then": role.run,
            "mean share left": role.share,
            "of all heads": share,
        }
        for role in sorted(lasting, key=lambda role: (role.left, -role.share))
    ]


class _Lasting(NamedTuple):
    """How long a role lasts: the fewest heads with which it is there, the run then, the mean share of its heads."""

    name: str
    left: float
    run: str
    share: float

    @classmethod
    def of(cls, name: str, unpruned: Bar, bars: Sequence[Bar]) -> _Lasting:
        """Returns how long a role lasts: the run with the fewest heads that still has it, and its mean share."""
        last = min((bar for bar in bars if bar.counts.get(name)), key=lambda bar: bar.left, default=None)
        share = float(np.mean([bar.counts.get(name, 0) / unpruned.counts[name] for bar in bars]))
        return cls(name, last.left if last else np.inf, last.name if last else "", share)


def _cell(value: float, form: str) -> Cell:
    return Cell(format(value, form), repr(value)) if np.isfinite(value) else Cell("")
