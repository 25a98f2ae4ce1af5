"""Statistics of samples in which every example counts as often as its weight says, for many weightings at once.

All take weights (replicates, n), whole numbers of at least 0, and give (replicates,): what the same statistic is of the
sample with every example repeated so often. Weights that make a statistic impossible (no example at all, a constant
for a correlation) give NaN, unless the docstring says otherwise. At the end are Spearman's correlations of heads, of
which every one counts once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# Two heads are always in the same order or in the opposite one.
_FEWEST = 3


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Divides elementwise, broadcasting both shapes; the quotient is NaN where the denominator is 0."""
    out = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), np.nan)
    np.divide(numerator, denominator, out=out, where=denominator != 0)
    return out


def mean(values: Floats, weights: Floats) -> Floats:
    """Weighted mean of values (n,) for every row of weights; NaN where the weights sum to 0."""
    return ratio(weights @ values, weights.sum(axis=1))


def f1(labels: Floats, predicted: Floats, weights: Floats) -> Floats:
    """F1 of class 1; 0 where class 1 neither occurs nor is predicted, as in scikit-learn."""
    both = weights @ ((labels == 1) & (predicted == 1)).astype(np.float64)
    either = weights @ ((labels == 1).astype(np.float64) + (predicted == 1))
    return np.nan_to_num(ratio(2 * both, either))


def matthews(labels: Floats, predicted: Floats, weights: Floats) -> Floats:
    """Matthews' correlation of any number of classes (Gorodkin 2004); 0 where it is not defined, as in scikit-learn."""
    total, right = weights.sum(axis=1), weights @ (labels == predicted).astype(np.float64)
    classes = np.union1d(labels, predicted)
    true = weights @ (labels[:, None] == classes)  # (replicates, classes)
    chosen = weights @ (predicted[:, None] == classes)
    covariance = right * total - (true * chosen).sum(axis=1)
    product = (total**2 - (chosen**2).sum(axis=1)) * (total**2 - (true**2).sum(axis=1))
    return np.nan_to_num(ratio(covariance, np.sqrt(np.maximum(product, 0.0))))


def pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson's correlation of x and y, each (n,) or (replicates, n)."""
    x, y = np.broadcast_to(x, weights.shape), np.broadcast_to(y, weights.shape)
    total = weights.sum(axis=1)
    dx, dy = (v - ratio((weights * v).sum(axis=1), total)[:, None] for v in (x, y))
    xx, yy, xy = (np.einsum("rn,rn,rn->r", weights, a, b) for a, b in ((dx, dx), (dy, dy), (dx, dy)))
    # A constant less its mean is rounding, tiny beside its squares.
    constant = np.minimum(xx / _sums_of_squares(weights, x), yy / _sums_of_squares(weights, y)) < 1e-24
    correlations = ratio(xy, np.where(constant | (total == 0), 0.0, np.sqrt(xx * yy)))
    return np.clip(correlations, -1.0, 1.0)


def _sums_of_squares(weights: Floats, values: Floats) -> Floats:
    """Weighted sums of squares (replicates,), 1 in place of 0 so that they can divide."""
    squares: Floats = np.einsum("rn,rn,rn->r", weights, values, values)
    return np.where(squares > 0, squares, 1.0)


def weighted_spearman(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Spearman's correlation of x and y, each (n,), for every weighting; tied values share the mean of their ranks.

    Ranks depend on how often each example was drawn, which `spearman_by_row` does not know.
    """
    return pearson(ranks(x, weights), ranks(y, weights), weights)


def ranks(values: Floats, weights: Floats) -> Floats:
    """Ranks from 1 in the sample with repetitions, ties averaged: (replicates, n)."""
    if not len(values):
        return np.zeros_like(weights)
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)  # (replicates, groups)
    # A group that ends at rank c and has s members has the mean rank c - (s - 1) / 2.
    mean_ranks: Floats = np.cumsum(sizes, axis=1) - (sizes - 1) / 2
    return mean_ranks[:, group]


def best_threshold(scores: Floats, above: Floats, below: Floats, weights: Floats) -> Floats:
    """The largest mean over all thresholds of a score, one threshold for all examples.

    Args:
        scores: (n,).
        above: value of an example whose score is above the threshold, (n,).
        below: value of an example whose score is not, (n,).
        weights: (replicates, n).
    """
    order = np.argsort(scores, kind="stable")
    last = np.append(np.diff(scores[order]) > 0, True)  # equal scores fall on one side
    # What all examples up to a score gain when the threshold is moved past them: (replicates, thresholds).
    gains = np.cumsum(weights[:, order] * (below - above)[order], axis=1)[:, last]
    return ratio(weights @ above + gains.max(axis=1, initial=0.0), weights.sum(axis=1))


def spearman_by_row(first: Floats, second: Floats) -> Floats:
    """Spearman's rank correlation, row by row; ties share the mean of their ranks.

    Args:
        first: (rows, heads).
        second: (rows, heads).

    Returns:
        (rows,); NaN where a row has a missing value, fewer than 3 heads, or all heads equal on one side.
    """
    if first.shape[1] < _FEWEST:
        return np.full(len(first), np.nan)
    from scipy.stats import rankdata

    missing = np.isnan(first).any(axis=1) | np.isnan(second).any(axis=1)
    # Pearson's correlation of the centred ranks; rows with missing values are ranked all the same and left NaN.
    ranks = (rankdata(np.nan_to_num(side), axis=1) for side in (first, second))
    one, two = (r - r.mean(axis=1, keepdims=True) for r in ranks)
    norms = np.sqrt((one**2).sum(axis=1) * (two**2).sum(axis=1))
    return ratio((one * two).sum(axis=1), np.where(missing, 0.0, norms))


def spearman_of_known(first: Floats, second: Floats) -> float:
    """Spearman's rank correlation over the heads, (heads,), for which both numbers are known.

    NaN for fewer than three of them, or where one side is constant.
    """
    known = np.isfinite(first) & np.isfinite(second)
    return float(spearman_by_row(first[None, known], second[None, known])[0])
