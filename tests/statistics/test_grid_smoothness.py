"""Correlation over depth and Moran's I: against loops, closed forms, all permutations, and their error rates."""

from __future__ import annotations

import math
from itertools import pairwise, permutations, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiers import rest_slow, rest_slow_rows

from headlens.statistics.grid_smoothness import GridStatistic, depth_correlation, difference, morans_i

Grid = npt.NDArray[np.float64]
NUMBERS = st.one_of(st.just(math.nan), st.integers(-8, 8).map(float))
GRIDS = st.tuples(st.integers(1, 5), st.integers(1, 6)).flatmap(lambda s: arrays(np.float64, s, elements=NUMBERS))


def naive_moran(grid: Grid) -> float:
    """Moran's I by its definition, with a matrix of weights over all pairs of places."""
    places = [tuple(place) for place in np.argwhere(np.isfinite(grid))]
    x = np.array([grid[place] for place in places])
    weights = np.array([[float(abs(a - c) + abs(b - d) == 1) for c, d in places] for a, b in places])
    z = x - x.mean()
    return float(len(x) / weights.sum() * (z @ weights @ z) / (z @ z))


def naive_correlation(grid: Grid) -> float:
    found = []
    for one, other in pairwise(grid):
        both = np.isfinite(one) & np.isfinite(other)
        if both.sum() >= 3 and np.ptp(one[both]) > 0 and np.ptp(other[both]) > 0:
            found.append(np.corrcoef(one[both], other[both])[0, 1])
    return float(np.mean(found)) if found else math.nan


def linked(grid: Grid) -> bool:
    known = np.isfinite(grid)
    return bool((known[1:] & known[:-1]).any() or (known[:, 1:] & known[:, :-1]).any())


@given(GRIDS)
def test_morans_i_is_that_of_the_definition(grid: Grid) -> None:
    found = morans_i(grid, permutations=3)
    numbers = grid[np.isfinite(grid)]
    if len(numbers) < 3 or np.ptp(numbers) == 0 or not linked(grid):
        assert np.isnan([found.value, found.p_value]).all()
    else:
        assert found.value == pytest.approx(naive_moran(grid), abs=1e-9)
        assert found.p_value in (0.25, 0.5, 0.75, 1.0)
    assert np.isnan([found.low, found.high]).all()


@given(GRIDS)
def test_the_correlation_is_that_of_every_pair_of_layers(grid: Grid) -> None:
    found = depth_correlation(grid, permutations=3)
    assert found.value == pytest.approx(naive_correlation(grid), abs=1e-9, nan_ok=True)
    assert math.isnan(found.p_value) == math.isnan(found.value)
    assert math.isnan(found.low) or found.low <= found.value <= found.high


def test_by_hand() -> None:
    chessboard = np.indices((4, 4)).sum(axis=0) % 2 * 2.0 - 1
    assert morans_i(chessboard).value == pytest.approx(-1)
    # z = -1, 0, 1 in a row: 2 links of both directions with products 0 and 0
    assert morans_i(np.array([[1.0, 2.0, 3.0]])).value == pytest.approx(0)
    # z = -2, -1, 0, 1, 2: products 2, 0, 0, 2 of 4 links; 5/8 * 8/10
    assert morans_i(np.arange(5.0)[None]).value == pytest.approx(0.5)
    assert morans_i(np.arange(5.0)[:, None]).value == pytest.approx(0.5)
    layers = np.array([[0.0, 1, 2], [1, 0, -1], [2, 4, 6]])
    assert depth_correlation(layers).value == pytest.approx(-1)
    assert np.isnan([depth_correlation(layers).low, depth_correlation(layers).high]).all()


def every_grid(grid: Grid, *, within_layers: bool) -> list[Grid]:
    if within_layers:
        return [np.array(layers) for layers in product(*(list(permutations(layer)) for layer in grid))]
    return [np.array(numbers).reshape(grid.shape) for numbers in permutations(grid.ravel())]


@pytest.mark.parametrize("statistic", [morans_i, depth_correlation])
def test_p_values_and_what_chance_gives_against_every_permutation(statistic: Any) -> None:
    naive = naive_moran if statistic is morans_i else naive_correlation
    shape = (2, 3) if statistic is morans_i else (3, 3)
    for seed in range(3):
        grid = np.random.default_rng(seed).normal(size=shape)
        found = statistic(grid, permutations=4000, seed=seed)
        every = np.array([naive(other) for other in every_grid(grid, within_layers=naive is naive_correlation)])
        assert every.mean() == pytest.approx(found.expected, abs=1e-12)
        exact = (np.abs(every - every.mean()) >= abs(found.value - every.mean()) - 1e-9).mean()
        assert found.p_value == pytest.approx(exact, abs=4 * math.sqrt(0.25 / 4000))


@pytest.mark.parametrize("n_draws", rest_slow([1600, 4000]))
def test_the_variance_of_morans_i_is_that_of_the_closed_form(n_draws: int) -> None:
    """Cliff and Ord (1981), equation 2.34, under randomisation."""
    grid = np.random.default_rng(0).gamma(1.0, size=(5, 6))
    places = [*np.ndindex(grid.shape)]
    n, z = grid.size, grid.ravel() - grid.mean()
    w = np.array([[float(abs(a - c) + abs(b - d) == 1) for c, d in places] for a, b in places])
    s0, s1, s2 = w.sum(), 2 * (w**2).sum(), ((2 * w.sum(axis=1)) ** 2).sum()
    b2 = n * (z**4).sum() / (z**2).sum() ** 2
    first = n * ((n**2 - 3 * n + 3) * s1 - n * s2 + 3 * s0**2) - b2 * ((n**2 - n) * s1 - 2 * n * s2 + 6 * s0**2)
    variance = first / ((n - 1) * (n - 2) * (n - 3) * s0**2) - 1 / (n - 1) ** 2
    generator = np.random.default_rng(1)
    draws = [
        morans_i(generator.permutation(grid.ravel()).reshape(grid.shape), permutations=0).value for _ in range(n_draws)
    ]
    assert np.mean(draws) == pytest.approx(-1 / (n - 1), abs=4 * math.sqrt(variance / n_draws))
    assert np.var(draws) == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("grids", rest_slow([40, 600]))
@pytest.mark.parametrize("statistic", [morans_i, depth_correlation])
def test_p_values_are_uniform_where_there_is_nothing(statistic: Any, grids: int) -> None:
    generator = np.random.default_rng(0)
    p = np.array([statistic(generator.gamma(1.0, size=(6, 8)), permutations=99, seed=i).p_value for i in range(grids)])
    for level in (0.05, 0.2, 0.5):
        assert (p <= level).mean() == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / grids))


def heads_over_depth(generator: np.random.Generator, rho: float, shape: tuple[int, int]) -> Grid:
    """Heads that each go on from one depth to the next, with a correlation that is known."""
    noise = generator.normal(size=shape)
    grid = [noise[0]]
    for layer in noise[1:]:
        grid.append(rho * grid[-1] + math.sqrt(1 - rho**2) * layer)
    return np.array(grid)


def test_the_interval_is_the_jackknife_of_fishers_z() -> None:
    """Heads left out one by one, and Student's t with one degree of freedom less than there are heads."""
    grid = np.random.default_rng(3).normal(size=(5, 6)).cumsum(axis=0)
    z = [math.atanh(depth_correlation(np.delete(grid, head, axis=1)).value) for head in range(6)]
    mean = sum(z) / 6
    error = math.sqrt(5 / 6 * sum((value - mean) ** 2 for value in z))
    result, half = depth_correlation(grid), 2.5705818366147395 * error  # the .975 quantile of t, 5 degrees of freedom
    assert math.atanh(result.low) == pytest.approx(math.atanh(result.value) - half)
    assert math.atanh(result.high) == pytest.approx(math.atanh(result.value) + half)


@pytest.mark.parametrize(("draws", "least"), rest_slow_rows([(40, 36), (200, 182)]))
@pytest.mark.parametrize("heads", rest_slow([4, 12]))
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_the_interval_covers_what_it_should(heads: int, rho: float, draws: int, least: int) -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(draws):
        found = depth_correlation(heads_over_depth(generator, rho, (8, heads)), permutations=0)
        covered += found.low <= rho <= found.high
    assert covered >= least


def test_the_interval_of_a_difference() -> None:
    one, other = GridStatistic(0.9, 0.7, 0.95, 0.0, 0.01), GridStatistic(0.1, -0.2, 0.5, 0.0, 0.8)
    found = difference(one, other)
    assert found.value == pytest.approx(0.8)
    assert found.low == pytest.approx(0.8 - math.sqrt(0.2**2 + 0.4**2))
    assert found.high == pytest.approx(0.8 + math.sqrt(0.05**2 + 0.3**2))
    assert np.isnan([found.expected, found.p_value]).all()


@pytest.mark.parametrize(("draws", "least"), rest_slow_rows([(20, 18), (200, 182)]))
def test_the_interval_of_a_difference_covers_what_it_should(draws: int, least: int) -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(draws):
        shared, apart = (heads_over_depth(generator, rho, (8, 8)) for rho in (0.9, 0.0))
        own = difference(depth_correlation(shared, permutations=0), depth_correlation(apart, permutations=0))
        covered += own.low <= 0.9 <= own.high
    assert covered >= least


def test_shared_heads_are_found_and_what_layers_have_in_common_is_left_to_morans_i() -> None:
    generator = np.random.default_rng(0)
    levels = np.arange(6.0)[:, None] * 3
    shared = generator.normal(size=8) + 0.1 * generator.normal(size=(6, 8))
    apart = levels + generator.normal(size=(6, 8))
    assert depth_correlation(shared).value > 0.9
    assert depth_correlation(shared).p_value == pytest.approx(0.0001)
    assert depth_correlation(apart).p_value > 0.05
    assert morans_i(apart).p_value == pytest.approx(0.0001)
    moved, scaled = depth_correlation(shared + levels), depth_correlation(shared * np.exp(levels))
    for name, value in vars(depth_correlation(shared)).items():
        assert [vars(own)[name] for own in (moved, scaled)] == pytest.approx([value] * 2, rel=1e-6)


def test_the_seed_decides_on_the_permutations() -> None:
    grid = np.random.default_rng(0).normal(size=(4, 5))
    for statistic in (morans_i, depth_correlation):
        p = [statistic(grid, permutations=50, seed=seed).p_value for seed in (0, 0, 1, 2, 3)]
        assert p[0] == p[1]
        assert len(set(p)) > 1


@pytest.mark.parametrize("shape", [(1, 8), (8, 2), (0, 0)])
def test_what_is_not_defined_is_empty(shape: tuple[int, int]) -> None:
    grid = np.random.default_rng(0).normal(size=shape)
    found = depth_correlation(grid, permutations=9)
    assert np.isnan([found.value, found.low, found.high, found.p_value]).all()
    assert np.isnan(morans_i(np.full(shape, 0.1), permutations=9).value)
