"""The statistics of tables from their textbook definitions, in plain Python."""

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


def paired_score_interval(gained: int, lost: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Tango's interval of the difference of two paired shares: all differences that the score test does not reject.

    For every difference the likelihood of the other probability is climbed; the ends are halved down to 1e-9.
    """
    z, observed = NormalDist().inv_cdf(0.5 + level / 2), (gained - lost) / n

    def held(difference: float) -> bool:
        q = _likeliest_loss(gained, lost, n, difference)
        variance = (2 * q + difference - difference**2) / n
        return (observed - difference) ** 2 <= z * z * variance

    def end(outside: float) -> float:
        """The farthest difference that is held, between the observed one and -1 or 1."""
        if held(outside):
            return outside
        inside = observed + (outside - observed) * 1e-9
        while abs(outside - inside) > 1e-9:
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if held(middle) else (inside, middle)
        return inside

    return end(-1.0), end(1.0)


def _likeliest_loss(gained: int, lost: int, n: int, difference: float) -> float:
    """The probability q of a loss of largest likelihood, that of a gain being q + difference."""

    def log_likelihood(q: float) -> float:
        cells = zip((gained, lost, n - gained - lost), (q + difference, q, 1 - 2 * q - difference), strict=True)
        return math.fsum(count * (math.log(p) if p > 0 else -math.inf) for count, p in cells if count)

    low, high = max(0.0, -difference), (1 - difference) / 2
    for _ in range(200):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if log_likelihood(left) < log_likelihood(right) else (low, right)
    return (low + high) / 2
