"""Intervals of means and proportions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

Array = npt.NDArray[Any]


def mean_interval(values: npt.ArrayLike) -> tuple[float, float, float]:
    """The mean of independent numbers, one for each seed or head, and its 95 % interval by Student's t.

    The ends are NaN for a single number.
    """
    numbers = np.asarray(values, np.float64)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return mean, math.nan, math.nan
    half_width = float(stats.t.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / np.sqrt(len(numbers)))
    return mean, mean - half_width, mean + half_width


def geometric_mean_interval(values: npt.ArrayLike) -> tuple[float, float, float]:
    """The geometric mean of positive numbers and its 95 % interval, from those of the mean of their logarithms.

    The ends are NaN for a single number.
    """
    mean, low, high = np.exp(mean_interval(np.log(np.asarray(values, np.float64))))
    return float(mean), float(low), float(high)


def wilson(successes: Array, trials: Array, level: float = 0.95) -> tuple[Array, Array]:
    """Wilson's score intervals of proportions (Wilson 1927), over whole arrays at once.

    Args:
        successes: counts, of any shape.
        trials: counts of the same shape.
        level: probability that the interval covers.

    Returns:
        Lower and upper ends, of the same shape; NaN where there is no trial.
    """
    at_least_one = np.maximum(trials, 1)  # no division by 0; the result is replaced below
    low, high = proportion_confint(successes, at_least_one, alpha=1 - level, method="wilson")
    return np.where(trials > 0, low, np.nan), np.where(trials > 0, high, np.nan)
