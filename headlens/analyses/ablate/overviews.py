"""What a reader of ablations looks for first: the heads a task needs, those that suffice alone, what pruning leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.ablate.curve_figure import NONE
from headlens.analyses.ablate.map_figure import KEEP_ONLY, significant
from headlens.heads import Head
from headlens.pages.page_tables import Cell, PageTable, interval_cell, number_text, page_table
from headlens.plots.head_grid import float_column
from headlens.runs.reading import RecordedRun, run_label, tables_of
from headlens.tasks.task_options import LOWER_IS_BETTER

MOST = 10  # heads of a model
FEWEST = 30  # examples by which heads are ranked for a reader
Row = Mapping[Any, Any]
Ends = Mapping[str, tuple[float, float]]


def most_damage(rows: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """The heads without which a model is worst, of one model and mode, worst first; none below `FEWEST` examples."""
    rows = rows[rows["n"] >= FEWEST]
    order = _worse(rows).dropna().sort_values(ascending=False, kind="stable").index
    return rows.loc[order].head(most)


def best_alone(rows: pd.DataFrame) -> pd.DataFrame:
    """The head of every layer that does best alone, of one model (Michel et al. 2019, table 3)."""
    order = _worse(rows).dropna().sort_values(kind="stable").index
    return rows.loc[order].drop_duplicates(["stack", "layer"]).sort_index()


def _worse(rows: pd.DataFrame) -> pd.Series[float]:
    """By how much a model does worse."""
    return rows["delta"] if set(rows["metric"]) <= LOWER_IS_BETTER else -rows["delta"]


def needed_heads(runs: Sequence[RecordedRun]) -> PageTable:
    """The heads without which the task suffers most, of every model and mode."""
    groups = [
        (run, most_damage(group))
        for run, ablation in tables_of(runs, "ablation")
        for _, group in ablation[ablation["mode"] != KEEP_ONLY].groupby(["model", "mode"], sort=False)
    ]
    about = (
        f"The {MOST} heads of every model without which the task suffers most, from {FEWEST} examples on. Intervals "
        "of the change are paired (dot, line; tick: no change); p-values are corrected for the number of heads (Holm)."
    )
    return page_table("Heads that the task needs most", _changes(groups, runs), about)


def heads_alone(runs: Sequence[RecordedRun]) -> PageTable:
    """The head of every layer that does best when it is the only one there."""
    groups = [
        (run, best_alone(group))
        for run, ablation in tables_of(runs, "ablation")
        for _, group in ablation[ablation["mode"] == KEEP_ONLY].groupby("model", sort=False)
    ]
    about = (
        "Of every layer the head that does best when all others of the layer are taken out (Michel et al. 2019). It "
        "was picked on the examples it is scored on."
    )
    return page_table("Best head of each layer", _changes(groups, runs), about)


def pruned_models(runs: Sequence[RecordedRun]) -> PageTable:
    """What is left of the task when many heads are pruned."""
    groups = [
        (run, group) for run, pruning in tables_of(runs, "pruning") for _, group in pruning.groupby("model", sort=False)
    ]
    ends = _ends([group for _, group in groups], "value", "ci_low", "ci_high")
    records = [
        run_label(run, runs) | _pruned(row, unpruned, ends)
        for run, group in groups
        for unpruned in [_whole(group)]
        for row in group.to_dict("records")
    ]
    about = (
        "What is left of the task when many heads are pruned, on examples that no head was chosen on, with 95 % "
        "intervals (dot, line; tick: the whole model); beside it the value on the examples that they were chosen on. "
        "The speed-up counts the operations of a forward pass."
    )
    return page_table("Pruned models", records, about)


def _changes(groups: Sequence[tuple[RecordedRun, pd.DataFrame]], runs: Sequence[RecordedRun]) -> list[dict[str, Any]]:
    ends = _ends([rows for _, rows in groups], "delta", "ci_low", "ci_high", at_least=(0.0,))
    return [
        run_label(run, runs) | _change(row, ends, sure=bool(sure))
        for run, rows in groups
        for row, sure in zip(rows.to_dict("records"), significant(rows), strict=True)
    ]


def _change(row: Row, ends: Ends, *, sure: bool) -> dict[str, Any]:
    low, delta, high = (float(row[name]) for name in ("ci_low", "delta", "ci_high"))
    return {
        "model": row["model"],
        "task": row["task"],
        "metric": row["metric"],
        "mode": row["mode"],
        "head": str(Head(row["stack"], int(row["layer"]), int(row["head"]))),
        "all heads": _cell(row["baseline"]),
        "value": _cell(row["value"]),
        "change": _cell(delta),
        "95 % CI": interval_cell((low, delta, high, 0.0), ends[str(row["metric"])]),
        "p (Holm)": _cell(row["p_holm"]),
        "significant": "yes" if sure else "no",
        "n": row["n"],
    }


def _pruned(row: Row, unpruned: float, ends: Ends) -> dict[str, Any]:
    low, value, high = (float(row[name]) for name in ("ci_low", "value", "ci_high"))
    return {
        "model": row["model"],
        "task": row["task"],
        "metric": row["metric"],
        "strategy": row["strategy"],
        "seed": row["seed"],
        "pruned": row["n_pruned"],
        "left": row["n_heads"],
        "value": _cell(value),
        "95 % CI": interval_cell((low, value, high, unpruned), ends[str(row["metric"])]),
        "chosen on": _cell(row.get("ranking_value", float("nan"))),
        "parameters": Cell(f"{row['parameters']:,}", str(row["parameters"])),
        "speed-up": _cell(row["speedup"]),
    }


def _whole(rows: pd.DataFrame) -> float:
    """The value of the whole model; NaN where the table lacks it."""
    values = float_column(rows[rows["strategy"] == NONE], "value")
    return float(values[0]) if len(values) else float("nan")


def _ends(tables: Sequence[pd.DataFrame], *columns: str, at_least: Sequence[float] = ()) -> Ends:
    """The smallest and the largest number of some columns, by metric."""
    ends = {}
    rows = pd.concat(tables) if tables else pd.DataFrame({"metric": []})
    for metric, group in rows.groupby("metric"):
        every = np.concatenate([np.array(at_least, float), *(float_column(group, name) for name in columns)])
        known = every[np.isfinite(every)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        ends[str(metric)] = (low, high if high > low else low + 1.0)
    return ends


def _cell(value: Any) -> Cell:
    number = float(value)
    return Cell("") if math.isnan(number) else Cell(number_text(number), repr(number))
