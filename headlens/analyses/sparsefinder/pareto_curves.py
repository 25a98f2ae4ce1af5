"""Pareto curves of a whole model: points over all heads and layers, the areas under them, a few points of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.sparsefinder.measures import MEASURES
from headlens.analyses.sparsefinder.pareto_hull import area, frontier, hull
from headlens.analyses.sparsefinder.pareto_points import GOLD
from headlens.statistics.bootstrap import percentile_interval

POINT = ["method", "parameter", "value_of_parameter", "window", "global_tokens"]
EVERY = "all"  # stacks
AREAS_COLUMNS = ["method", "quality", "area", "ci_low", "ci_high", "share", "share_ci_low", "share_ci_high", "at_90"]
_SPARSE = 0.9  # where methods are compared by a single number
_LEAST = 0.005  # of area above chance: attention that is all but dense leaves nothing to predict


def of_model(heads: pd.DataFrame) -> pd.DataFrame:
    """Every point over all heads of all sites, which have equal weight: columns `POINT`, `MEASURES`.

    Args:
        heads: rows of `pareto` of all sites, one below the other. Heads without a gold pair have no recall.
    """
    grouped = heads.groupby(POINT, sort=False, dropna=False)[list(MEASURES)].mean()
    return grouped.reset_index()


def of_stacks(heads: pd.DataFrame) -> pd.DataFrame:
    """`of_model` for each stack, and where there are several for all together: columns stack, and those."""
    found = [(str(stack), of_model(own)) for stack, own in heads.groupby("stack", sort=False)]
    if len(found) > 1:
        found.insert(0, (EVERY, of_model(heads)))
    return pd.concat([points.assign(stack=stack) for stack, points in found], ignore_index=True)


def areas(
    points: pd.DataFrame,
    quality: str = "recall",
    ends: tuple[float, float] = (1.0, 0.0),
    sparsity: str = "sparsity",
    samples: np.ndarray[Any, Any] | None = None,
    sampled_ends: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None,
) -> pd.DataFrame:
    """The area under each method's curve, what share of the possible that is, and the quality at a sparsity of 0.9.

    Args:
        points: of a model, see `of_model`, with a column of the quality, those of `GOLD` among them.
        quality: `recall`, `exact`, or a metric of which more is better.
        ends: the quality with all pairs and with none.
        sparsity: the column of the sparsity at which the quality was measured.
        samples: quality and sparsity of these points in bootstrap samples, (replicates, points, 2).
        sampled_ends: the ends there, (replicates,) each, where they differ from sample to sample.

    Returns:
        Columns `AREAS_COLUMNS`. `share` is 0 for the ends alone, such as random graphs have, and 1 for `GOLD`, whose
        graphs are those of attention itself; it is NaN where these are the same. The 95 % intervals are NaN without
        samples.
    """
    drawn = np.empty((0, len(points), 2)) if samples is None else samples.astype(np.float64)
    known = (points[quality].notna() & points[sparsity].notna()).to_numpy()
    drawn_ends = tuple(np.broadcast_to(end, len(drawn)) for end in sampled_ends or ends)
    by_chance, by_chance_in_samples = sum(ends) / 2, sum(drawn_ends) / 2
    measured: dict[str, tuple[float, float]] = {}
    sampled: dict[str, np.ndarray[Any, Any]] = {}
    for method, own in points[known].groupby("method", sort=False):
        place, values = own[sparsity].to_numpy(np.float64), own[quality].to_numpy(np.float64)
        measured[str(method)] = float(area(place, values, ends)), float(np.interp(_SPARSE, *hull(place, values, ends)))
        rows = drawn[:, known & (points["method"] == method).to_numpy()]
        sampled[str(method)] = area(rows[..., 1], rows[..., 0], (drawn_ends[0][:, None], drawn_ends[1][:, None]))
    nobody = np.nan, np.nan
    possible = _possible(measured.get(GOLD, nobody)[0], by_chance)
    possible_in_samples = _possible(sampled.get(GOLD, np.full(len(drawn), np.nan)), by_chance_in_samples)
    found = []
    for method, (own_area, at_90) in measured.items():
        shares = (sampled[method] - by_chance_in_samples) / possible_in_samples
        share = float((own_area - by_chance) / possible)
        row = (own_area, *_interval(sampled[method]), share, *_interval(shares), at_90)
        found.append((method, quality, *row))
    return pd.DataFrame(found, columns=AREAS_COLUMNS)


def _interval(samples: np.ndarray[Any, Any]) -> tuple[float, float]:
    low, high = percentile_interval(samples)
    return float(low), float(high)


def _possible(gold: float | np.ndarray[Any, Any], by_chance: float | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How much more area there is than by chance; NaN where that is next to nothing."""
    return np.where(gold - by_chance > _LEAST, gold - by_chance, np.nan)


def curve(points: pd.DataFrame, quality: str = "recall") -> pd.DataFrame:
    """The points of each method that no other one of it beats, from the densest to the sparsest."""
    found = [
        own.iloc[frontier(own["sparsity"].to_numpy(np.float64), own[quality].to_numpy(np.float64))]
        for _, own in points[points[quality].notna()].groupby("method", sort=False)
    ]
    return pd.concat(found, ignore_index=True) if found else points[:0]


def with_curves(points: pd.DataFrame, by: Sequence[str] = ("stack",)) -> pd.DataFrame:
    """With a column `on_curve`: whether no other point of the method has as much recall at as much sparsity.

    Of points that are the same one is.

    Args:
        points: of several stacks, or heads.
        by: columns that tell these from each other.
    """
    found = np.zeros(len(points), dtype=bool)
    places = pd.Series(np.arange(len(points)), index=points.index)
    for _, own in points[points["recall"].notna()].groupby([*by, "method"], sort=False):
        best = frontier(own["sparsity"].to_numpy(np.float64), own["recall"].to_numpy(np.float64))
        found[places.loc[own.index[best]]] = True
    return points.assign(on_curve=found)


def spread_out(points: pd.DataFrame, count: int, quality: str = "recall") -> pd.DataFrame:
    """A few points of each method's curve, equally far apart along it, the sparsest the last.

    What is tried on a task: a metric takes a pass over the data for each. Curves begin with the graph of all pairs,
    which is attention itself. Where the quality falls steeply points are close in sparsity.

    Args:
        points: of curves, see `curve`.
        count: how many of each method, at most all.
        quality: that of the curves.
    """
    found = []
    for _, own in points.groupby("method", sort=False):
        sparsity, kept = (own[name].to_numpy(np.float64) for name in ("sparsity", quality))
        along = np.hypot(np.diff(sparsity, prepend=0), np.diff(kept, prepend=1)).cumsum()
        places: list[int] = []
        for wanted in np.linspace(along[-1], 0, count, endpoint=False):
            free = [place for place in np.abs(along - wanted).argsort(kind="stable") if place not in places]
            places += [int(place) for place in free[:1]]
        found.append(own.iloc[sorted(places)])
    return pd.concat(found, ignore_index=True) if found else points
