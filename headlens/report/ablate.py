"""The figures of `headlens ablate`, from the tables it wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from headlens.heads import STACKS, Head
from headlens.metrics.direction import LOWER_IS_BETTER
from headlens.report import figures as draw
from headlens.report.ablation_map import KEEP_ONLY, significant
from headlens.report.classify_overviews import named, tables_of
from headlens.report.kind import Caption, Figures, Kind
from headlens.report.page_tables import Cell, PageTable, number_text, page_table
from headlens.report.recorded import Columns, RecordedRun
from headlens.report.runs import RunFolder

MOST = 10  # heads of a model


def ablation_figures(tables: Mapping[str, pd.DataFrame]) -> Figures:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: `ablation` and `pruning`, as far as there: rows of the CSV files, of one model or several.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    if "ablation" in tables:
        yield "ablation", draw.ablation_map(tables["ablation"])
        yield "keep_only", draw.ablation_map(tables["ablation"], keep_only=True)
    if "pruning" in tables:
        yield "pruning", draw.pruning_curve(tables["pruning"])


def write_ablation(run: RunFolder, tables: Mapping[str, pd.DataFrame], *, figures: bool = True) -> None:
    """Write every table as CSV, then, if wanted, every figure as PNG and SVG.

    Args:
        run: the folder, started.
        tables: `ablation`, and `pruning` where heads were pruned.
        figures: whether to draw.
    """
    for name, frame in tables.items():
        run.table(name, frame)
    for name, figure in ablation_figures(tables) if figures else ():
        run.figure(name, figure)


def most_damage(rows: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """The heads without which a model is worst, of one model and mode, worst first."""
    order = _worse(rows).sort_values(ascending=False, kind="stable").index
    return rows.loc[order].head(most)


def best_alone(rows: pd.DataFrame) -> pd.DataFrame:
    """The head of every layer that does best alone, of one model (Michel et al. 2019, table 3)."""
    order = _worse(rows).sort_values(kind="stable").index
    return rows.loc[order].drop_duplicates(["stack", "layer"]).sort_index()


def _worse(rows: pd.DataFrame) -> pd.Series[float]:
    """By how much a model does worse."""
    return rows["delta"] if set(rows["metric"]) <= LOWER_IS_BETTER else -rows["delta"]


def _draw(run: RecordedRun) -> Figures:
    return ablation_figures(run.tables)


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    return [table for table in (_heads(runs), _alone(runs), _pruned(runs)) if table.rows]


def _heads(runs: Sequence[RecordedRun]) -> PageTable:
    records = [
        named(run, runs) | _record(row, sure=bool(sure))
        for run, ablation in tables_of(runs, "ablation")
        for _, own in ablation[ablation["mode"] != KEEP_ONLY].groupby(["model", "mode"], sort=False)
        for rows in [most_damage(own)]
        for row, sure in zip(rows.to_dict("records"), significant(rows), strict=True)
    ]
    about = (
        f"The {MOST} heads of every model without which the task suffers most. Intervals of the change are paired; "
        "p-values are corrected for the number of heads (Holm)."
    )
    return page_table("Heads that the task needs most", records, about)


def _alone(runs: Sequence[RecordedRun]) -> PageTable:
    records = [
        named(run, runs) | _record(row, sure=bool(sure))
        for run, ablation in tables_of(runs, "ablation")
        for _, own in ablation[ablation["mode"] == KEEP_ONLY].groupby("model", sort=False)
        for rows in [best_alone(own)]
        for row, sure in zip(rows.to_dict("records"), significant(rows), strict=True)
    ]
    about = "Of every layer the head that does best when all others of the layer are taken out (Michel et al. 2019)."
    return page_table("Best head of each layer", records, about)


def _record(row: Mapping[Any, Any], *, sure: bool) -> dict[str, Any]:
    head = Head(row["stack"], int(row["layer"]), int(row["head"]))
    return {
        "model": row["model"],
        "task": row["task"],
        "metric": row["metric"],
        "mode": row["mode"],
        "head": str(head),
        "all heads": _cell(row["baseline"]),
        "value": _cell(row["value"]),
        "change": _cell(row["delta"]),
        "95 % CI": f"{number_text(float(row['ci_low']))} to {number_text(float(row['ci_high']))}",
        "p (Holm)": _cell(row["p_holm"]),
        "significant": "yes" if sure else "no",
        "n": row["n"],
    }


def _pruned(runs: Sequence[RecordedRun]) -> PageTable:
    records = [
        named(run, runs) | _pruned_record(row)
        for run, pruning in tables_of(runs, "pruning")
        for row in pruning.to_dict("records")
    ]
    about = (
        "What is left of the task when many heads are pruned, on examples that no head was chosen on; beside it the "
        "value on the examples that they were chosen on. The speed-up counts the operations of a forward pass."
    )
    return page_table("Pruned models", records, about)


def _pruned_record(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        "model": row["model"],
        "metric": row["metric"],
        "strategy": row["strategy"],
        "seed": row["seed"],
        "pruned": row["n_pruned"],
        "left": row["n_heads"],
        "value": _cell(row["value"]),
        "95 % CI": f"{number_text(float(row['ci_low']))} to {number_text(float(row['ci_high']))}",
        "chosen on": _cell(row.get("ranking_value", float("nan"))),
        "parameters": row["parameters"],
        "speed-up": _cell(row["speedup"]),
    }


def _cell(value: Any) -> Cell:
    number = float(value)
    return Cell("") if math.isnan(number) else Cell(number_text(number), repr(number))


CAPTIONS = {
    "ablation": Caption(
        "Without each head",
        "By how much the task's metric changes when a single head is taken out: red heads are needed, without blue "
        "ones the model does better, white ones do not matter. Below each change stands half the width of its paired "
        "95 % interval; a dot marks changes that are significant after Holm's correction for the number of heads.",
    ),
    "keep_only": Caption(
        "Each head alone in its layer",
        "By how much the metric changes when all heads of a layer but one are taken out: layers in which some head is "
        "white can do with that one alone (Michel et al. 2019).",
    ),
    "pruning": Caption(
        "Pruning many heads",
        "The metric against the number of heads pruned, by how they were chosen, with 95 % intervals. Heads were "
        "chosen on one part of the examples, and the values are those of the other part. The dashed line with its band "
        "is the whole model; of random orders every one is a point.",
    ),
}

ABLATE = Kind(
    tables={
        "ablation": Columns(
            keys=("layer", "head"),
            numbers=("n", "baseline", "value", "delta", "ci_low", "ci_high", "p_value", "p_holm"),
            words={"model": (), "stack": STACKS, "task": (), "metric": (), "mode": ()},
            identity=("model", "mode", "stack", "layer", "head"),
        ),
        "pruning": Columns(
            keys=("n_pruned", "n_heads"),
            numbers=("seed", "value", "ci_low", "ci_high", "parameters", "speedup"),
            words={"model": (), "task": (), "metric": (), "strategy": ()},
            identity=("model", "strategy", "seed", "n_pruned"),
        ),
    },
    needed=("ablation",),
    figures=_draw,
    captions=CAPTIONS,
    overviews=_overviews,
)
