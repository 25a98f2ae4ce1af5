"""Pareto curves of a whole model: points over all heads and layers, the areas under them, a few points of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from headlens.sparsefinder.pareto import GOLD, area, frontier, hull

POINT = ["method", "parameter", "value_of_parameter", "window", "global_tokens"]
MEASURES = ["recall", "sparsity", "exact"]
EVERY = "all"  # stacks
AREAS_COLUMNS = ["method", "quality", "area", "share", "at_90"]
_SPARSE = 0.9  # where methods are compared by a single number
_LEAST = 0.005  # of area above chance: attention that is all but dense leaves nothing to predict


def of_model(heads: pd.DataFrame) -> pd.DataFrame:
    """Every point over all heads of all sites, which have equal weight: columns `POINT`, recall, sparsity, exact.

    Args:
        heads: rows of `pareto` of all sites, one below the other. Heads without a gold pair have no recall.
    """
    grouped = heads.groupby(POINT, sort=False, dropna=False)[MEASURES].mean()
    return grouped.reset_index()


def of_stacks(heads: pd.DataFrame) -> pd.DataFrame:
    """`of_model` for each stack, and where there are several for all together: columns stack, and those."""
    found = [(str(stack), of_model(own)) for stack, own in heads.groupby("stack", sort=False)]
    if len(found) > 1:
        found.insert(0, (EVERY, of_model(heads)))
    return pd.concat([points.assign(stack=stack) for stack, points in found], ignore_index=True)


def areas(
    points: pd.DataFrame, quality: str = "recall", ends: tuple[float, float] = (1.0, 0.0), sparsity: str = "sparsity"
) -> pd.DataFrame:
    """The area under each method's curve, what share of the possible that is, and the quality at a sparsity of 0.9.

    Args:
        points: of a model, see `of_model`, with a column of the quality, those of `GOLD` among them.
        quality: `recall`, `exact`, or a metric of which more is better.
        ends: the quality with all pairs and with none.
        sparsity: the column of the sparsity at which the quality was measured.

    Returns:
        Columns `AREAS_COLUMNS`. `share` is 0 for the ends alone, such as random graphs have, and 1 for `GOLD`, whose
        graphs are those of attention itself; it is NaN where these are the same.
    """
    rows, by_chance = [], sum(ends) / 2
    for method, own in points[points[quality].notna() & points[sparsity].notna()].groupby("method", sort=False):
        place, values = own[sparsity].to_numpy(np.float64), own[quality].to_numpy(np.float64)
        rows.append((method, quality, area(place, values, ends), np.interp(_SPARSE, *hull(place, values, ends))))
    found = pd.DataFrame(rows, columns=[name for name in AREAS_COLUMNS if name != "share"])
    possible = found.loc[found["method"] == GOLD, "area"].max() - by_chance
    share = (found["area"] - by_chance) / (possible if possible > _LEAST else np.nan)
    return found.assign(share=share)[AREAS_COLUMNS]


def curve(points: pd.DataFrame, quality: str = "recall") -> pd.DataFrame:
    """The points of each method that no other one of it beats, from the densest to the sparsest."""
    found = [
        own.iloc[frontier(own["sparsity"].to_numpy(np.float64), own[quality].to_numpy(np.float64))]
        for _, own in points[points[quality].notna()].groupby("method", sort=False)
    ]
    return pd.concat(found, ignore_index=True) if found else points[:0]


def with_curves(points: pd.DataFrame, by: Sequence[str] = ("stack",)) -> pd.DataFrame:
    """With a column `on_curve`: whether no other point of the method has more recall at as much sparsity.

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


def spread_out(points: pd.DataFrame, count: int) -> pd.DataFrame:
    """A few points of each method's curve, as far apart in sparsity as can be, the sparsest and the densest among them.

    What is tried on a task: a metric takes a pass over the data for each.

    Args:
        points: of curves, see `curve`.
        count: how many of each method, at most all.
    """
    found = []
    for _, own in points.groupby("method", sort=False):
        sparsity = own["sparsity"].to_numpy(np.float64)
        wanted = np.linspace(sparsity.min(), sparsity.max(), count)
        places = sorted({int(np.abs(sparsity - value).argmin()) for value in wanted})
        found.append(own.iloc[places])
    return pd.concat(found, ignore_index=True) if found else points
