"""The bootstrap: how often each example counts in samples drawn with replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MOST_CELLS = 2_000_000  # of a block of weights: 16 MB


def resamples(n: int, replicates: int = 1000, seed: int = 0) -> Iterator[Floats]:
    """Weights of bootstrap samples, in blocks (some replicates, n), so that memory stays flat.

    The same arguments give the same samples: statistics of two models on the same examples are paired.

    Args:
        n: number of examples; each sample draws as many.
        replicates: number of samples.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    block = max(1, MOST_CELLS // max(n, 1))
    for start in range(0, replicates, block):
        rows = min(block, replicates - start)
        drawn = generator.integers(0, n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def interval(
    statistic: Callable[[Floats], Floats], n: int, replicates: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of a statistic; NaN where no sample has a value.

    Args:
        statistic: from weights (replicates, n) to values (replicates,); NaN for samples without a value.
        n: number of examples.
        replicates: bootstrap samples.
        seed: of the draws.
        level: share of samples inside.
    """
    blocks = [statistic(weights) for weights in resamples(n, replicates, seed)] if n else []
    found = np.concatenate([*blocks, np.empty(0)])
    found = found[np.isfinite(found)]
    if not len(found):
        return float("nan"), float("nan")
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
