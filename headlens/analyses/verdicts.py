"""What is said of a loss: that something is needed, is not needed, or that the examples do not decide it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from headlens.pages.formatting import number_text
from headlens.plots.head_grid import float_column
from headlens.statistics.non_inferiority import (
    NEEDED,
    NOT_DECIDED,
    NOT_NEEDED,
    Margin,
    verdict,
    verdict_of_interval,
)
from headlens.statistics.paired_tests import holm
from headlens.tasks.task_options import LOWER_IS_BETTER, OF_A_HUNDRED, usual_margin

# At the end of tables of many comparisons, after their p-values.
VERDICT_COLUMNS = ("p_margin", "p_margin_holm", "margin", "verdict", "n_to_decide")
VERDICTS = (NEEDED, NOT_NEEDED, NOT_DECIDED)


def margin_of(metric: str, baseline: float, asked: float | None = None, tests: int = 1) -> Margin:
    """The smallest loss of a metric that matters: the one asked for, or the usual one.

    Args:
        metric: of a task.
        baseline: its value with all heads.
        asked: what the user says; None for `headlens.tasks.task_options.usual_margin`.
        tests: number of comparisons that are corrected for.
    """
    size = usual_margin(metric, baseline) if asked is None else asked
    return Margin(size, metric in LOWER_IS_BETTER, max(1, tests))


def with_verdicts(rows: pd.DataFrame, margin: Margin) -> pd.DataFrame:
    """Adds `p_holm` and `VERDICT_COLUMNS`, corrected for the number of rows (Holm 1979).

    Args:
        rows: comparisons of one family, with the columns delta, p_value, p_margin, n_to_decide.
        margin: that they were tested with.
    """
    p_holm, p_margin_holm = (holm(float_column(rows, name)) for name in ("p_value", "p_margin"))
    sign = 1 if margin.lower_is_better else -1
    found = [
        verdict(loss=sign * delta, p_loss=loss, p_margin=below)
        for delta, loss, below in zip(float_column(rows, "delta"), p_holm, p_margin_holm, strict=True)
    ]
    open_ones = np.array([one == NOT_DECIDED for one in found], bool)
    numbers = np.where(open_ones, float_column(rows, "n_to_decide"), np.nan)
    added: dict[str, Any] = {"p_holm": p_holm, "p_margin_holm": p_margin_holm, "margin": margin.size}
    return rows.assign(**added, verdict=pd.Series(found, rows.index, object), n_to_decide=numbers)


def amount_text(amount: float, metric: str) -> str:
    """How much of a metric: in points, of which 100 are all there is, or of a loss as a number."""
    if metric in LOWER_IS_BETTER:
        return number_text(amount)
    points = amount if metric in OF_A_HUNDRED else 100 * amount
    text = f"{points:.2f}".rstrip("0").rstrip(".") if points < 1 else f"{points:.1f}".removesuffix(".0")
    return f"{text} {'point' if text == '1' else 'points'}"


def bound_text(row: Mapping[Any, Any], ends: tuple[str, str] = ("delta_low", "delta_high")) -> str:
    """How much may be lost by a 95 % interval, such as `may lose up to 8.4 points`; empty without one.

    Args:
        row: a comparison with a metric and the ends of an interval.
        ends: names of their columns.
    """
    metric, low, high = str(row["metric"]), float(row[ends[0]]), float(row[ends[1]])
    most = high if metric in LOWER_IS_BETTER else -low
    if math.isnan(most):
        return ""
    verb = "may rise by" if metric in LOWER_IS_BETTER else "may lose"
    return f"{verb} up to {amount_text(max(most, 0.0), metric)}"


def to_decide_text(number: float, *, more: str = "") -> str:
    """About how many examples would decide, after a comma or so; empty where that is not known."""
    return "" if math.isnan(number) else f"about {number:,.0f} {more}examples would decide"


def counts_text(rows: pd.DataFrame) -> str:
    """How many heads are needed, not needed, or not decided, with the margin; empty for tables without verdicts.

    Args:
        rows: of heads of one model and mode, with `VERDICT_COLUMNS`.
    """
    if "verdict" not in rows or rows["verdict"].isna().all():
        return ""
    counts = Counter(rows["verdict"])
    margin = amount_text(float(rows["margin"].iloc[0]), str(rows["metric"].iloc[0]))
    text = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
    text = f"With a margin of {margin}, corrected for {len(rows)} heads: {text}"
    wanted = rows.loc[rows["verdict"] == NOT_DECIDED, "n_to_decide"].dropna()
    if len(wanted):
        text += f" ({to_decide_text(float(np.sort(wanted)[(len(wanted) - 1) // 2]))} half of these)"
    return text + "."


def verdict_of_row(row: Mapping[Any, Any], baseline: float, asked: float | None = None) -> str:
    """A verdict by the 95 % interval `delta_low` to `delta_high` of a row, which is stricter than the test.

    Args:
        row: a comparison with `metric`, `delta`, `delta_low`, `delta_high`.
        baseline: the metric of what it is compared with.
        asked: the margin; None for the usual one.
    """
    delta, low, high = (float(row[name]) for name in ("delta", "delta_low", "delta_high"))
    return verdict_of_interval(delta, low, high, margin_of(str(row["metric"]), baseline, asked))
