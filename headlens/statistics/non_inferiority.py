"""Whether a loss is shown to be smaller than a margin: the one about losses of the two one-sided tests of equivalence.

A loss that is not significant may still be large, the larger the fewer the examples. Two one-sided tests at level α
(Schuirmann 1987) call two systems equivalent if the difference is significantly above -margin and significantly below
it. For a head, or a set of heads, only the first matters, since a model that does better without it does not need it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]
LEVEL = 0.05
NEEDED, NOT_NEEDED, NOT_DECIDED = "needed", "not needed", "not decided"
# Below which the bootstrap shows less spread than there is: how often it covers was simulated, see docs/numbers.md.
FEW_CHANGES = 10
_POWER = 0.8  # with which so many examples would decide
_LEFT_OUT = 1e-6  # how likely the probability of a gain lies outside the range that is tried
_TRIED = 24  # probabilities of a gain in that range


@dataclass(frozen=True)
class Margin:
    """The smallest loss that matters.

    Args:
        size: in units of the metric, above 0.
        lower_is_better: whether the metric is one that grows with a loss.
        tests: number of systems that are compared with the baseline and corrected for.
    """

    size: float
    lower_is_better: bool = False
    tests: int = 1


@lru_cache(maxsize=4096)
def share_loss_p(gained: int, lost: int, trials: int, margin: float) -> float:
    """Exact p-value of the hypothesis that a share of the same trials loses `margin` or more.

    The trials that only one of two systems has right are ordered by the score statistic of Tango (1998) at a loss of
    `margin`; the p-value is the largest probability, over the unknown share of gains, of what was seen or less of a
    loss (Berger and Boos 1994 restrict that share to an interval and add the chance to be outside). Calling a loss
    smaller than the margin where it is at most α errs in at most α of all data sets, for any number of trials; the
    score test itself errs in up to 6.6 % (270 trials, margin .01). Since the order depends on the margin, a larger one
    may have a slightly larger p-value where some trials are lost.

    Args:
        gained: trials that only the first has right.
        lost: trials that only the second has right.
        trials: all trials, at least 1.
        margin: from 0 to 1.
    """
    if not 0 < margin < 1:
        return 1.0 if margin <= 0 else 0.0
    from scipy import stats

    observed = float(_score(np.array(gained), np.array(lost), trials, margin))
    # Clopper and Pearson's interval of the probability of a gain.
    low = float(stats.beta.ppf(_LEFT_OUT / 2, gained, trials - gained + 1)) if gained else 0.0
    high = float(stats.beta.ppf(1 - _LEFT_OUT / 2, gained + 1, trials - gained)) if gained < trials else 1.0
    most = (1 - margin) / 2  # gains and losses are at most all trials
    gains = np.linspace(min(low, most), min(high, most), _TRIED)[:, None]
    worst = int(stats.binom.isf(1e-12, trials, min(1.0, float(gains[-1, 0]) + margin)))
    losses = np.arange(min(worst, trials) + 1)
    fewest = _fewest_gains(losses, trials, margin, observed)
    # P(lost) times P(enough gains among the others), summed: (shares of gains, numbers of losses) to one of each share
    others = np.clip(gains / np.maximum(1 - gains - margin, 1e-300), 0.0, 1.0)
    enough = stats.binom.sf(fewest - 1, trials - losses, others)
    chances = np.asarray(stats.binom.pmf(losses, trials, gains + margin) * enough)
    return min(1.0, float(chances.sum(axis=1).max()) + _LEFT_OUT)


def _score(gained: npt.NDArray[Any], lost: npt.NDArray[Any], trials: int, margin: float) -> Floats:
    """Tango's score statistic of the hypothesis that gains less losses are -margin; it grows with gains."""
    # P(lost) solves 2n q² + b q + l m (1 + m) = 0, see `headlens.statistics.intervals.paired_share_interval`.
    b = -(2 * trials - gained + lost) * margin - gained - lost
    root = np.sqrt(np.maximum(b * b - 8 * trials * lost * margin * (1 + margin), 0.0))
    variance = (root - b) / (2 * trials) - margin * (1 + margin)
    scores: Floats = math.sqrt(trials) * ((gained - lost) / trials + margin) / np.sqrt(np.maximum(variance, 1e-300))
    return scores


def _fewest_gains(losses: npt.NDArray[Any], trials: int, margin: float, score: float) -> npt.NDArray[Any]:
    """The fewest gains, for each number of losses, with which the score is as high; one more than possible for none."""
    low, high = np.zeros_like(losses), trials - losses + 1
    least = score - 1e-9 * max(1.0, abs(score))  # the same score in another order of operations
    while (low < high).any():
        middle = (low + high) // 2
        enough = _score(np.minimum(middle, trials - losses), losses, trials, margin) >= least
        enough |= middle > trials - losses
        high, low = np.where(enough, middle, high), np.where(enough, low, np.minimum(middle + 1, high))
    return low


def t_below(replicates: Floats, distance: float, independent: int) -> float:
    """Student's lower tail, by the standard deviation of bootstrap replicates, or that of Hall's t if it is larger.

    Hall's (1992) statistic t + g t² / 3 + g² t³ / 27 + g / 6, where g is the skewness of the replicates, corrects
    Student's for skewed examples, of which a sample may lack the few that count most. The bootstrap's standard
    deviation is that of a sample of n divided by n instead of n - 1.

    Args:
        replicates: finite numbers, (replicates,).
        distance: of the estimate from the hypothesis, negative below it.
        independent: number n of independent examples or clusters, 2 at least.
    """
    spread = replicates - replicates.mean()
    deviation = float(np.sqrt(np.mean(spread**2)))
    if deviation == 0:
        return 0.5 * (1 + float(np.sign(distance)))
    skewness = float(np.mean((spread / deviation) ** 3))
    t = distance / deviation / math.sqrt(independent / (independent - 1))
    corrected = t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6
    return float(special.stdtr(independent - 1, max(t, corrected)))


def bootstrap_loss_p(losses: Floats, loss: float, margin: float, independent: int) -> float:
    """Bootstrap p-value of the hypothesis that a metric loses `margin` or more.

    The largest of three: the share of replicates that lose the margin (percentiles), of those that fall below the loss
    by as much as the loss is below the margin (Efron and Tibshirani 1993, chapter 16), and Student's t, see `t_below`,
    alone where no replicate does either. NaN without replicates.

    Args:
        losses: of every replicate, (replicates,).
        loss: of the sample.
        margin: above 0.
        independent: number of independent examples or clusters.
    """
    defined = losses[np.isfinite(losses)]
    if not len(defined) or not math.isfinite(loss):
        return math.nan
    beyond = max(int((defined >= margin).sum()), int((defined - loss <= loss - margin).sum()))
    return max(share_beyond(beyond, len(defined)), t_below(defined, loss - margin, independent))


def share_beyond(beyond: int, replicates: int) -> float:
    """Share of bootstrap replicates beyond a bound, counting the sample as one of them; 0 where none is.

    So many replicates cannot tell how far below 1 / (1 + replicates) a p-value is. To put it there would leave nothing
    significant among more than replicates / 20 tests, however large; another test has to bound it.
    """
    return (1 + beyond) / (1 + replicates) if beyond else 0.0


def examples_to_decide(loss: float, deviation: float, margin: Margin) -> float:
    """How many examples would decide with a probability of .8, about, if the loss is what it seems.

    Either shows that the loss is significant (two-sided), or that it is below the margin (one-sided), whichever needs
    fewer examples; Bonferroni's correction stands for Holm's. NaN if it cannot be told.

    Args:
        loss: as measured.
        deviation: standard deviation of an example's part in it: its standard error times the root of the examples.
        margin: and how many tests are corrected for.
    """
    power = float(special.ndtri(_POWER))
    z_loss, z_margin = (-float(special.ndtri(LEVEL / sides / margin.tests)) + power for sides in (2, 1))
    routes = [(z_margin, margin.size - loss), (z_loss, loss)]
    numbers = [(z * deviation / distance) ** 2 for z, distance in routes if distance > 0]
    return min(numbers) if numbers and deviation > 0 else math.nan


@lru_cache(maxsize=64)
def unchanged_to_decide(margin: Margin) -> float:
    """How many examples decide if none of them changes: with fewer, a share that lost the margin may show no change.

    Args:
        margin: of a share, from 0 to 1, and how many tests are corrected for.
    """
    level = LEVEL / margin.tests
    if not 0 < margin.size < 1 or level <= _LEFT_OUT:
        return math.nan
    # As many as have no loss with so small a probability, or more: the exact test counts gains beside losses.
    fewest = math.ceil(math.log(level) / math.log1p(-margin.size))
    numbers = range(fewest, 8 * fewest)
    return fewest + bisect_left(numbers, -level, key=lambda n: -share_loss_p(0, 0, n, margin.size))


def about(number: float) -> float:
    """Rounds a number of examples up to two digits; NaN stays."""
    if not math.isfinite(number):
        return math.nan
    unit = 10 ** max(0, len(str(math.ceil(number))) - 2)
    return float(math.ceil(number / unit - 1e-9) * unit)


def verdict(*, loss: float, p_loss: float, p_margin: float) -> str:
    """Whether what was taken out is needed: `NEEDED`, `NOT_NEEDED` or `NOT_DECIDED`.

    A loss that is significant, but shown to be below the margin, is too small to matter: not needed.

    Args:
        loss: above 0 where the system is worse than the baseline.
        p_loss: p-value of no difference, corrected where several are tested; NaN decides nothing.
        p_margin: p-value of a loss of the margin or more, corrected alike.
    """
    if p_margin < LEVEL:
        return NOT_NEEDED
    return NEEDED if p_loss < LEVEL and loss > 0 else NOT_DECIDED


def verdict_of_interval(delta: float, low: float, high: float, margin: Margin) -> str:
    """The verdict by a 95 % interval of a difference, which is stricter: each end is a one-sided test at .025.

    Args:
        delta: metric of the system less that of the baseline.
        low: lower end of its interval; NaN decides nothing.
        high: upper end of it.
        margin: the smallest loss that matters.
    """
    least, most = (low, high) if margin.lower_is_better else (-high, -low)
    if most < margin.size:
        return NOT_NEEDED
    return NEEDED if least > 0 and math.isfinite(delta) else NOT_DECIDED
