"""The theorem of SparseBERT as its notebook builds it, against hardmax by loops, torch's attention, and the grid."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import numpy.typing as npt
import pytest
import torch

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "sparsebert2021.ipynb"
Numbers = npt.NDArray[np.float64]
COLD = 1e-9


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    """The functions of the notebook, by name."""
    (cell,) = (c for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.id == "theorem-01")
    names: dict[str, Any] = {}
    exec(cell.source, names)
    return names


def inputs(step: float) -> Numbers:
    """All inputs of the grid, each token at its place."""
    return np.array(list(product(np.arange(0, 1, step), repeat=3))) + np.arange(3)


def mixtures(x: Numbers) -> Numbers:
    first, second, third = x.T
    return np.stack([first * third, (first + second + third) / 3, np.abs(first - second)], axis=1)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_layers_are_two_heads_of_width_1_without_the_diagonal(built: dict[str, Any], n: int) -> None:
    z = np.random.default_rng(0).random((5, n)) * 3
    temperature, out = 0.3, torch.tensor(z)
    mask = ~torch.eye(n, dtype=torch.bool)
    for b, weight in ((0.4, 2.0), (1.1, -0.5)):
        query, key = torch.tensor(z - b)[..., None] / temperature, torch.tensor(z)[..., None]
        head = torch.nn.functional.scaled_dot_product_attention(query, key, key, mask, scale=1.0)
        out = out + weight * head[..., 0]
    assert built["attention"](z, 0.4, 1.1, (2.0, -0.5), temperature) == pytest.approx(out.numpy(), abs=1e-12)


def test_feed_forward_layers_have_four_units_at_most(built: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        built["hidden"](np.zeros((1, 3)), range(5), range(5))


def test_selective_shifts_move_one_token_by_what_the_others_differ(built: dict[str, Any]) -> None:
    """In the limit; a token below the level or above it stays."""
    step = 1 / 4
    for row in inputs(step):
        for level in np.arange(0, 3, step):
            moved = built["attention"](row[None], level - step / 2, level + step / 2, (5.0, -5.0), COLD)[0]
            for j, token in enumerate(row):
                others = np.delete(row, j)
                shift = 5 * (others.max() - others.min()) if token == level else 0.0
                assert moved[j] == pytest.approx(token + shift, abs=1e-9)


@pytest.mark.parametrize("step", [1 / 2, 1 / 4])
def test_every_token_tells_the_whole_input(built: dict[str, Any], step: float) -> None:
    scale = 4 / step
    expected = []
    for row in inputs(step):
        z = row.tolist()
        for level in np.arange(0, 3, step).tolist():
            others = [[z[k] for k in range(3) if k != j] for j in range(3)]
            z = [z[j] + scale * (max(others[j]) - min(others[j])) * (z[j] == level) for j in range(3)]
        expected.append([z[j] + scale * max(z[k] for k in range(3) if k != j) for j in range(3)])
    found = built["codes"](inputs(step), step, COLD)
    assert found == pytest.approx(np.array(expected), rel=1e-12)
    assert np.diff(np.sort(found.ravel())).min() > 4


def test_tokens_are_rounded_down_but_for_thin_slices(built: dict[str, Any]) -> None:
    step, edge = 1 / 4, 1e-3
    x = np.random.default_rng(0).random((1000, 3)) + np.arange(3)
    sure = x % step < step - edge
    assert sure.mean() > 0.99
    assert built["quantized"](x, step, 12, edge)[sure] == pytest.approx(np.floor(x / step)[sure] * step, abs=1e-9)


def test_the_error_falls_with_the_temperature_and_then_with_the_grid(built: dict[str, Any]) -> None:
    x = np.random.default_rng(1).random((400, 3))
    floors = []
    for step in (1 / 2, 1 / 4):
        sure = (x % step < step * (1 - 1e-3)).all(axis=1)
        grid_only = mixtures(np.floor(x / step) * step + step / 2)
        results = [built["network"](mixtures, step, t)(x) for t in (0.1, 0.01, 1e-4)]
        errors = [float(np.abs(result - mixtures(x))[sure].mean()) for result in results]
        # The coarse grid is at its floor from 0.01 on.
        assert errors[0] > 2 * errors[1] - 0.02
        assert errors[1] > errors[2] - 1e-3
        # What is left is the piecewise-constant function on the grid; sums of ReLUs up to 1e10 cost digits.
        assert results[-1][sure] == pytest.approx(grid_only[sure], abs=1e-4)
        floors.append(errors[-1])
    assert floors[1] < 0.6 * floors[0]


@pytest.mark.parametrize("temperature", [10.0, 1.0, 1e-3, COLD])
def test_of_two_tokens_no_shift_selects_any(built: dict[str, Any], temperature: float) -> None:
    """The only key has weight 1: a head returns the other token, whatever is asked for, and two heads cancel out."""
    pairs = np.random.default_rng(2).random((6, 2)) + np.arange(2)
    for level in (-1.0, 0.0, 0.5, 1.5, 9.0):
        shifted = built["attention"](pairs, level - 0.1, level + 0.1, (7.0, -7.0), temperature)
        assert shifted == pytest.approx(pairs, abs=1e-12)
        single = built["attention"](pairs, level - 0.1, level + 0.1, (1.0, 0.0), temperature)
        assert single == pytest.approx(pairs + pairs[:, ::-1], abs=1e-12)
