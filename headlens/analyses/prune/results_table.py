"""What a sweep gave, as the table of Voita et al. (2019): the task by heads left, from trained and from scratch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.prune.sweep_summary import (
    SCRATCH,
    TRAINED,
    architectures,
    count_heads_left,
    is_unpruned,
    sweep_stacks,
)
from headlens.pages.formatting import DIFFERENCE, NOTHING, difference_text, escaped, markdown_lines, value_text
from headlens.plots.head_grid import float_column

_BLOCK = ["model", "task", "metric"]
_SHORT = {"encoder": "e", "decoder": "d", "cross": "d-e"}
_COLUMNS = (TRAINED, f"{TRAINED}_low", f"{TRAINED}_high", SCRATCH, f"{SCRATCH}_low", f"{SCRATCH}_high")
_DIFFERENCES = tuple(f"{init}_{name}" for init in (TRAINED, SCRATCH) for name in DIFFERENCE)


def results_table(sweep: pd.DataFrame) -> pd.DataFrame:
    """One row per architecture and metric, from most heads to fewest: pruned from a trained model, and from scratch.

    After Voita et al. (2019), table 2.

    Args:
        sweep: rows of `sweep.csv`, of one model or several.

    Returns:
        Columns model, task, metric, run (the pruned one), penalty, heads (`encoder/decoder/cross`, of the stacks that
        the models have), `heads_*`, trained, trained_low, trained_high, scratch, scratch_low, scratch_high, n, and of
        either `_delta`, what it has more than the unpruned model, with the paired interval `_delta_low` and
        `_delta_high`, and `_p_value`; blocks of model, task and metric in order of appearance; empty cells where
        nothing was measured.
    """
    stacks = sweep_stacks(sweep)
    keys = pd.Series(architectures(sweep), index=sweep.index, dtype=object)
    table = sweep.assign(key=keys, order=~is_unpruned(sweep), left=count_heads_left(sweep))
    records = [
        {name: run_rows[name].iloc[0] for name in (*_BLOCK, "order", "left")} | _record(run_rows, stacks)
        for _, rows in table.groupby(_BLOCK, sort=False, dropna=False)
        for _, run_rows in rows.groupby("key", sort=False)
    ]
    names = [*_BLOCK, "run", "penalty", "heads", *(f"heads_{stack}" for stack in stacks), *_COLUMNS, "n", *_DIFFERENCES]
    if not records:
        return pd.DataFrame(columns=names)
    records_table = pd.DataFrame(records).assign(block=lambda t: t.groupby(_BLOCK, sort=False, dropna=False).ngroup())
    records_table = records_table.sort_values(
        ["block", "order", "left", "penalty"], ascending=[True, True, False, True], kind="stable"
    )
    counts = dict.fromkeys((f"heads_{stack}" for stack in stacks), "Int64")
    return records_table[names].astype(counts).reset_index(drop=True)


def _record(rows: pd.DataFrame, stacks: Sequence[str]) -> dict[str, Any]:
    """The rows of one architecture and metric: one from a trained model, one from scratch."""
    first = rows.sort_values("init", key=lambda init: init != TRAINED, kind="stable").iloc[0]
    record: dict[str, Any] = {"run": str(first["run"]), "penalty": _number(first.get("penalty"))}
    record |= {f"heads_{stack}": _number(first.get(f"heads_{stack}")) for stack in stacks}
    record["heads"] = "/".join(_count(record[f"heads_{stack}"]) for stack in stacks)
    for init in (TRAINED, SCRATCH):
        chosen = rows[rows["init"] == init]
        for name, column in ((init, "value"), (f"{init}_low", "ci_low"), (f"{init}_high", "ci_high")):
            record[name] = float(float_column(chosen, column)[0]) if len(chosen) else np.nan
        for column in DIFFERENCE:
            known = len(chosen) and column in chosen
            record[f"{init}_{column}"] = float(float_column(chosen, column)[0]) if known else np.nan
    return record | {"n": first.get("n", np.nan)}


def results_markdown(sweep: pd.DataFrame) -> str:
    """The same as Markdown, one table per model, task and metric: numbers with their 95 % intervals.

    Args:
        sweep: rows of `sweep.csv`, of one model or several.
    """
    table, stacks = results_table(sweep), sweep_stacks(sweep)
    blocks = [_block(rows, stacks) for _, rows in table.groupby(_BLOCK, sort=False, dropna=False)]
    return "\n".join(["# Heads left by pruning with gates", *blocks]) + "\n"


def _block(rows: pd.DataFrame, stacks: Sequence[str]) -> str:
    first = rows.iloc[0]
    metric, model, task = (escaped(str(first[name])) for name in ("metric", "model", "task"))
    heads = "/".join(_SHORT[stack] for stack in stacks) if len(stacks) > 1 else " ".join(stacks)
    digits, headings = result_digits(rows), [f"heads ({heads})", "λ"]
    compared = {init: bool(rows[f"{init}_delta"].notna().any()) for init in (TRAINED, SCRATCH)}
    for init in (TRAINED, SCRATCH):
        headings += [f"{metric} from {init} [95 % interval]", *["minus unpruned [paired]"] * compared[init]]
    lines = [_line(row, compared, digits) for row in rows.to_dict("records")]
    grid = "\n".join(markdown_lines([headings, ["---:"] * len(headings), *lines]))
    return f"\n## {metric} of {model} on {task}\n\n{grid}"


def _line(row: Mapping[Any, Any], compared: Mapping[str, bool], digits: int) -> tuple[str, ...]:
    cells = [row["heads"], _penalty(row)]
    for init in (TRAINED, SCRATCH):
        cells += [interval_text(row, init, digits), *[minus_unpruned(row, init, digits)] * compared[init]]
    return tuple(cells)


def result_digits(rows: pd.DataFrame) -> int:
    """Decimals of a metric: two for those that go to 100, three for those that go to 1."""
    largest = np.nanmax(np.abs(rows[list(_COLUMNS)].to_numpy(np.float64)), initial=0.0)
    return 2 if largest >= 10 else 3


def interval_text(row: Mapping[Any, Any], init: str, digits: int) -> str:
    """Formats a metric with its confidence interval, such as `29.61 [29.02, 30.20]`."""
    value, low, high = (float(row[name]) for name in (init, f"{init}_low", f"{init}_high"))
    return value_text(value, low, high, digits=digits)


def minus_unpruned(row: Mapping[Any, Any], init: str, digits: int) -> str:
    """What a model has more than the unpruned one."""
    value, low, high, p_value = (float(row[f"{init}_{name}"]) for name in DIFFERENCE)
    return difference_text(value, low, high, p_value, digits=digits)


def _penalty(row: Mapping[Any, Any]) -> str:
    return NOTHING if np.isnan(row["penalty"]) else f"{row['penalty']:g}"


def _count(number: float) -> str:
    return NOTHING if np.isnan(number) else f"{number:.0f}"


def _number(value: Any) -> float:
    return float("nan") if value is None or pd.isna(value) else float(value)
