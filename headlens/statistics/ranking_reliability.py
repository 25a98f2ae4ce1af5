"""How much of a ranking comes from what is ranked, how it is measured, and the examples that it is measured on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SPLITS = 30  # random divisions of the examples
_SLIGHTLY = 0.05  # of the variance of ranks on a half


class VarianceShares(NamedTuple):
    """Shares of the variance of ranks, which add up to 1.

    Args:
        items: common to all methods and examples: what is ranked.
        method: that differs between methods, whatever the examples.
        examples: that would change with other examples, as many.
    """

    items: float
    method: float
    examples: float


def random_halves(keys: Sequence[str], splits: int, seed: int) -> npt.NDArray[np.bool_]:
    """Divides examples into two halves, several times: which are in the first, (splits, examples).

    Args:
        keys: of the examples; those with equal keys are not independent, and stay together.
        splits: how often.
        seed: of the divisions.
    """
    _, clusters = np.unique(list(keys), return_inverse=True)
    count = int(clusters.max()) + 1
    rng = np.random.default_rng(seed)
    return np.stack([np.isin(clusters, rng.permutation(count)[: count // 2]) for _ in range(splits)])


def spearman_brown(correlation: npt.ArrayLike, factor: float = 2.0) -> Floats:
    """The reliability of a measurement that is longer by a factor than two whose correlation is known.

    Spearman (1910) and Brown (1910): f r / (1 + (f - 1) r). It is a share of variance, so that correlations below 0,
    for which the formula gives anything down to minus infinity, count as 0; NaN for NaN.
    """
    r = np.asarray(correlation, np.float64).clip(min=0)
    return factor * r / (1 + (factor - 1) * r)


def unit_ranks(ranks: npt.ArrayLike) -> Floats:
    """Ranks along the last axis, less their mean, of length 1: their products are correlations; NaN where all tie."""
    centred = np.asarray(ranks, np.float64)
    centred = centred - centred.mean(axis=-1, keepdims=True)
    norm = np.sqrt((centred**2).sum(axis=-1, keepdims=True))
    return np.where(norm > 0, centred / np.where(norm > 0, norm, 1.0), np.nan)


def between_halves(first: Floats, second: Floats) -> Floats:
    """Mean correlations of every method on one half with every method on the other, (methods, methods).

    The diagonal has the correlations of each method with itself, which are its reliability on half of the examples.

    Args:
        first: ranks on the first halves, (splits, methods, items).
        second: on the second ones.
    """
    products = np.einsum("smi,sni->smn", unit_ranks(first), unit_ranks(second))
    correlations: Floats = (products + products.transpose(0, 2, 1)).mean(axis=0) / 2
    return correlations


def variance_shares(first: Floats, second: Floats) -> VarianceShares:
    """Divides the variance of ranks on all examples by where it comes from, given ranks on halves of them.

    Ranks are standardised, so that their variance on a half is 1. What two methods have in common on different halves
    is that of the items; what one method has in common with itself there beyond that is its own. The rest is that of
    the examples, and half of it is left on twice as many, as in the formula of Spearman and Brown. Shares that
    are estimated below 0 are set to 0, as where methods rank in opposite orders. Where methods agree with each other by
    far more than with themselves, the variance cannot be divided so, and all are NaN.

    Args:
        first: ranks on the first halves, (splits, methods, items); two methods at least.
        second: on the second ones.
    """
    correlations = between_halves(first, second)
    methods = len(correlations)
    same, other = np.eye(methods, dtype=bool), ~np.eye(methods, dtype=bool)
    items, within = float(correlations[other].mean()), float(correlations[same].mean())
    parts = np.array([items, within - items, (1 - within) / 2])
    if parts[1] < -_SLIGHTLY:
        return VarianceShares(math.nan, math.nan, math.nan)
    parts = parts.clip(min=0)
    return VarianceShares(*(parts / parts.sum()).tolist())


def disattenuated_correlations(first: Floats, second: Floats) -> Floats:
    """Correlations of methods as they would be on endless examples, (methods, methods) (Spearman 1904).

    Those of one method on one half with the other on the other half, whose errors have nothing to do with each other,
    over the geometric mean of both reliabilities; NaN where one of these is not above 0 in at least 97.5 % of the
    divisions, since what is divided by nearly nothing says nothing. May be above 1.

    Args:
        first: ranks on the first halves, (splits, methods, items).
        second: on the second ones.
    """
    correlations = between_halves(first, second)
    of_division = np.einsum("smi,smi->sm", unit_ranks(first), unit_ranks(second))
    own = np.where(np.quantile(of_division, 0.025, axis=0) > 0, np.diag(correlations), np.nan)
    norm = np.sqrt(np.outer(own, own).clip(min=0)) * np.where(np.minimum.outer(own, own) > 0, 1.0, np.nan)
    return np.where(norm > 0, correlations / np.where(norm > 0, norm, 1.0), np.nan)
