"""Batches repeated and cut along their first axis, however deep tensors lie in what a model takes or gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor
from transformers.utils.generic import ModelOutput

from headlens.analyses.ablate.replay.lazy_tensor import LazyTensor
from headlens.errors import OptionError


def repeated(value: Any, times: int, rows: int) -> Any:
    """Tensors with as many rows repeated as a whole, (times x rows, ...); all others as they are."""
    if times == 1:
        return value
    return _mapped(value, lambda t: t.repeat(times, *(1 for _ in t.shape[1:])) if _has(t, rows) else t)


def repeated_later(value: Any, times: int, rows: int) -> Any:
    """The same for tensors of which most are never read: copied when they are."""
    if times == 1:
        return value
    return _mapped(value, lambda t: LazyTensor.repeat_of(t, times) if _has(t, rows) else t)


def part(value: Any, first: int, stop: int, rows: int) -> Any:
    """Some rows of tensors with as many rows; all others as they are."""
    return _mapped(value, lambda t: t[first:stop] if _has(t, rows) else t)


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of floating-point numbers, in order."""
    if isinstance(value, Tensor):
        yield from [value] if value.is_floating_point() else []
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from tensors(inner)


def rows_of(inputs: Mapping[str, Any]) -> int:
    """Examples of a batch: the length of its first tensor.

    Raises:
        OptionError: if there is none.
    """
    for value in inputs.values():
        if isinstance(value, Tensor) and value.dim():
            return value.shape[0]
    raise OptionError("A batch without tensors cannot be run.", "Give the model's inputs, such as input_ids.")


def _has(tensor: Tensor, rows: int) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == rows


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, ModelOutput):
        return type(value)(**{k: _mapped(v, change) for k, v in value.items()})
    if isinstance(value, dict):
        return {k: _mapped(v, change) for k, v in value.items()}
    # Named tuples take their fields one by one and occur nowhere here.
    if type(value) in (tuple, list):
        return type(value)(_mapped(v, change) for v in value)
    return value
