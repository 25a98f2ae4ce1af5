"""Caches what depends on the tokens of a batch alone, so that it is computed once and not once per layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens, to_device

F = TypeVar("F", bound=Callable[..., Any])


def once_per_batch(function: F) -> F:
    """Keep what a function of `Tokens` returns for as long as these are there; queries and keys may be one object.

    It is worked out on the processor where the tokens are there, too: its shapes depend on what is in them, for which
    a device would have to be waited for. The value must not hold the tokens it belongs to, or it would keep them alive.
    """
    # By the first tokens, within these by the second: of a pair of both as a key nobody would hold the last reference.
    values: WeakKeyDictionary[Tokens, Any] = WeakKeyDictionary()

    @wraps(function)
    def remembered(*tokens: Tokens) -> Any:
        inner = values
        for outer in tokens[:-1]:
            inner = inner.setdefault(outer, WeakKeyDictionary())
        if tokens[-1] not in inner:
            hosts = [part.host for part in tokens if part.host is not None]
            if len(hosts) == len(tokens):
                inner[tokens[-1]] = _moved(remembered(*hosts), tokens[-1].real.device)
            else:
                inner[tokens[-1]] = function(*tokens)
        return inner[tokens[-1]]

    return cast("F", remembered)


def _moved(value: Any, device: torch.device) -> Any:
    """Tensors and tokens on a device, also those within a tuple; everything else as it is."""
    if isinstance(value, Tokens):
        return value.to(device)
    if isinstance(value, Tensor):
        return to_device(value if device.type != "mps" or value.dtype != torch.float64 else value.float(), device)
    if isinstance(value, tuple):
        parts = [_moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
