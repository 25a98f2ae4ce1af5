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
    """Student's lower tail, corrected for skewness, of an estimate by its bootstrap replicates; see `skewed_tail`.

    The bootstrap's standard deviation is that of a sample of n divided by n instead of n - 1, and no better known than
    by as many numbers as there are replicates.

    Args:
        replicates: finite numbers, (replicates,).
        distance: of the estimate from the hypothesis, negative below it.
        independent: number n of independent examples or clusters, 2 at least.
    """
    deviation, skewness = moments(replicates)
    if deviation == 0:
        return 0.5 * (1 + float(np.sign(distance)))
    t = distance / deviation / math.sqrt(independent / (independent - 1))
    return skewed_tail(t, skewness, min(independent, len(replicates)) - 1)


def moments(replicates: Floats) -> tuple[float, float]:
    """The standard deviation of finite numbers (replicates,), and their skewness, 0 where they are all the same."""
    spread = replicates - replicates.mean()
    deviation = float(np.sqrt(np.mean(spread**2)))
    return deviation, float(np.mean((spread / deviation) ** 3)) if deviation else 0.0


def skewed_tail(t: float, skewness: float, degrees: float) -> float:
    """Student's lower tail, or the tail of a mean of gamma distributed numbers where that is larger.

    Where few examples count most, many samples lack some of them: their mean is low, and seems more certain than it
    is. How much is known for gamma distributed numbers: a mean of skewness g is distributed as a gamma variable of
    shape k = 4 / g², and one that lies t estimated standard errors below the hypothesis is 1 / (1 + g |t| / 2) of
    what it would be under the hypothesis, measured from the lower end of the distribution. To the first order in g this
    is the skewness of t in any distribution (Hall 1992); Hall's own cubic, a little larger near the hypothesis, does
    not fall any more from 3 / g standard errors on.

    Args:
        t: the estimate less the hypothesis in standard errors of the estimate.
        skewness: of the estimate.
        degrees: of freedom.
    """
    z = t
    if t <= 0 < skewness:
        shape = 4 / skewness**2
        # Far beyond any table the normal quantile of the tail is not finite.
        z = max(t, float(special.ndtri(special.gammainc(shape, shape / (1 - skewness * t / 2)))))
    return float(special.stdtr(degrees, z))


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


def examples_to_decide(loss: float, deviation: float, margin: Margin, skewness: float = 0.0) -> float:
    """How many examples would decide with a probability of .8, about, if the loss is what it seems.

    Either shows that the loss is significant (two-sided), or that it is below the margin (one-sided), whichever needs
    fewer examples; Bonferroni's correction stands for Holm's. NaN if it cannot be told.

    Args:
        loss: as measured.
        deviation: standard deviation of an example's part in it: its standard error times the root of the examples.
        margin: and how many tests are corrected for.
        skewness: of an example's part in it: that of the estimate times the root of the examples.
    """
    routes = [(1, margin.size - loss, skewness), (2, loss, -skewness)]
    numbers = [
        _examples_beyond(distance / deviation, skew, LEVEL / sides / margin.tests)
        for sides, distance, skew in routes
        if distance > 0 and deviation > 0
    ]
    return min(numbers, default=math.nan)


def _examples_beyond(distance: float, skewness: float, level: float) -> float:
    """Examples of which the tail is below a level with a probability of .8: `distance` in an example's deviations."""
    power = float(special.ndtri(_POWER))
    number = ((-float(special.ndtri(level)) + power) / distance) ** 2
    if skewness <= 0:
        return number

    def tail(n: float) -> float:
        return skewed_tail(power - distance * math.sqrt(n), skewness / math.sqrt(n), math.inf)

    # The tail falls as examples grow, in distance and in skewness.
    low, high = number, 2 * number
    while tail(high) > level:
        low, high = high, 2 * high
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if tail(middle) > level else (low, middle)
    return high


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
