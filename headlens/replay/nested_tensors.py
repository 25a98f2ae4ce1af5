"""Batches repeated and cut along their first axis, however deep tensors lie in what a model takes or gives.

Copies that most of a replay does not need are made when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from headlens.errors import OptionError

_OPS = torch.ops.aten
# What heads are taken out of vectors by, and positions out of sentences; the rest of torch needs the numbers.
_VIEWS = frozenset(
    [_OPS.view.default, _OPS._unsafe_view.default, _OPS.transpose.int, _OPS.permute.default, _OPS.slice.Tensor]
)


def repeat(tensor: Tensor, times: int) -> Tensor:
    """A tensor repeated along its first axis: (times x rows, ...)."""
    return tensor.repeat(times, *(1 for _ in tensor.shape[1:]))


class LazyTensor(Tensor):
    """Stands for a tensor that is made at the first operation on it, and then kept.

    Views of it are made later, too. A replay hands out the intact outputs of many modules in as many rows as it has,
    but only those of the last one before its start are read: what goes from one skipped module to the next is not, nor
    are the queries, keys and values of the layer that it starts in.
    """

    _shape_only: Tensor
    _make: Callable[[], Tensor] | None
    _made: Tensor | None

    @staticmethod
    def __new__(
        cls: type[LazyTensor], shape_only: Tensor, make: Callable[[], Tensor], device: torch.device
    ) -> LazyTensor:
        """Args are a tensor of the same shape on the device `meta`, what makes the real one, and where that will be."""
        later: LazyTensor = Tensor._make_wrapper_subclass(
            cls, shape_only.shape, shape_only.stride(), dtype=shape_only.dtype, device=device
        )
        later._shape_only, later._make, later._made = shape_only, make, None
        return later

    @classmethod
    def repeat_of(cls, tensor: Tensor, times: int) -> LazyTensor:
        """A tensor repeated along its first axis, see `repeat`."""
        shape_only = torch.empty(tensor.shape[0] * times, *tensor.shape[1:], dtype=tensor.dtype, device="meta")
        return cls(shape_only, partial(repeat, tensor, times), tensor.device)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operation on the real tensors; a view of a placeholder stays a placeholder."""
        if func in _VIEWS and isinstance(args[0], LazyTensor) and args[0]._made is None:
            later, *rest = args
            return cls(func(later._shape_only, *rest), lambda: func(now(later), *rest), later.device)
        return func(*tree_map(now, args), **tree_map(now, dict(kwargs or {})))


def now(value: Any) -> Any:
    """The tensor that a placeholder stands for; anything else unchanged."""
    if not isinstance(value, LazyTensor):
        return value
    if value._make is not None:
        value._made, value._make = value._make(), None
    return value._made


def repeated(value: Any, times: int, rows: int, copy: Callable[[Tensor, int], Tensor] = repeat) -> Any:
    """Tensors with as many rows repeated as a whole, (times x rows, ...), at once or later; all others as they are."""
    return value if times == 1 else _changed(value, rows, lambda t: copy(t, times))


def part(value: Any, first: int, stop: int, rows: int) -> Any:
    """Some rows of tensors with as many rows; all others as they are."""
    return _changed(value, rows, lambda t: t[first:stop])


def _changed(value: Any, rows: int, change: Callable[[Tensor], Tensor]) -> Any:
    return tree_map_only(Tensor, lambda t: change(t) if t.dim() and t.shape[0] == rows else t, value)


def tensors(value: Any) -> list[Tensor]:
    """Every tensor of floating-point numbers, in order."""
    return [t for t in tree_leaves(value) if isinstance(t, Tensor) and t.is_floating_point()]


def rows_of(inputs: Mapping[str, Any]) -> int:
    """Examples of a batch: the length of its first tensor.

    Raises:
        OptionError: if there is none.
    """
    for value in inputs.values():
        if isinstance(value, Tensor) and value.dim():
            return value.shape[0]
    raise OptionError("A batch without tensors cannot be run.", "Give the model's inputs, such as input_ids.")
