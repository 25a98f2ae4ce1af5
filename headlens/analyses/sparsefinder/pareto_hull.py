"""Curves of quality over sparsity: the points that no other one beats, the hull around them, the area under it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Ends = tuple[float, float] | tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
_NEXT_TO_NOTHING = 1e-12  # of sparsity


def frontier(sparsity: np.ndarray[Any, Any], quality: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which points no other one beats: places, from the densest to the sparsest.

    Args:
        sparsity: of every point.
        quality: recall, or a metric of which more is better.
    """
    order = np.lexsort((-quality, -sparsity))  # the sparsest first, of these the best first
    best, found = -np.inf, []
    for place in order:
        if quality[place] > best:
            best = quality[place]
            found.append(place)
    return np.array(found[::-1], dtype=np.int64)


def hull(
    sparsity: np.ndarray[Any, Any], quality: np.ndarray[Any, Any], ends: tuple[float, float] = (1.0, 0.0)
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What a method reaches at every sparsity: corners of the lowest concave line above its points and two ends.

    The ends are the graphs of all pairs and of none, which need no method. Whoever draws lots between two graphs
    reaches every point on the line between them, as in hulls of ROC curves (Provost and Fawcett 2001).

    Args:
        sparsity: of every point, (points,).
        quality: recall, or a metric of which more is better.
        ends: the quality with all pairs and with none.

    Returns:
        Sparsities from 0 to 1, and the quality there.
    """
    places, values = zip(*_corners(sparsity, quality, ends), strict=True)
    return np.array(places), np.array(values)


def area(
    sparsity: np.ndarray[Any, Any], quality: np.ndarray[Any, Any], ends: Ends = (1.0, 0.0)
) -> np.ndarray[Any, Any]:
    """The area under `hull`: more points never make it smaller.

    Of recall it is 1/2 for graphs that are drawn at random, whose recall is 1 - sparsity, and (1 + s) / 2 for those
    that find everything and nothing else, where attention has the sparsity s: their parts have a recall of
    (1 - sparsity) / (1 - s) beyond s.

    Args:
        sparsity: of every point, (..., points), any number of them.
        quality: recall, or a metric of which more is better.
        ends: the quality with all pairs and with none; numbers, or (..., 1) each.

    Returns:
        (...), NaN where a point or an end is.
    """
    known = np.isfinite(sparsity + quality + np.add(*ends)).all(axis=-1)
    found = np.where(known, 0.0, np.nan)
    whole, none = (np.nan_to_num(end) for end in ends)
    corners = _corners(np.nan_to_num(sparsity), np.nan_to_num(quality), (whole, none))
    x, y = next(corners)
    for next_x, next_y in corners:
        found = found + (next_x - x) * (next_y + y) / 2
        x, y = next_x, next_y
    return found


def _corners(
    sparsity: np.ndarray[Any, Any], quality: np.ndarray[Any, Any], ends: Ends
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Corners of hulls from the left to the right, (...); a hull that is done stays at its end until all are."""
    shape = (*sparsity.shape[:-1], 1)
    places = np.concatenate(
        [np.where(sparsity > _NEXT_TO_NOTHING, sparsity, 0.0).clip(max=1.0), np.ones(shape)], axis=-1
    )
    values = np.concatenate([quality, np.full(shape, ends[1])], axis=-1)
    x, y = np.zeros(shape), np.where(places == 0, values, ends[0]).max(axis=-1, keepdims=True)
    y = np.maximum(y, ends[0])
    yield x[..., 0], y[..., 0]
    while (x < 1).any():
        ahead = places > x
        slopes = np.where(ahead, (values - y) / np.where(ahead, places - x, 1.0), -np.inf)
        # Of points on one line the farthest
        steepest = np.where(slopes == slopes.max(axis=-1, keepdims=True), places, -np.inf).argmax(axis=-1)[..., None]
        done = x >= 1
        x, y = (
            np.where(done, own, np.take_along_axis(all_of_them, steepest, axis=-1))
            for own, all_of_them in ((x, places), (y, values))
        )
        yield x[..., 0], y[..., 0]
