"""What figures of relevance have in common: the rule that was asked for, even shares, axes that no outlier sets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.plots.head_grid import Grid, float_column
from headlens.plots.heatmaps import limit

Marks = npt.NDArray[np.bool_]
_FAR = 1.5  # times the limit of all others
MARGIN = 0.07  # at either end of an axis, as a share of what is between


def rules_of_table(relevance: pd.DataFrame) -> list[str]:
    """The rules of a table in order of appearance: the first is the one that was asked for."""
    return [str(rule) for rule in relevance["rule"].dropna().drop_duplicates()] if "rule" in relevance else []


def of_rule(relevance: pd.DataFrame, rule: str) -> pd.DataFrame:
    """Returns the rows of relevance.csv for one rule: share of the layer, interval, signed and raw sums by head."""
    return relevance[relevance["rule"].astype(str) == rule]


def requested_rule(relevance: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """The rule that was asked for, and its rows."""
    found = rules_of_table(relevance)
    return (found[0], of_rule(relevance, found[0])) if found else ("", relevance.iloc[:0])


def described(rows: pd.DataFrame) -> str:
    """Rule and target of rows, for a title."""
    words = {name: ", ".join(map(str, rows[name].dropna().unique())) for name in ("rule", "target") if name in rows}
    return f"rule {words['rule']}" + (f", target {words['target']}" if words.get("target") else "")


def even_shares(rows: pd.DataFrame) -> Grid:
    """What every head would have if all heads of its layer had the same: 1 / heads."""
    keys = [name for name in ("model", "stack", "layer") if name in rows]
    return 1 / rows.groupby(keys, dropna=False)["head"].transform("size").to_numpy(np.float64)


def opposing(rows: pd.DataFrame) -> Marks:
    """Which rows are of a layer whose heads together work against the target: a positive share there opposes it."""
    keys = [name for name in ("model", "stack", "layer") if name in rows]
    whole = rows.assign(raw=float_column(rows, "raw")).groupby(keys, dropna=False)["raw"].transform("sum")
    return whole.to_numpy(np.float64) < 0


def span(values: Grid, *others: Grid) -> tuple[float, float]:
    """Limits of an axis that holds 0 and all of the numbers but outliers, with a margin."""
    end = limit(values, *others)
    every = np.concatenate([values, *others])
    known = every[np.isfinite(every)]
    # What is hardly farther away is no outlier that others would have to make room for.
    if np.abs(known).max(initial=0.0) > _FAR * end:
        known = np.clip(known, -end, end)
    low, high = float(min(known.min(initial=0.0), 0.0)), float(max(known.max(initial=0.0), 0.0))
    margin = MARGIN * ((high - low) or 1.0)
    return low - margin, high + margin
