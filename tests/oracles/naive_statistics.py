"""The statistics of the syntax table from their textbook definitions, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from statistics import NormalDist


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean, independent of the order of the values; NaN of nothing."""
    values = list(values)
    return math.fsum(values) / len(values) if values else math.nan


def paired_p_value(only_head: int, only_baseline: int) -> float:
    """One-sided exact McNemar test: P(X >= only_head) for X ~ Binomial(only_head + only_baseline, 1/2)."""
    n = only_head + only_baseline
    favourable = sum(math.comb(n, x) for x in range(only_head, n + 1))
    return float(Fraction(favourable, 2**n))


def wilson(correct: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927); NaN where there is nothing to count."""
    if n == 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = correct / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values (Holm 1979), in the order given."""
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
