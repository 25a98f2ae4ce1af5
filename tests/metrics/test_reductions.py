"""Reductions over keys against plain torch and written-out loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headlens.metrics import reductions
from headlens.metrics.reductions import count, dot, entropy, largest, log_

# numpy takes over from torch at 32 keys.
shapes = st.tuples(st.integers(0, 3), st.integers(1, 3), st.sampled_from([1, 2, 7, 31, 32, 33, 100]))


def numbers(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Few different numbers, so that many tie."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, 4, shape, generator=generator) / 4).to(dtype)


@given(shape=shapes, seed=st.integers(0, 999), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_the_first_of_several_largest_numbers(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> None:
    values = numbers(shape, seed, dtype)
    found, place = largest(values)
    rows = values.reshape(-1, shape[-1]).tolist()
    assert found.flatten().tolist() == [max(r) for r in rows]
    assert place.flatten().tolist() == [r.index(max(r)) for r in rows]
    assert found.shape == place.shape == shape[:-1]
    assert found.dtype == dtype


@given(shape=shapes, seed=st.integers(0, 999), broadcast=st.booleans())
def test_sums_of_products(shape: tuple[int, ...], seed: int, broadcast: bool) -> None:
    first, second = numbers(shape, seed), numbers(shape[-1:] if broadcast else shape, seed + 1)
    assert torch.allclose(dot(first, second), (first.double() * second).sum(-1).float(), atol=1e-5)


@given(shape=shapes, seed=st.integers(0, 999), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_entropy_where_some_weights_are_zero(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> None:
    weights = numbers(shape, seed, dtype)
    before = weights.clone()
    expected = [-sum(w * math.log(w) for w in row if w) for row in weights.reshape(-1, shape[-1]).tolist()]
    assert entropy(weights).flatten().tolist() == pytest.approx(expected, abs=1e-4 if dtype == torch.float32 else 1e-12)
    assert torch.equal(weights, before)


def test_entropy_of_one_certain_key_is_exactly_zero_and_of_tiny_weights_finite() -> None:
    weights = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1e-40, 0.0], [0.0, 0.0, 0.0]])
    assert entropy(weights).tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert entropy(weights)[0] == 0


@pytest.mark.parametrize("place", [0, 49, 99])
def test_entropy_where_one_weight_of_many_is_zero(place: int) -> None:
    weights = torch.full((50, 100), 0.01)
    weights[30, place] = 0
    expected = torch.full((50,), math.log(100))
    expected[30] *= 0.99
    assert torch.allclose(entropy(weights), expected, atol=1e-5)


def test_counts_of_every_number_also_of_those_that_do_not_occur() -> None:
    assert count(torch.tensor([[0, 2], [2, 2]]), 5).tolist() == [1, 0, 3, 0, 0]
    assert count(torch.zeros(0, dtype=torch.int64), 2).tolist() == [0, 0]


def test_devices_without_numbers_on_the_processor_have_the_same_shapes_and_types() -> None:
    """What runs on a GPU, on tensors that have shapes alone."""
    made = {device: torch.ones(2, 3, 4, device=device) / 4 for device in ("cpu", "meta")}
    for of in (lambda x: dot(x, x), entropy, lambda x: count(x.to(torch.int64), 5)):
        here, there = (of(tensor) for tensor in made.values())
        assert (here.shape, here.dtype) == (there.shape, there.dtype)


@pytest.mark.parametrize("by_numpy", [True, False])
def test_logarithms_are_put_in_the_place_of_numbers(by_numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "_NUMPY_LOG", by_numpy)
    values = torch.tensor([1.0, math.e, 0.25])
    assert log_(values) is values
    assert values.tolist() == pytest.approx([0.0, 1.0, math.log(0.25)])


@pytest.mark.gpu
def test_the_same_on_a_gpu() -> None:
    weights = torch.softmax(torch.randn(3, 40), -1)
    on_gpu = weights.cuda()
    assert torch.equal(largest(on_gpu)[1].cpu(), largest(weights)[1])
    assert torch.allclose(entropy(on_gpu).cpu(), entropy(weights), atol=1e-6)
    assert torch.allclose(dot(on_gpu, on_gpu).cpu(), dot(weights, weights), atol=1e-6)
    assert count(torch.tensor([0, 2, 2]).cuda(), 4).tolist() == [1, 0, 2, 0]
