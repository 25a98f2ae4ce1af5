"""Cutting heads out of the weights of an attention module, and putting zeros in their place again."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headlens.errors import UnsupportedModelError
from headlens.weights.projections import HeadProjections, projections

# Left on an attention module that lost heads: the numbers its remaining heads had in the original model.
LEFT = "headlens_heads_left"
# And how many it had.
BEFORE = "headlens_heads_before"
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads")


def heads_left(module: nn.Module) -> tuple[int, ...] | None:
    """The original numbers of the heads of a module, in the order of its weights; None if none was ever cut out."""
    found: tuple[int, ...] | None = getattr(module, LEFT, None)
    return found


def numbers_of(model: nn.Module, name: str) -> tuple[int, ...]:
    """The original numbers of the heads an attention module has, in the order of its weights.

    Raises:
        UnsupportedModelError: see `projections`.
    """
    left = heads_left(model.get_submodule(name))
    return tuple(range(projections(model, name).n_heads)) if left is None else left


def heads_before(model: nn.Module, name: str) -> int:
    """How many heads an attention module had in the original model.

    Raises:
        UnsupportedModelError: see `projections`.
    """
    before: int | None = getattr(model.get_submodule(name), BEFORE, None)
    return projections(model, name).n_heads if before is None else before


def check_shrinks(model: nn.Module, name: str, left: Sequence[int]) -> None:
    """Refuse what `shrink` cannot do, before anything is changed.

    Raises:
        UnsupportedModelError: see `projections`; and if the module would lose all its heads and reshapes by their
            number (Whisper): of no heads and no features torch cannot tell the length.
    """
    projections(model, name)
    module = model.get_submodule(name)
    named = set(inspect.unwrap(type(module).forward).__code__.co_names)
    if not left and named & set(_HEAD_COUNTS):
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}) cannot run without any head.", "Leave one in each of its layers."
        )


def shrink(model: nn.Module, name: str, left: Sequence[int]) -> None:
    """Cut all heads but these out of an attention module, in place; it may lose all of them.

    A head's rows go from the query, key and value projections, with their biases, and its columns from the output
    projection, whose bias stays.

    Args:
        model: holds the module.
        name: of the module.
        left: original numbers of heads that it still has.

    Raises:
        UnsupportedModelError: see `projections`.
    """
    module = model.get_submodule(name)
    parts = projections(model, name)
    numbers = numbers_of(model, name)
    rows = _features([numbers.index(h) for h in left], parts.head_size)
    before = heads_before(model, name)
    _replace(parts, rows)
    _count(module, parts, len(left))
    setattr(module, LEFT, tuple(left))
    setattr(module, BEFORE, before)


def refill(model: nn.Module, name: str) -> None:
    """Give an attention module its original shape, in place: zeros where heads were cut out."""
    module = model.get_submodule(name)
    left = heads_left(module)
    if left is None:
        return
    parts, n_heads = projections(model, name), heads_before(model, name)
    width, rows = n_heads * parts.head_size, _features(left, parts.head_size)
    for layer in parts.inward:
        _set(layer, "weight", _spread(layer.weight, 0, rows, width))
        if layer.bias is not None:
            _set(layer, "bias", _spread(layer.bias, 0, rows, width))
        layer.out_features = width
    _set(parts.output, "weight", _spread(parts.output.weight, 1, rows, width))
    parts.output.in_features = width
    _count(module, parts, n_heads)
    delattr(module, LEFT)
    delattr(module, BEFORE)


def _features(positions: Sequence[int], size: int) -> list[int]:
    return [p * size + i for p in positions for i in range(size)]


def _replace(parts: HeadProjections, rows: list[int]) -> None:
    for layer in parts.inward:
        _set(layer, "weight", _taken(layer.weight, 0, rows))
        if layer.bias is not None:
            _set(layer, "bias", _taken(layer.bias, 0, rows))
        layer.out_features = len(rows)
    _set(parts.output, "weight", _taken(parts.output.weight, 1, rows))
    parts.output.in_features = len(rows)


def _taken(tensor: Tensor, axis: int, rows: list[int]) -> Tensor:
    # Contiguous, for weights cut out of columns; a model being loaded has its tensors on the device "meta".
    return tensor.detach().index_select(axis, torch.tensor(rows, dtype=torch.long, device=tensor.device)).contiguous()


def _spread(tensor: Tensor, axis: int, rows: list[int], width: int) -> Tensor:
    shape = list(tensor.shape)
    shape[axis] = width
    index = torch.tensor(rows, dtype=torch.long, device=tensor.device)
    return tensor.new_zeros(shape).index_copy(axis, index, tensor.detach())


def _set(layer: nn.Linear, name: str, value: Tensor) -> None:
    before: nn.Parameter = getattr(layer, name)
    setattr(layer, name, nn.Parameter(value, requires_grad=before.requires_grad))


def _count(module: nn.Module, parts: HeadProjections, n_heads: int) -> None:
    for attribute in _HEAD_COUNTS:
        if attribute in vars(module):
            setattr(module, attribute, n_heads)
    if "all_head_size" in vars(module):
        module.all_head_size = n_heads * parts.head_size  # type: ignore[assignment]
