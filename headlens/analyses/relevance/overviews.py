"""What a reader of relevance looks for first: the most relevant heads, and whether the rules agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.relevance.shares import even_shares, requested_rule
from headlens.heads import Head
from headlens.pages.page_tables import Cell, PageTable, interval_cell, number_text, page_table
from headlens.plots.head_grid import by_model_and_stack, float_column
from headlens.plots.interval_heatmap import limit
from headlens.runs.reading import RecordedRun, run_label, tables_of

MOST = 10  # heads of a model's stack
_UNITS = {"relevance": "relevance", "magnitude": "its magnitude"}


def top_heads(runs: Sequence[RecordedRun]) -> PageTable:
    """The most relevant heads of every model and stack, under the rule that was asked for."""
    found = [
        (run, rule, _first(part.rows))
        for run, relevance in tables_of(runs, "relevance")
        for rule, rows in [requested_rule(relevance)]
        for part in by_model_and_stack(rows)
    ]
    bounds = [float_column(rows, name) for *_, rows in found for name in ("relevance", "ci_low", "ci_high")]
    end = limit(*bounds) if bounds else 1.0
    low = min(0.0, max(-end, min((float(np.nanmin(b, initial=0.0)) for b in bounds), default=0.0)))
    records = [
        run_label(run, runs) | _record(row, rule, (low, end))
        for run, rule, rows in found
        for row in rows.to_dict("records")
    ]
    about = (
        f"The {MOST} largest shares of a layer's relevance in every model and stack, with 95 % bootstrap intervals "
        f"(dot, line; from {number_text(low)} to {number_text(end)}) against the even share 1 / heads (tick)."
    )
    return page_table("Most relevant heads", records, about)


def rule_agreement_table(runs: Sequence[RecordedRun]) -> PageTable:
    """Rank correlations between the relevance of heads under different rules."""
    records = [
        run_label(run, runs) | _correlation({str(k): v for k, v in row.items()})
        for run, correlations in tables_of(runs, "correlations")
        for row in correlations.to_dict("records")
    ]
    about = (
        "Spearman's correlation between the relevance of heads under two rules, with 95 % intervals (dot, line; from "
        "−1 to 1, tick: 0): over all heads of a stack, or within a layer and averaged over layers. Of magnitudes: "
        "whatever the sign."
    )
    return page_table("Agreement of rules", records, about)


def _first(rows: pd.DataFrame) -> pd.DataFrame:
    values = float_column(rows, "relevance")
    order = np.argsort(-values, kind="stable")[: min(MOST, int(np.isfinite(values).sum()))]
    return rows.assign(even=even_shares(rows)).iloc[order]


def _record(row: dict[Any, Any], rule: str, ends: tuple[float, float]) -> dict[str, Any]:
    value, low, high, even = (float(row[name]) for name in ("relevance", "ci_low", "ci_high", "even"))
    return {
        "model": row["model"],
        "head": str(Head(row["stack"], int(row["layer"]), int(row["head"]))),
        "relevance": Cell(number_text(value), repr(value)),
        "95 % CI": interval_cell((low, value, high, even), ends),
        "even share": Cell(number_text(even), repr(even)),
        "n": row.get("n"),
        "rule": rule,
        "target": row.get("target"),
    }


def _correlation(row: dict[str, Any]) -> dict[str, Any]:
    value, low, high = (float(row[name]) for name in ("spearman", "ci_low", "ci_high"))
    return {
        "model": row["model"],
        "stack": row["stack"],
        "rule": row["rule"],
        "other rule": row["other_rule"],
        "of": _UNITS.get(str(row["of"]), row["of"]),
        "over": {"heads": "all heads", "layers": "layers"}.get(str(row["scope"]), row["scope"]),
        "heads": row["n"],
        "Spearman": Cell("") if np.isnan(value) else Cell(number_text(value), repr(value)),
        "95 % CI": interval_cell((low, value, high, 0.0), (-1.0, 1.0)),
    }
