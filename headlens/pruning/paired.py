"""Two systems on the same examples: how far apart, within what interval, and could that be chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats
from statsmodels.stats.multitest import multipletests

from headlens.corpora.draws import generator_of

Floats = npt.NDArray[np.float64]
# A metric of records (examples, k), each example counting as often as its weight says, (examples,).
Value = Callable[[Floats, Floats], float]


@dataclass(frozen=True)
class Compared:
    """One system against a baseline.

    Args:
        value: the metric of the system.
        delta: minus that of the baseline.
        low, high: ends of the 95 % interval of `delta`.
        p_value: two-sided, that the two do not differ.
    """

    value: float
    delta: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Draws:
    """How often each replicate of a bootstrap takes each example: (replicates, examples).

    Each example is taken Poisson(1) times (Hanley and MacGibbon 2006); its draws depend on its key and the seed alone,
    so that all systems are compared on the same replicates, and another order of examples changes nothing.
    """

    counts: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, keys: Sequence[str], replicates: int = 1000, seed: int = 0) -> Draws:
        """Draw.

        Args:
            keys: one for each example, the same wherever it is met. Examples with equal keys are drawn together: give
                those keys that share what makes them alike, such as the paragraph of several questions.
            replicates: how many.
            seed: other draws for the same examples.
        """
        columns = {key: _poisson(key, replicates, seed) for key in dict.fromkeys(keys)}
        counts = np.empty((replicates, len(keys)), np.uint8)
        for i, key in enumerate(keys):
            counts[:, i] = columns[key]
        return cls(counts)

    def __len__(self) -> int:
        return len(self.counts)

    def blocks(self, size: int = 128) -> Iterator[Floats]:
        """Some replicates at a time, as numbers to multiply with."""
        for first in range(0, len(self.counts), size):
            yield self.counts[first : first + size].astype(np.float64)


def mcnemar(system: npt.ArrayLike, baseline: npt.ArrayLike) -> float:
    """Exact two-sided p-value of McNemar's test of two systems that are right (1) or wrong (0).

    Of the examples that only one of the two gets right, each does half if they do not differ (McNemar 1947): twice the
    smaller tail of a binomial distribution, at most 1.

    Raises:
        ValueError: if there are other scores than 0 and 1, or not as many for both.
    """
    ours, theirs = _pair(system, baseline)
    if not np.isin(np.concatenate([ours, theirs]), (0, 1)).all():
        raise ValueError("McNemar's test compares scores of 0 and 1")
    gained, lost = int(((ours == 1) & (theirs == 0)).sum()), int(((ours == 0) & (theirs == 1)).sum())
    return float(stats.binomtest(min(gained, lost), gained + lost, 0.5).pvalue) if gained + lost else 1.0


def compare_means(system: npt.ArrayLike, baseline: npt.ArrayLike, draws: Draws) -> Compared:
    """Means of one score for each example, with a bootstrap interval.

    The p-value is McNemar's where all scores are 0 or 1, else that of the bootstrap.
    """
    ours, theirs = _pair(system, baseline)
    _fits(ours, draws)
    difference = ours - theirs
    replicates = np.concatenate([_divide(c @ difference, c.sum(axis=1)) for c in draws.blocks()])
    delta = float(difference.mean())
    binary = np.isin(np.concatenate([ours, theirs]), (0, 1)).all()
    p_value = mcnemar(ours, theirs) if binary else p_from(replicates, delta)
    return Compared(float(ours.mean()), delta, *interval_of(replicates, delta), p_value)


def compare(system: Floats, baseline: Floats, value: Value, draws: Draws) -> Compared:
    """Any metric of the records of two systems, with a bootstrap interval and p-value.

    Args:
        system: records, (examples, k).
        baseline: those of the same examples in the same order.
        value: the metric; it is called twice for every replicate, or once where `baseline_values` are known.
        draws: the same for all systems that are compared.
    """
    return compare_with(system, value, baseline_of(baseline, value, draws), draws)


@dataclass(frozen=True)
class Baseline:
    """The metric of a baseline, of all examples and by replicate: worked out once for all that is compared with it."""

    value: float
    replicates: Floats


def baseline_of(records: Floats, value: Value, draws: Draws) -> Baseline:
    """The baseline's part of `compare`."""
    _fits(records, draws)
    return Baseline(value(records, np.ones(len(records))), replicates_of(records, value, draws))


def compare_with(system: Floats, value: Value, baseline: Baseline, draws: Draws) -> Compared:
    """`compare` with a baseline that is known; a system with the baseline's records gets p = 1."""
    _fits(system, draws)
    own = value(system, np.ones(len(system)))
    delta = own - baseline.value
    replicates = replicates_of(system, value, draws) - baseline.replicates
    return Compared(own, delta, *interval_of(replicates, delta), p_from(replicates, delta))


def replicates_of(records: Floats, value: Value, draws: Draws) -> Floats:
    """The metric of every replicate, (replicates,)."""
    return np.array([value(records, weights) for block in draws.blocks() for weights in block])


def interval_of(replicates: Floats, delta: float, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of replicates, which always has `delta` inside; NaN where there are none."""
    defined = replicates[np.isfinite(replicates)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return min(float(low), delta), max(float(high), delta)


def p_from(replicates: Floats, delta: float) -> float:
    """Two-sided p-value: how often replicates stray from their centre by as much as the centre is from 0.

    The replicates, moved so that they centre at 0, show what chance does (Efron and Tibshirani 1993, chapter 16; Koehn
    2004 takes the share of replicates beyond 0 instead). At least 1 / (1 + replicates).
    """
    defined = replicates[np.isfinite(replicates)]
    if not len(defined):
        return float("nan")
    far = np.abs(defined - delta) >= abs(delta) * (1 - 1e-12)
    return float((1 + far.sum()) / (1 + len(defined)))


def sign_flips(
    system: npt.ArrayLike, baseline: npt.ArrayLike, keys: Sequence[str], rounds: int = 9999, seed: int = 0
) -> float:
    """Two-sided p-value of the mean difference if it were chance which of the two scores is whose.

    Every example's difference changes its sign with probability one half (Fisher 1935). With up to 12 examples
    that differ all signs are tried, so that the p-value is exact.

    Args:
        system: one score for each example.
        baseline: scores of the same examples.
        keys: of the examples; the random signs depend on them and on the seed alone.
        rounds: of random signs, where there are too many to try all.
        seed: other signs.
    """
    ours, theirs = _pair(system, baseline)
    differing = np.flatnonzero(ours != theirs)
    difference = (ours - theirs)[differing]
    if len(difference) <= 12:
        codes = np.arange(2 ** len(difference))[:, None] >> np.arange(len(difference)) & 1
        sums = (1 - 2 * codes) @ difference
        return float((np.abs(sums) >= abs(difference.sum()) * (1 - 1e-12)).mean())
    sums = np.zeros(rounds)
    for i, gap in zip(differing, difference, strict=True):
        sums += gap * (1 - 2 * generator_of(keys[int(i)], seed).integers(0, 2, rounds))
    return float((1 + (np.abs(sums) >= abs(difference.sum()) * (1 - 1e-12)).sum()) / (1 + rounds))


def holm(p_values: npt.ArrayLike) -> Floats:
    """p-values corrected for having looked at many heads (Holm 1979); NaN stays NaN and does not count."""
    given = np.asarray(p_values, np.float64)
    corrected = np.full(given.shape, np.nan)
    known = ~np.isnan(given)
    if known.any():
        corrected[known] = multipletests(given[known], method="holm")[1]
    return corrected


def _poisson(key: str, replicates: int, seed: int) -> npt.NDArray[np.uint8]:
    return np.minimum(generator_of(key, seed).poisson(1.0, replicates), 255).astype(np.uint8)


def _pair(system: npt.ArrayLike, baseline: npt.ArrayLike) -> tuple[Floats, Floats]:
    ours, theirs = np.asarray(system, np.float64), np.asarray(baseline, np.float64)
    if ours.ndim != 1 or ours.shape != theirs.shape or not len(ours):
        raise ValueError(f"one score for each example is needed, of both: {ours.shape} and {theirs.shape}")
    return ours, theirs


def _fits(records: Floats, draws: Draws) -> None:
    if len(records) != draws.counts.shape[1]:
        raise ValueError(f"{len(records)} examples, but draws of {draws.counts.shape[1]}")


def _divide(sums: Floats, counts: Floats) -> Floats:
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
