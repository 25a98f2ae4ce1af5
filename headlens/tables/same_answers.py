"""Models that give all examples, or nearly all, the same answer: how tables, sentences and figures say so."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

NEARLY_ALL = 0.95  # share of the examples from which it is said


def answer_shares(rows: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Returns the shares of the examples that get a model's most frequent answer; NaN where a table does not have it.

    Args:
        rows: with `answer_share`, or `same_answer` alone in tables of older versions.
    """
    nothing = pd.Series(np.nan, index=rows.index)
    shares = pd.to_numeric(rows.get("answer_share", nothing), errors="coerce")
    exact = rows.get("same_answer", nothing).astype(str) == "True"
    return shares.where(shares.notna() | ~exact, 1.0).to_numpy(np.float64)


def same_answer_text(share: Any) -> str:
    """Returns `the same answer to 98 % of the examples`, rounded down; nothing below `NEARLY_ALL`.

    Args:
        share: of the examples that get the most frequent answer; may be NaN.
    """
    if share >= 1:
        return "the same answer to all examples"
    return f"the same answer to {math.floor(1000 * share) / 10:g} % of the examples" if share >= NEARLY_ALL else ""
