"""Pareto curves of quality over sparsity: points of a whole model, the best of each method, hulls, areas under them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.analyses.sparsefinder.measures import MEASURES
from headlens.analyses.sparsefinder.pareto_points import POINT
from headlens.statistics.bootstrap import percentile_interval
from headlens.tables.shared_columns import ALL
from headlens.tables.sparsefinder_tables import AREAS, GOLD

_SPARSE = 0.9  # where methods are compared by a single number
_LEAST_GAIN = 0.005  # of area above chance: attention that is all but dense leaves nothing to predict
_NEARLY_DENSE = 1e-12  # sparsities up to this count as 0
Floats = npt.NDArray[np.float64]
Ends = tuple[float, float] | tuple[Floats, Floats]


def of_model(heads: pd.DataFrame) -> pd.DataFrame:
    """Means of every point over all heads of all sites, which have equal weight: columns `POINT`, `MEASURES`.

    Args:
        heads: rows of `pareto` of all sites, one below the other. Heads without a gold pair have no recall.
    """
    return heads.groupby(POINT, sort=False, dropna=False)[list(MEASURES)].mean().reset_index()


def of_stacks(heads: pd.DataFrame) -> pd.DataFrame:
    """Means as `of_model` for each stack, first of all for all together where there are several, and a column stack."""
    stacks = {str(stack): rows for stack, rows in heads.groupby("stack", sort=False)}
    levels = {ALL: heads, **stacks} if len(stacks) > 1 else stacks
    return pd.concat([of_model(rows).assign(stack=level) for level, rows in levels.items()], ignore_index=True)


def frontier(sparsity: Floats, quality: Floats) -> npt.NDArray[np.int64]:
    """Finds the points that no other one beats: their places, from the densest to the sparsest.

    Args:
        sparsity: of every point.
        quality: recall, or a metric of which more is better.
    """
    order = np.lexsort((-quality, -sparsity))  # the sparsest first, of these the best first
    best_before = np.maximum.accumulate(np.append(-np.inf, quality[order]))[:-1]
    return order[quality[order] > best_before][::-1]


def hull(sparsity: Floats, quality: Floats, ends: tuple[float, float] = (1.0, 0.0)) -> tuple[Floats, Floats]:
    """What a method reaches at every sparsity: corners of the lowest concave line above its points and two ends.

    The ends are the graphs of all pairs and of none, which need no method. Whoever draws lots between two graphs
    reaches every point on the line between them, as in hulls of ROC curves (Provost and Fawcett 2001).

    Args:
        sparsity: of every point, `(points,)`.
        quality: recall, or a metric of which more is better.
        ends: the quality with all pairs and with none.

    Returns:
        Sparsities from 0 to 1, and the quality there.
    """
    places, values = zip(*_corners(sparsity, quality, ends), strict=True)
    return np.array(places), np.array(values)


def area(sparsity: Floats, quality: Floats, ends: Ends = (1.0, 0.0)) -> Floats:
    """The area under `hull`: more points never make it smaller.

    Of recall it is 1/2 for graphs that are drawn at random, whose recall is 1 - sparsity, and (1 + s) / 2 for those
    that find everything and nothing else, where attention has the sparsity s: their parts have a recall of
    (1 - sparsity) / (1 - s) beyond s.

    Args:
        sparsity: of every point, `(..., points)`, any number of them.
        quality: recall, or a metric of which more is better.
        ends: the quality with all pairs and with none; numbers, or `(..., 1)` each.

    Returns:
        `(...)`, NaN where a point or an end is.
    """
    known = np.isfinite(sparsity + quality + np.add(*ends)).all(axis=-1)
    total = np.where(known, 0.0, np.nan)
    dense, empty = (np.nan_to_num(end) for end in ends)
    corners = _corners(np.nan_to_num(sparsity), np.nan_to_num(quality), (dense, empty))
    x, y = next(corners)
    for next_x, next_y in corners:
        total = total + (next_x - x) * (next_y + y) / 2
        x, y = next_x, next_y
    return total


def _corners(sparsity: Floats, quality: Floats, ends: Ends) -> Iterator[tuple[Floats, Floats]]:
    """Corners of hulls from the left to the right, `(...)`; a hull that is done stays at its end until all are."""
    shape = (*sparsity.shape[:-1], 1)
    clipped = np.where(sparsity > _NEARLY_DENSE, sparsity, 0.0).clip(max=1.0)
    # (..., points + 1): the last point is the graph without a pair
    places = np.concatenate([clipped, np.ones(shape)], axis=-1)
    values = np.concatenate([quality, np.full(shape, ends[1])], axis=-1)
    x, y = np.zeros(shape), np.where(places == 0, values, ends[0]).max(axis=-1, keepdims=True)
    y = np.maximum(y, ends[0])
    yield x[..., 0], y[..., 0]
    while (x < 1).any():
        ahead = places > x
        slopes = np.where(ahead, (values - y) / np.where(ahead, places - x, 1.0), -np.inf)
        # Gift wrapping: the next corner is up the steepest slope, of points on one line the farthest.
        steepest = slopes == slopes.max(axis=-1, keepdims=True)
        corner = np.where(steepest, places, -np.inf).argmax(axis=-1)[..., None]
        done = x >= 1
        x, y = (
            np.where(done, old, np.take_along_axis(new, corner, axis=-1)) for old, new in ((x, places), (y, values))
        )
        yield x[..., 0], y[..., 0]


def areas(
    points: pd.DataFrame,
    quality: str = "recall",
    ends: tuple[float, float] = (1.0, 0.0),
    sparsity: str = "sparsity",
    samples: npt.NDArray[np.floating] | None = None,
    sampled_ends: tuple[Floats, Floats] | None = None,
) -> pd.DataFrame:
    """The area under each method's curve, its normalised area, and the quality at a sparsity of 0.9.

    Args:
        points: of a model, see `of_model`, with a column of the quality, those of `GOLD` among them.
        quality: `recall`, `exact`, or a metric of which more is better.
        ends: the quality with all pairs and with none.
        sparsity: the column of the sparsity at which the quality was measured.
        samples: quality and sparsity of these points in bootstrap samples, `(replicates, points, 2)`.
        sampled_ends: the ends there, `(replicates,)` each, where they differ from sample to sample.

    Returns:
        Rows of areas.csv without model and stack. `share` is 0 for the ends alone, such as random graphs have, and 1
        for `GOLD`, whose graphs are those of attention itself; it is NaN where these are the same, or by samples may
        be. The 95 % intervals are NaN without samples and where all samples give the same, and `at_90` is for methods
        without a point that is as sparse.
    """
    replicates = np.empty((0, len(points), 2)) if samples is None else samples.astype(np.float64)
    dense, empty = (np.broadcast_to(end, len(replicates)) for end in sampled_ends or ends)
    by_chance, sampled_chance = sum(ends) / 2, (dense + empty) / 2
    known = (points[quality].notna() & points[sparsity].notna()).to_numpy()
    measured: dict[str, tuple[Floats, Floats, float, int]] = {}
    for method, rows in points[known].groupby("method", sort=False):
        curve_points = rows[sparsity].to_numpy(np.float64), rows[quality].to_numpy(np.float64)
        drawn = replicates[:, known & (points["method"] == method).to_numpy()]
        sampled = area(drawn[..., 1], drawn[..., 0], (dense[:, None], empty[:, None]))
        # Beyond the sparsest point there is nothing but the line to the empty graph.
        reached = curve_points[0].max() >= _SPARSE
        at_90 = float(np.interp(_SPARSE, *hull(*curve_points, ends))) if reached else np.nan
        measured[str(method)] = area(*curve_points, ends), sampled, at_90, len(rows)
    gold, sampled_gold, *_ = measured.get(GOLD, (np.array(np.nan), np.full(len(replicates), np.nan), np.nan, 0))
    possible, sampled_possible = _gain(gold, by_chance), _gain(sampled_gold, sampled_chance)
    least, _ = percentile_interval((sampled_gold - sampled_chance)[:, None])
    # Shares of a difference that is next to nothing, that may be nothing, or may have the other sign.
    if np.isnan(possible) or (least <= 0).any():
        possible, sampled_possible = np.array(np.nan), np.full(len(replicates), np.nan)
    table = []
    for method, (own_area, sampled, at_90, count) in measured.items():
        share, shares = (own_area - by_chance) / possible, (sampled - sampled_chance) / sampled_possible
        ends_of_both = np.stack(percentile_interval(np.stack([sampled, shares], axis=1)))
        # Samples that are all alike, as of one sentence, tell nothing of others.
        (low, share_low), (high, share_high) = np.where(ends_of_both[0] < ends_of_both[1], ends_of_both, np.nan)
        table.append((method, quality, own_area, low, high, share, share_low, share_high, at_90, count))
    return pd.DataFrame(table, columns=AREAS.names[2:])


def _gain(gold: Floats, by_chance: float | Floats) -> Floats:
    """How much more area attention itself has than chance; NaN where that is next to nothing."""
    return np.where(gold - by_chance > _LEAST_GAIN, gold - by_chance, np.nan)


def curve(points: pd.DataFrame, quality: str = "recall") -> pd.DataFrame:
    """The points of each method that no other one of it beats, from the densest to the sparsest."""
    return points.iloc[_on_curves(points, ["method"], quality)].reset_index(drop=True)


def with_curves(points: pd.DataFrame, by: Sequence[str] = ("stack",)) -> pd.DataFrame:
    """Adds a column `on_curve`: whether no other point of the method has as much recall at as much sparsity.

    Of points that are the same one is on the curve.

    Args:
        points: of several stacks, or heads.
        by: columns that tell these from each other.
    """
    on_curve = np.zeros(len(points), dtype=bool)
    on_curve[_on_curves(points, [*by, "method"], "recall")] = True
    return points.assign(on_curve=on_curve)


def _on_curves(points: pd.DataFrame, by: list[str], quality: str) -> npt.NDArray[np.int64]:
    """Row numbers of the `frontier` of each group, one group after the other."""
    values = points[["sparsity", quality]].to_numpy(np.float64)
    known = points.assign(row=np.arange(len(points)))[points[quality].notna()]
    groups = [rows.to_numpy() for _, rows in known.groupby(by, sort=False)["row"]]
    return np.concatenate([np.empty(0, np.int64), *(rows[frontier(*values[rows].T)] for rows in groups)])


def spread_out(points: pd.DataFrame, count: int, quality: str = "recall") -> pd.DataFrame:
    """A few points of each method's curve, equally far apart along it, the sparsest the last.

    They are what is tried on a task: a metric takes a pass over the data for each. Curves begin with the graph of all
    pairs, which is attention itself. Where the quality falls steeply points are close in sparsity.

    Args:
        points: of curves, see `curve`.
        count: how many of each method, at most all.
        quality: that of the curves.
    """
    chosen = [points[:0]]
    for _, rows in points.groupby("method", sort=False):
        sparsity, values = rows[["sparsity", quality]].to_numpy(np.float64).T
        along = np.hypot(np.diff(sparsity, prepend=0), np.diff(values, prepend=1)).cumsum()
        places: list[int] = []
        for target in np.linspace(along[-1], 0, count, endpoint=False)[: len(rows)]:
            gaps = np.abs(along - target)
            gaps[places] = np.inf
            places.append(int(gaps.argmin()))
        chosen.append(rows.iloc[sorted(places)])
    return pd.concat(chosen, ignore_index=True)
