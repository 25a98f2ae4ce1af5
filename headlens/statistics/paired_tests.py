"""Two systems on the same examples: their difference, its interval, and tests of whether it could be chance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from headlens.statistics.bootstrap import FEWEST, Draws, percentile_interval
from headlens.statistics.intervals import paired_share_interval
from headlens.statistics.non_inferiority import (
    FEW_CHANGES,
    LEVEL,
    Margin,
    about,
    bootstrap_loss_p,
    examples_to_decide,
    moments,
    share_beyond,
    share_loss_p,
    t_below,
    unchanged_to_decide,
)

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
# A metric of records (examples, k) under every weighting (replicates, examples): (replicates,).
Statistic = Callable[[Floats, Floats], Floats]
# Of records of a system and of the baseline, (examples, k) each, which examples count differently: (examples,).
Changed = Callable[[Floats, Floats], npt.NDArray[np.bool_]]
# Of records (examples, k), 1 for examples that are right and 0 for others: (examples,).
Right = Callable[[Floats], Floats]
_ROUNDING = 1e-12  # of differences of a metric


@dataclass(frozen=True)
class PairedComparison:
    """Result of comparing one system with a baseline.

    Args:
        value: the metric of the system.
        delta: `value` minus the metric of the baseline.
        low, high: ends of the 95 % interval of `delta`.
        p_value: two-sided p-value of the hypothesis that the two do not differ.
        p_margin: p-value of the hypothesis that the system loses the margin or more; NaN without a margin, or where the
            data cannot tell, see `Comparison`.
        n_to_decide: about how many examples would decide between a loss and one below the margin, see
            `headlens.statistics.non_inferiority.examples_to_decide`; NaN without a margin, or where it is not known.
    """

    value: float
    delta: float
    low: float
    high: float
    p_value: float
    p_margin: float = math.nan
    n_to_decide: float = math.nan


class Comparison:
    """Compares systems with one baseline on the same examples.

    Where every example is right or wrong, intervals are score intervals of the difference of two paired shares
    (`paired_share_interval`), for any number of examples, and p-values are McNemar's. Else intervals are percentiles of
    the bootstrap, which fewer than `FEWEST` independent examples or clusters do not have, and p-values those of
    `p_from`. Percentiles are also taken where examples are drawn together, since a score interval is that of
    independent ones; McNemar's test is then by clusters.

    With a margin, it is also tested whether the loss is below it: exactly where intervals are score intervals, else by
    the bootstrap, and not at all where fewer than `FEW_CHANGES` examples (or clusters) change, or no resample differs
    from another, of which the bootstrap shows too little.

    Args:
        baseline: records of the baseline, (examples, k).
        statistic: the metric.
        draws: bootstrap draws of the examples.
        right: whether examples are right; given if the metric is the share of examples that are right.
        margin: the smallest loss that matters; None tests no margin.
        changed: which examples count differently in the metric; None for those whose records differ.
    """

    def __init__(
        self,
        baseline: Floats,
        statistic: Statistic,
        draws: Draws,
        right: Right | None = None,
        margin: Margin | None = None,
        changed: Changed | None = None,
    ) -> None:
        self._records, self._statistic, self._draws, self._right = baseline, statistic, draws, right
        self._margin, self._changed = margin, changed or (lambda ours, theirs: (ours != theirs).any(axis=1))
        self._check(baseline)
        self.value = value_of(baseline, statistic)
        self._scored = right is not None and draws.clusters is None
        self._replicates = np.empty(0) if self._scored else replicates_of(baseline, statistic, draws)

    def of(self, records: Floats) -> PairedComparison:
        """Compares a system with the baseline, by its records of the same examples in the same order.

        Raises:
            ValueError: if there are not as many.
        """
        self._check(records)
        value = value_of(records, self._statistic)
        delta = value - self.value
        scores = None if self._right is None else (self._right(records), self._right(self._records))
        if scores is not None and self._scored:
            gained, lost = changed_sides(*scores)
            low, high = paired_share_interval(gained, lost, len(records))
            margin_test = self._share_below_margin(gained, lost, len(records))
            return PairedComparison(value, delta, low, high, mcnemar(*scores), *margin_test)
        replicates = replicates_of(records, self._statistic, self._draws) - self._replicates
        p_value = (
            p_from(replicates, delta, self._draws.independent)
            if scores is None
            else mcnemar(*scores, self._draws.clusters)
        )
        margin_test = self._below_margin(records, replicates, delta)
        return PairedComparison(value, delta, *interval_around(delta, replicates), p_value, *margin_test)

    def _share_below_margin(self, gained: int, lost: int, n: int) -> tuple[float, float]:
        """`p_margin` and `n_to_decide` of a share of right examples."""
        if self._margin is None:
            return math.nan, math.nan
        # One example more on either side, as few changes vary more than they show.
        changed, loss = (gained + lost + 1) / (n + 1), (lost - gained) / n
        number = examples_to_decide(loss, math.sqrt(max(changed - loss**2, 0.0)), self._margin)
        if not gained + lost:
            number = unchanged_to_decide(self._margin)
        return share_loss_p(gained, lost, n, self._margin.size), about(max(number, n + 1))

    def _below_margin(self, records: Floats, replicates: Floats, delta: float) -> tuple[float, float]:
        """`p_margin` and `n_to_decide` of any other metric, by its bootstrap replicates."""
        if self._margin is None or not np.isfinite(replicates).any():
            return math.nan, math.nan
        moved = self._changed(records, self._records)
        clusters = self._draws.clusters
        changes = int(moved.sum()) if clusters is None else len(np.unique(clusters[moved]))
        if not changes or _are_alike(replicates):
            # Of what changes nothing here, nobody can say how many examples it would take until it does.
            return math.nan, math.nan
        sign = 1.0 if self._margin.lower_is_better else -1.0
        deviation, skewness = (x * math.sqrt(len(records)) for x in moments(sign * replicates[np.isfinite(replicates)]))
        number = examples_to_decide(sign * delta, deviation, self._margin, skewness)
        if changes < FEW_CHANGES:  # as many have to change before anything is tested
            return math.nan, about(max(number, len(records) * FEW_CHANGES / changes))
        p_margin = bootstrap_loss_p(sign * replicates, sign * delta, self._margin.size, self._draws.independent)
        return p_margin, about(max(number, len(records) + 1))

    def _check(self, records: Floats) -> None:
        if len(records) != self._draws.examples:
            raise ValueError(f"{len(records)} examples, but draws of {self._draws.examples}")


def value_of(records: Floats, statistic: Statistic) -> float:
    """The metric of records (examples, k), each example counting once."""
    return float(statistic(records, np.ones((1, len(records))))[0])


def replicates_of(records: Floats, statistic: Statistic, draws: Draws) -> Floats:
    """The metric of every replicate, (replicates,); none for fewer than `FEWEST` independent examples or clusters."""
    if draws.independent < FEWEST or not len(draws):
        return np.empty(0)
    return np.concatenate([statistic(records, weights) for weights in draws.blocks()])


def interval_around(value: float, replicates: Floats) -> tuple[float, float]:
    """95 % interval of replicates, which always has `value` inside; NaN where there are none, or all are the same.

    Where resampling changes nothing, it shows nothing of what other examples would change.
    """
    low, high = map(float, percentile_interval(replicates))
    if np.isnan(low) or _are_alike(replicates):
        return math.nan, math.nan
    return min(low, value), max(high, value)


def _are_alike(replicates: Floats) -> bool:
    """Whether all replicates that are known are the same, but for rounding."""
    return bool(np.nanmax(replicates) - np.nanmin(replicates) <= _ROUNDING)


def mcnemar(system: npt.ArrayLike, baseline: npt.ArrayLike, clusters: Counts | None = None) -> float:
    """Exact two-sided p-value of McNemar's test of two systems that are right (1) or wrong (0).

    Of the examples that only one of the two gets right, each does half if they do not differ (McNemar 1947): twice the
    smaller tail of a binomial distribution, at most 1. The test has no direction, since taking a head out may help or
    harm; `mcnemar_greater` is the one-sided test.

    Examples of one cluster change sides together. There the difference of every cluster, the examples it gains less
    those it loses, has either sign with probability one half, so that the p-value is that of the exact sign-flip test
    of clusters; for clusters of one example each it is the same.

    Args:
        system: 1 for each example that is right and 0 for others, (n,).
        baseline: the same of the baseline, (n,).
        clusters: number of the cluster of each example from 0, (n,); None for independent examples.

    Raises:
        ValueError: see `changed_sides`.
    """
    gained, lost = changed_sides(system, baseline)
    if clusters is not None:
        return _sign_flip(np.bincount(clusters, np.asarray(system, np.float64) - np.asarray(baseline, np.float64)))
    from scipy import stats

    return float(stats.binomtest(min(gained, lost), gained + lost, 0.5).pvalue) if gained + lost else 1.0


def _sign_flip(differences: npt.NDArray[Any]) -> float:
    """Exact two-sided p-value of whole numbers: how often their sum is as far from 0 with signs drawn by chance."""
    chances = np.ones(1)  # of every sum from -total to total, (2 total + 1,)
    for step in np.abs(differences[differences != 0]).astype(int):
        longer = np.zeros(len(chances) + 2 * step)
        longer[: len(chances)] += chances / 2
        longer[2 * step :] += chances / 2
        chances = longer
    sums = np.abs(np.arange(len(chances)) - len(chances) // 2)
    return min(1.0, float(chances[sums >= abs(differences.sum())].sum()))


def out_of_order(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Which examples have other places: as few as possible, so that two scorings order all others alike.

    They are those outside of a longest part of the examples that is in the same order in both, with the same ties.

    Args:
        ours: scores of the examples, (n,).
        theirs: the same of the other system.
    """
    pairs, which, sizes = np.unique(
        np.stack([theirs, np.negative(ours)], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    # Of examples with the same score of theirs ours falls: at most one of these groups is in a part that rises.
    score = -pairs[:, 1]
    longest, before = sizes.copy(), np.full(len(pairs), -1)
    for place in range(1, len(pairs)):
        below = np.where(score[:place] < score[place], longest[:place], 0)
        best = int(below.argmax())
        if below[best]:
            longest[place] += below[best]
            before[place] = best
    kept = np.zeros(len(pairs), bool)
    place = int(longest.argmax()) if len(pairs) else -1
    while place >= 0:
        kept[place] = True
        place = int(before[place])
    return ~kept[which.ravel()]


def changed_sides(system: npt.ArrayLike, baseline: npt.ArrayLike) -> tuple[int, int]:
    """Counts the examples that only the system has right, and those that only the baseline has right.

    Args:
        system: 1 for each example that is right and 0 for others, (n,).
        baseline: the same of the baseline, (n,).

    Raises:
        ValueError: if there are other scores than 0 and 1, or not as many for both.
    """
    ours, theirs = np.asarray(system, np.float64), np.asarray(baseline, np.float64)
    if ours.ndim != 1 or ours.shape != theirs.shape or not len(ours):
        raise ValueError(f"one score for each example is needed, of both: {ours.shape} and {theirs.shape}")
    if not np.isin(np.concatenate([ours, theirs]), (0, 1)).all():
        raise ValueError("McNemar's test compares scores of 0 and 1")
    return int((ours > theirs).sum()), int((ours < theirs).sum())


def mcnemar_greater(only_first: Counts, only_second: Counts, trials: Counts) -> Floats:
    """Exact one-sided McNemar test that the first of two paired classifiers is more accurate, for many pairs at once.

    It serves where the alternative has a direction, such as a head against the baseline of its relation, and where
    counts are all that is kept. `mcnemar` is two-sided and takes the scores of the examples.

    Args:
        only_first: instances only the first has right.
        only_second: instances only the second has right.
        trials: all instances; where there are none the p-value is NaN.

    Returns:
        P(X >= only_first) for X binomial with probability one half over the discordant instances.
    """
    # P(X >= k) is the regularised incomplete beta function I(k, n - k + 1), and 1 for k = 0.
    tail = np.where(only_first > 0, special.betainc(np.maximum(only_first, 1), only_second + 1, 0.5), 1.0)
    return np.where(trials > 0, tail, np.nan)


def exceeds_chance(right: float, n: int, chance: float) -> bool:
    """Whether so many right answers are significantly more than guesses have.

    Each side of the exact binomial test has half of its level: of few examples, intervals end too early.

    Args:
        right: answers that are right, from 0 to `n`.
        n: all answers, at least 1.
        chance: share of right answers of guesses.
    """
    return bool(special.bdtrc(right - 1, n, chance) < LEVEL / 2)


def p_from(replicates: Floats, delta: float, independent: int) -> float:
    """Two-sided p-value: how often replicates stray from their centre by as much as the centre is from 0.

    The replicates, moved so that they centre at 0, show what chance does (Efron and Tibshirani 1993, chapter 16; Koehn
    2004 takes the share of replicates beyond 0 instead). At least what Student's t gives with the standard deviation
    and the skewness of the replicates, see `t_below`: of few examples the tails of the bootstrap are too thin for the
    small p-values that a correction for many tests asks for. Where no replicate strays as far, which says that p is
    small but not how small, it is that of t alone. A difference that is rounding has 1.

    Args:
        replicates: of the difference, (replicates,).
        delta: the difference of the sample.
        independent: number of independent examples or clusters.
    """
    defined = replicates[np.isfinite(replicates)]
    if not len(defined):
        return float("nan")
    if abs(delta) <= _ROUNDING:
        return 1.0
    far = int((np.abs(defined - delta) >= abs(delta) * (1 - 1e-12)).sum())
    sign = -math.copysign(1.0, delta)
    return min(1.0, max(share_beyond(far, len(defined)), 2 * t_below(sign * defined, sign * delta, independent)))


def holm(p_values: npt.ArrayLike) -> Floats:
    """Corrects p-values for the number of heads that are tested (Holm 1979); NaN stays NaN and does not count."""
    values = np.asarray(p_values, np.float64)
    corrected = np.full(values.shape, np.nan)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values.ravel()[known], kind="stable")]
    # statsmodels has this, too, but collects garbage at every call: a quarter of a second beside torch.
    steps = np.arange(len(order), 0, -1) * values.ravel()[order]
    corrected.ravel()[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return corrected
