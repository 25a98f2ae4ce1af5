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
    for old, new in zip((p.module for p in before.inward), (p.module for p in after.inward), strict=True):
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
    assert torch.equal(projections(model, place).inward[2].module.weight, of_heads(before.inward[2].module.weight, [3]))
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
    projections(model, place).inward[0].module.weight.requires_grad_(requires_grad=False)
    shrink(model, place, [1])
    assert not projections(model, place).inward[0].module.weight.requires_grad
    assert projections(model, place).inward[1].module.weight.requires_grad


@pytest.mark.parametrize("left", [[0, 2], [1, 3], [2, 3], [0, 1]])
def test_keys_that_heads_share_go_with_the_last_of_these(left: list[int]) -> None:
    """Of four heads, two share keys and values each."""
    model = zoo.ZOO["llama"].build()
    place = find_sites(model)[0].module
    module, before = model.get_submodule(place), copy.deepcopy(model.state_dict())
    shrink(model, place, left)
    groups = sorted({head // 2 for head in left})
    assert module.num_key_value_groups == len(left) // len(groups)
    for name, heads in (("q_proj", left), ("k_proj", groups), ("v_proj", groups)):
        weight = model.get_submodule(f"{place}.{name}").weight
        assert torch.equal(weight, of_heads(before[f"{place}.{name}.weight"], heads))
    assert torch.equal(module.o_proj.weight, of_heads(before[f"{place}.o_proj.weight"], left, 1))
    refill(model, place)
    assert module.num_key_value_groups == 2
    for name, heads, count in (("q_proj", left, 4), ("k_proj", groups, 2), ("v_proj", groups, 2)):
        weight, original = model.get_submodule(f"{place}.{name}").weight, before[f"{place}.{name}.weight"]
        expected = [of_heads(original, [h]) * (h in heads) for h in range(count)]
        assert torch.equal(weight, torch.cat(expected))


@pytest.mark.parametrize("left", [[0], [1, 2, 3]])
def test_what_is_left_of_groups_is_alike_or_nothing(left: list[int]) -> None:
    model = zoo.ZOO["llama"].build()
    place = find_sites(model)[0].module
    if len(left) == 1:
        check_shrinks(model, place, left)
        return
    with pytest.raises(
        UnsupportedModelError, match=r"Each 2 heads of .* share keys.* these heads leave 1, 2\.\nName as"
    ):
        check_shrinks(model, place, left)


@pytest.mark.parametrize("name", ["whisper", "opt", "gpt2"])
def test_a_module_that_reshapes_by_the_number_of_heads_keeps_one(name: str) -> None:
    model = zoo.ZOO[name].build()
    place = find_sites(model)[0].module
    check_shrinks(model, place, [0])
    with pytest.raises(UnsupportedModelError, match=r"cannot run without any head.\nKeep at least one"):
        check_shrinks(model, place, [])
