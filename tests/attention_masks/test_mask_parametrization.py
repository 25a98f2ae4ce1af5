"""Numbers and the masks they make, against loops over positions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headlens.attention_masks.mask_parametrization import Offsets, PositionPairs, Shape, at_ends


@given(st.integers(2, 9), st.data())
def test_offsets_make_toeplitz_matrices(n: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, n))
    values = torch.randn(2, 3, n)
    found = Offsets(n).matrix(values, length)
    assert found.shape == (2, 3, length, length)
    for i in range(length):
        for j in range(length):
            assert torch.equal(found[..., i, j], values[..., abs(i - j)])


@given(st.integers(2, 9), st.data())
def test_pairs_make_symmetric_matrices_of_all_numbers(n: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, n))
    shape = PositionPairs(n)
    values = torch.randn(2, shape.size)
    found = shape.matrix(values, length)
    numbers = iter(range(shape.size))
    for i in range(n):
        for j in range(i, n):
            number = next(numbers)
            if j < length:
                assert torch.equal(found[:, i, j], values[:, number])
                assert torch.equal(found[:, j, i], values[:, number])
    assert next(numbers, None) is None


@pytest.mark.parametrize("shape", [PositionPairs(6), Offsets(6)])
def test_counts_and_offsets_of_a_value(shape: Shape) -> None:
    """A value's share in the sum over all positions of a text is its gradient."""
    for length in (6, 4, 2):
        values = torch.zeros(shape.size, requires_grad=True)
        matrix = shape.matrix(values, length)
        if isinstance(shape, Offsets):
            matrix = matrix[1:-1, 1:-1]
        (expected,) = torch.autograd.grad(matrix.sum(), values)
        assert torch.equal(shape.counts(length), expected)
    for number, offset in enumerate(shape.offsets().tolist()):
        one = torch.zeros(shape.size).index_fill(0, torch.tensor([number]), 1.0)
        where = shape.matrix(one, 6).nonzero()
        assert set((where[:, 0] - where[:, 1]).abs().tolist()) == {offset}


def test_ends_are_those_of_each_sentence() -> None:
    found = at_ends(torch.tensor([4, 2]), 4)
    expected = torch.zeros(2, 4, 4, dtype=torch.bool)
    for sentence, last in enumerate((3, 1)):
        for place in (0, last):
            expected[sentence, place, :] = True
            expected[sentence, :, place] = True
    assert torch.equal(found, expected)
