"""Spearman's rank correlation of numbers with one value per head, every head counting once.

In the bootstrap, where examples count as often as they were drawn, `weighted_means.weighted_spearman` takes its place.
"""

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
    # Pearson's correlation of the centred ranks; rows with missing values are ranked all the same and left NaN.
    ranks = (rankdata(np.nan_to_num(side), axis=1) for side in (first, second))
    one, two = (r - r.mean(axis=1, keepdims=True) for r in ranks)
    norms = np.sqrt((one**2).sum(axis=1) * (two**2).sum(axis=1))
    correlations = np.full(len(first), np.nan)
    np.divide((one * two).sum(axis=1), norms, out=correlations, where=(norms > 0) & ~missing)
    return correlations


def spearman_of_known(first: Floats, second: Floats) -> float:
    """Spearman's rank correlation over the heads, (heads,), for which both numbers are known.

    NaN for fewer than three of them, or where one side is constant.
    """
    known = np.isfinite(first) & np.isfinite(second)
    return float(spearman_by_row(first[None, known], second[None, known])[0])
