"""Spearman's rank correlation of numbers with one value per head."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

Floats = npt.NDArray[np.float64]
# Two heads are always in the same order or in the opposite one.
_FEWEST = 3


def spearman_by_row(first: Floats, second: Floats) -> Floats:
    """Spearman's rank correlation, row by row; ties share the mean of their ranks.

    Args:
        first: (rows, heads).
        second: (rows, heads).

    Returns:
        (rows,); NaN where a row has a missing value, fewer than 3 heads, or all heads equal on one side.
    """
    if first.shape[1] < _FEWEST:
        return np.full(len(first), np.nan)
    missing = np.isnan(first).any(axis=1) | np.isnan(second).any(axis=1)
    sides = [rankdata(np.nan_to_num(side), axis=1) for side in (first, second)]
    one, two = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in sides)
    lengths = np.sqrt((one**2).sum(axis=1) * (two**2).sum(axis=1))
    found = np.full(len(first), np.nan)
    np.divide((one * two).sum(axis=1), lengths, out=found, where=(lengths > 0) & ~missing)
    return found


def spearman_of_known(first: Floats, second: Floats) -> float:
    """Spearman's rank correlation over the places (heads,) where both numbers are known.

    NaN for fewer than three of them, or where one side is constant.
    """
    known = np.isfinite(first) & np.isfinite(second)
    return float(spearman_by_row(first[None, known], second[None, known])[0])
