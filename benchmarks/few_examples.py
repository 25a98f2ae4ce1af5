"""How often does a bootstrap of few examples find what is not there? Prints shares of simulated data sets.

    python benchmarks/few_examples.py [--sets 300] [--heads 72]

The changes of all heads are drawn around 0, so that no head has an effect: from a normal distribution, or from a skewed
one, an exponential or log-normal distribution less its mean, where few examples change most. `bootstrap` is the share
of data sets in which some head is significant after Holm's correction by the share of replicates alone, `t` the same by
Student's t, `headlens` with the p-values that `headlens` reports, and `covered` how many 95 % intervals contain 0.

Then BLEU: two translations of every sentence are drawn alike, by a quality of its own, and a share of them is twice the
same. `p` is the share of data sets with a p-value below .05, without a correction, and `covered` how many of the 95 %
intervals contain 0.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from headlens.statistics.bootstrap import Draws, percentile_interval
from headlens.statistics.paired_tests import Comparison, holm, p_from
from headlens.tasks.translation import bleu

Numbers, Whole = npt.NDArray[np.float64], npt.NDArray[np.int64]

REPLICATES, LEVEL = 10_000, 0.05
# Distributions of the changes of an example, all with a mean of 0.
CHANGES: dict[str, Callable[[np.random.Generator, tuple[int, int]], Numbers]] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "exponential": lambda random, shape: random.exponential(size=shape) - 1,
    "log-normal": lambda random, shape: np.exp(random.normal(size=shape)) - math.exp(0.5),
}


def simulate(
    examples: int, heads: int, sets: int, changes_of: str, random: np.random.Generator
) -> tuple[float, float, float, float]:
    """Returns the shares of data sets in which a head is significant by each test, and of intervals around 0."""
    weights = Draws.of([*map(str, range(examples))], REPLICATES).counts.astype(float)
    weights /= np.maximum(weights.sum(1, keepdims=True), 1)
    alone, student, reported, covered = 0, 0, 0, 0.0
    for _ in range(sets):
        changes = CHANGES[changes_of](random, (examples, heads))
        deltas, replicates = changes.mean(0), weights @ changes
        far = (np.abs(replicates - deltas) >= np.abs(deltas)).sum(0)
        alone += bool((holm((1 + far) / (1 + REPLICATES)) < LEVEL).any())
        student += bool((holm(stats.ttest_1samp(changes, 0.0).pvalue) < LEVEL).any())
        p_values = [p_from(column, delta, examples) for column, delta in zip(replicates.T, deltas, strict=True)]
        reported += bool((holm(p_values) < LEVEL).any())
        ends = np.array([percentile_interval(column) for column in replicates.T])
        covered += float(((ends[:, 0] <= 0) & (ends[:, 1] >= 0)).mean())
    return alone / sets, student / sets, reported / sets, covered / sets


def simulate_bleu(
    examples: int, sets: int, spread: tuple[float, float], alike: float, random: np.random.Generator
) -> tuple[float, float, float]:
    """Returns the mean BLEU, and the shares of data sets with a small p-value and with an interval around 0.

    Args:
        examples: sentences of a data set.
        sets: data sets.
        spread: parameters of the beta distribution of how good the translation of a sentence is.
        alike: share of the sentences of which both translations are the same.
        random: what draws.
    """
    draws = Draws.of([*map(str, range(examples))], 1000)
    value, small, covered = 0.0, 0, 0
    for _ in range(sets):
        length, quality = random.integers(5, 25, examples), random.beta(*spread, examples)
        same = random.random(examples) < alike
        one, other = (translations(length, quality, random) for _ in range(2))
        other[same] = one[same]
        found = Comparison(one, lambda records, weights: bleu(weights @ records), draws).of(other)
        value += found.value
        small += found.p_value < LEVEL
        covered += not found.low * found.high > 0
    return value / sets, small / sets, covered / sets


def translations(length: Whole, quality: Numbers, random: np.random.Generator) -> Numbers:
    """Counts of BLEU of random translations as long as the references: (examples, 10)."""
    orders = [np.maximum(length - n, 0) for n in range(4)]
    matches = [random.binomial(order, quality ** (n + 1)) for n, order in enumerate(orders)]
    return np.stack([*matches, *orders, length, length], axis=1).astype(float)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=300, help="simulated data sets of each size")
    parser.add_argument("--heads", type=int, default=72, help="heads without effect")
    options = parser.parse_args()
    print("examples  changes      bootstrap      t  headlens  covered")
    for changes_of in CHANGES:
        for size in (10, 20, 60, 150, 600):
            shares = simulate(size, options.heads, options.sets, changes_of, np.random.default_rng(size))
            row = f"{size:8}  {changes_of:11}  {shares[0]:9.3f}  {shares[1]:5.3f}  {shares[2]:8.3f}  {shares[3]:7.3f}"
            print(row, flush=True)
    print("examples  alike  BLEU      p  covered")
    for spread in ((1.5, 3.0), (0.5, 4.0)):
        for alike in (0.5, 0.85):
            for size in (60, 200):
                row = simulate_bleu(size, options.sets, spread, alike, np.random.default_rng(size))
                print(f"{size:8}  {alike:5}  {row[0]:4.1f}  {row[1]:5.3f}  {row[2]:7.3f}", flush=True)
