"""Intervals and tests for counts, over whole arrays at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

Array = npt.NDArray[Any]


def wilson(successes: Array, trials: Array, level: float = 0.95) -> tuple[Array, Array]:
    """Wilson's score interval of proportions; NaN where there is no trial."""
    safe = np.maximum(trials, 1)
    low, high = proportion_confint(successes, safe, alpha=1 - level, method="wilson")
    return np.where(trials > 0, low, np.nan), np.where(trials > 0, high, np.nan)


def mcnemar_greater(only_first: Array, only_second: Array, trials: Array) -> Array:
    """Exact one-sided McNemar test that the first of two paired classifiers is more accurate.

    Args:
        only_first: instances only the first has right.
        only_second: instances only the second has right.
        trials: all instances; where there are none the p-value is NaN.

    Returns:
        P(X >= only_first) for X binomial with probability one half over the discordant instances.
    """
    p = stats.binom.sf(only_first - 1, only_first + only_second, 0.5)
    values: Array = np.where(trials > 0, p, np.nan)
    return values
