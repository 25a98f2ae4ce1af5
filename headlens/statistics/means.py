"""A mean with its interval."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import stats


def mean_interval(values: npt.ArrayLike) -> tuple[float, float, float]:
    """The mean of independent numbers, one for each seed or head, and its 95 % interval by Student's t.

    The ends are NaN for a single number.
    """
    found = np.asarray(values, np.float64)
    mean = float(found.mean())
    if len(found) < 2:
        return mean, math.nan, math.nan
    wide = float(stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found)))
    return mean, mean - wide, mean + wide


def geometric_mean_interval(values: npt.ArrayLike) -> tuple[float, float, float]:
    """The geometric mean of positive numbers and its 95 % interval, from those of the mean of their logarithms.

    The ends are NaN for a single number.
    """
    mean, low, high = np.exp(mean_interval(np.log(np.asarray(values, np.float64))))
    return float(mean), float(low), float(high)
