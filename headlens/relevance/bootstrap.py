"""Bootstrap intervals of means over a corpus that is read once, in any order and in any parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headlens.corpora.draws import generator_of

Floats = npt.NDArray[np.float64]


def poisson_weights(keys: Sequence[str], replicates: int, seed: int) -> Floats:
    """How often each replicate draws each example, (replicates, examples).

    Drawing n of n examples with replacement takes each about Poisson(1) times, independently for large n (Hanley and
    MacGibbon 2006), so that no replicate has to know the corpus. The draws depend on the example's key and on the seed
    alone: batches, shards and interruptions do not change them. Examples with equal keys are drawn together.
    """
    draws = np.empty((replicates, len(keys)))
    for column, key in enumerate(keys):
        draws[:, column] = generator_of(key, seed).poisson(1.0, replicates)
    return draws


def interval(sums: Floats, counts: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """Percentile interval of means.

    Args:
        sums: (replicates, heads) of drawn values.
        counts: (replicates,) how many were drawn; replicates that drew none are left out.
        level: share of replicates inside.

    Returns:
        Lower and upper ends, (heads,); NaN if no replicate drew anything.
    """
    drawn = counts > 0
    if not drawn.any():
        return np.full(sums.shape[1], np.nan), np.full(sums.shape[1], np.nan)
    low, high = np.quantile(sums[drawn] / counts[drawn, None], [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
