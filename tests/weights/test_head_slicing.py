"""Rows and columns of heads, against slices taken by hand."""

import copy

import pytest
import torch
import zoo
from torch import Tensor

from headlens.attention.sites import find_sites
from headlens.errors import UnsupportedModelError
from headlens.weights.head_slicing import (
    check_shrinks,
    heads_before,
    heads_left,
    numbers_of,
    projections,
    refill,
    shrink,
)


def of_heads(tensor: Tensor, heads: list[int], axis: int = 0) -> Tensor:
    """The slices of some heads of 8 features, put together by hand."""
    return torch.cat([tensor.narrow(axis, 8 * h, 8) for h in heads], axis) if heads else tensor.narrow(axis, 0, 0)


@pytest.mark.parametrize("name", ["bert", "albert", "distilbert", "bart"])
@pytest.mark.parametrize("left", [[0, 1, 2, 3], [0, 2], [3], []])
def test_what_is_left_is_what_was_there(name: str, left: list[int]) -> None:
    model = zoo.ZOO[name].build()
    place = find_sites(model)[0].module
    before = copy.deepcopy(projections(model, place))
    shrink(model, place, left)
    after = projections(model, place)
    for old, new in zip(before.inward, after.inward, strict=True):
        assert torch.equal(new.weight, of_heads(old.weight, left))
        assert torch.equal(new.bias, of_heads(old.bias, left))
        assert (new.out_features, new.in_features) == (8 * len(left), zoo.HIDDEN)
    assert torch.equal(after.output.weight, of_heads(before.output.weight, left, 1))
    assert torch.equal(after.output.bias, before.output.bias)
    assert after.output.in_features == 8 * len(left)
    assert after.output.weight.is_contiguous()
    assert find_sites(model)[0].n_heads == len(left)


def test_numbers_are_those_of_the_original_also_the_second_time() -> None:
    model = zoo.ZOO["bert"].build()
    place = find_sites(model)[1].module
    before = copy.deepcopy(projections(model, place))
    assert heads_left(model.get_submodule(place)) is None
    assert numbers_of(model, place) == (0, 1, 2, 3)
    shrink(model, place, [0, 2, 3])
    assert numbers_of(model, place) == (0, 2, 3)
    shrink(model, place, [3])
    assert (numbers_of(model, place), heads_before(model, place)) == ((3,), 4)
    assert torch.equal(projections(model, place).value.weight, of_heads(before.value.weight, [3]))
    assert numbers_of(model, find_sites(model)[0].module) == (0, 1, 2, 3)


@pytest.mark.parametrize("left", [[1], []])
def test_refilled_weights_are_the_original_with_zeros(left: list[int]) -> None:
    model = zoo.ZOO["marian"].build()
    original = copy.deepcopy(model.state_dict())
    place = find_sites(model)[0].module
    shrink(model, place, left)
    refill(model, place)
    assert heads_left(model.get_submodule(place)) is None
    assert find_sites(model)[0].n_heads == heads_before(model, place) == 4
    found = model.state_dict()
    assert {k: v.shape for k, v in found.items()} == {k: v.shape for k, v in original.items()}
    for key, value in found.items():
        if not key.startswith(f"{place}.") or key.endswith("out_proj.bias"):
            assert torch.equal(value, original[key])
            continue
        axis = 1 if "out_proj" in key else 0
        for head in range(4):
            expected = of_heads(original[key], [head], axis)
            assert torch.equal(of_heads(value, [head], axis), expected if head in left else torch.zeros_like(expected))


def test_gradients_are_asked_for_as_before() -> None:
    model = zoo.ZOO["bert"].build()
    place = find_sites(model)[0].module
    projections(model, place).query.weight.requires_grad_(requires_grad=False)
    shrink(model, place, [1])
    assert not projections(model, place).query.weight.requires_grad
    assert projections(model, place).key.weight.requires_grad


@pytest.mark.parametrize("name", ["whisper", "opt"])
def test_a_module_that_reshapes_by_the_number_of_heads_keeps_one(name: str) -> None:
    model = zoo.ZOO[name].build()
    place = find_sites(model)[0].module
    check_shrinks(model, place, [0])
    with pytest.raises(UnsupportedModelError, match=r"cannot run without any head.\nKeep at least one"):
        check_shrinks(model, place, [])
