"""The bootstrap over examples: how often each replicate takes each of them, and the interval that replicates give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from headlens.statistics.seeding import generator_of

Floats = npt.NDArray[np.float64]
_CELLS = 2_000_000  # of a block of weights: 16 MB
# Fewer independent examples, or clusters of them, tell too little about how much others would differ.
FEWEST = 10


@dataclass(frozen=True)
class Draws:
    """How often each replicate takes each example: (replicates, examples).

    Drawing n of n examples with replacement takes each about Poisson(1) times, independently for large n (Hanley and
    MacGibbon 2006), so that no replicate has to know the corpus. The draws depend on the example's key and on the seed
    alone: whatever is compared on the same examples is compared on the same replicates, and batches, shards, the order
    of examples and interruptions change nothing.

    Args:
        counts: how often, (replicates, examples).
        clusters: number of the key of each example, (examples,), where some share one; they are drawn together, since
            they are not independent. None if each has a key of its own.
    """

    counts: npt.NDArray[np.uint8]
    clusters: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, keys: Sequence[str], replicates: int = 1000, seed: int = 0) -> Draws:
        """Draws how often each replicate takes each example.

        Args:
            keys: one for each example, the same wherever it is met. Examples with equal keys are drawn together: give
                those keys that share what makes them alike, such as the paragraph of several questions.
            replicates: how many.
            seed: another one gives other draws of the same examples.
        """
        # P(X > 255) is below 1e-500: bytes are enough.
        columns = {
            key: np.minimum(generator_of(key, seed).poisson(1.0, replicates), 255).astype(np.uint8)
            for key in dict.fromkeys(keys)
        }
        counts = np.empty((replicates, len(keys)), np.uint8)
        for i, key in enumerate(keys):
            counts[:, i] = columns[key]
        numbers = {key: number for number, key in enumerate(columns)}
        return cls(counts, np.array([numbers[key] for key in keys], np.int64) if len(columns) < len(keys) else None)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def examples(self) -> int:
        """Number of examples, the second dimension of `counts`."""
        return int(self.counts.shape[1])

    @property
    def independent(self) -> int:
        """Number of examples, or of clusters where these are drawn together: what the sample really consists of."""
        return self.examples if self.clusters is None else len(np.unique(self.clusters))

    def blocks(self) -> Iterator[Floats]:
        """Some replicates at a time, as weights to multiply with, so that memory stays flat."""
        size = max(1, _CELLS // max(self.examples, 1))
        for first in range(0, len(self), size):
            yield self.counts[first : first + size].astype(np.float64)


def bias_corrected_interval(value: float, replicates: Floats, level: float = 0.95) -> tuple[float, float]:
    """The bias-corrected percentile interval of one number (Efron 1981), for statistics that resampling moves.

    A rank correlation of noisy means is lower in most replicates than in the sample, as these are noisier still.

    Args:
        value: in the sample.
        replicates: (replicates,); those that are not finite are left out.
        level: share inside.

    Returns:
        Lower and upper end; NaN where more than 84 % of the replicates lie on one side of the value (a bias of more
        than one standard error, which nothing corrects), or there are none.
    """
    known = replicates[np.isfinite(replicates)]
    if not known.size:
        return math.nan, math.nan
    bias = float(special.ndtri(((known < value).mean() + (known <= value).mean()) / 2))
    if not abs(bias) <= 1:
        return math.nan, math.nan
    z = float(special.ndtri((1 + level) / 2))
    low, high = np.quantile(known, special.ndtr([2 * bias - z, 2 * bias + z]))
    return float(low), float(high)


def percentile_interval(replicates: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """The range that holds a share of the replicates, the same number of others on either side of it.

    Args:
        replicates: (replicates, ...); those that are not finite are left out.
        level: share inside.

    Returns:
        Lower and upper ends, (...); NaN where there is no replicate.
    """
    finite = np.isfinite(replicates)
    low = np.full(replicates.shape[1:], np.nan)
    high = low.copy()
    defined = finite.any(axis=0)
    if defined.any():
        known = np.where(finite, replicates, np.nan)[:, defined]
        low[defined], high[defined] = np.nanquantile(known, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
