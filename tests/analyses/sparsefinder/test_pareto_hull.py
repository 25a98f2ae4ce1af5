"""The best points, hulls and areas against comparing all points and lines between them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.analyses.sparsefinder.pareto_hull import area, frontier, hull

points = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12)


@given(points)
def test_no_point_of_the_frontier_is_beaten(drawn: list[tuple[float, float]]) -> None:
    sparsity, quality = (np.array(values) for values in zip(*drawn, strict=True))
    places = frontier(sparsity, quality)
    assert (np.diff(sparsity[places]) > 0).all()
    assert (np.diff(quality[places]) < 0).all()
    for s, q in drawn:
        assert any(sparsity[p] >= s and quality[p] >= q for p in places)


@given(points, st.floats(0, 1), st.floats(0, 1))
def test_the_hull_is_the_best_mixture_of_two_graphs(
    drawn: list[tuple[float, float]], place: float, lowest: float
) -> None:
    """At every sparsity: of all pairs of points, the ends among them, the best of the lines that pass there."""
    sparsity, quality = (np.array(values) for values in zip(*drawn, strict=True))
    known = [*drawn, (0.0, 1.0), (1.0, lowest)]
    best = -1.0
    for (x, y), (far, other) in product(known, repeat=2):
        if x <= place <= far:
            best = max(best, y if far == x else y + (other - y) * (place - x) / (far - x), y if x == place else -1.0)
    assert np.interp(place, *hull(sparsity, quality, (1.0, lowest))) == pytest.approx(best, abs=1e-9)


@given(points, st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_the_area_by_summing_up_and_with_one_more_point(
    drawn: list[tuple[float, float]], another: tuple[float, float]
) -> None:
    sparsity, quality = (np.array(values) for values in zip(*drawn, strict=True))
    found = area(sparsity, quality)
    steps = (np.arange(20_000) + 0.5) / 20_000
    assert found == pytest.approx(float(np.interp(steps, *hull(sparsity, quality)).mean()), abs=2e-3)
    assert 0.5 - 1e-12 <= found <= 1
    more = np.append(sparsity, another[0]), np.append(quality, another[1])
    assert area(*more) >= found - 1e-12


@given(st.floats(0, 1), st.lists(st.floats(0, 1), max_size=8))
def test_random_graphs_have_a_half_and_nothing_is_above_attention_itself(gold: float, kept: list[float]) -> None:
    by_chance = np.array(kept, float)
    assert area(by_chance, 1 - by_chance) == pytest.approx(0.5)
    # Parts of the pairs with weight, and more pairs than those: what a perfect prediction gives at other sparsities
    perfect = np.minimum(1.0, (1 - by_chance) / (1 - gold)) if gold < 1 else np.ones_like(by_chance)
    own = np.append(by_chance, gold), np.append(perfect, 1.0)
    assert area(*own) == pytest.approx((1 + gold) / 2)


def test_areas_at_the_ends() -> None:
    assert area(np.array([1.0]), np.array([1.0])) == 1.0
    assert area(np.array([0.0]), np.array([1.0])) == 0.5
    assert area(np.array([]), np.array([])) == 0.5
    assert area(np.array([0.5, 0.8]), np.array([1.0, 0.6])) == pytest.approx(0.5 + 0.3 * 0.8 + 0.2 * 0.3)
    assert area(np.array([0.5]), np.array([20.0]), (30.0, 10.0)) == pytest.approx(20.0)
