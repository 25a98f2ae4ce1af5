"""Caches what depends on the tokens of a batch alone, so that it is computed once and not once per layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from itertools import product
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

import torch

from headlens.attention.edits_and_observers import BatchTokens, Tokens, copied_together

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
# All functions that `once_per_batch` made.
_REMEMBERED: WeakSet[Any] = WeakSet()


def once_per_batch(function: F) -> F:
    """Keep what a function of `Tokens` returns for as long as these are there; queries and keys may be one object.

    It is worked out on the processor where the tokens are there, too: its shapes depend on what is in them, for which
    a device would have to be waited for. The value must not hold the tokens it belongs to, or it would keep them alive.
    """
    # By the first tokens, within these by the second: of a pair of both as a key nobody would hold the last reference.
    values: WeakKeyDictionary[Tokens, Any] = WeakKeyDictionary()

    def values_of(*tokens: Tokens) -> WeakKeyDictionary[Tokens, Any]:
        inner = values
        for outer in tokens[:-1]:
            inner = inner.setdefault(outer, WeakKeyDictionary())
        return inner

    @wraps(function)
    def remembered(*tokens: Tokens) -> Any:
        inner = values_of(*tokens)
        if tokens[-1] not in inner:
            hosts = [part.host for part in tokens if part.host is not None]
            if len(hosts) == len(tokens):
                inner[tokens[-1]] = copied_together(remembered(*hosts), tokens[-1].real.device)
            else:
                inner[tokens[-1]] = function(*tokens)
        return inner[tokens[-1]]

    remembered.values_of = values_of  # type: ignore[attr-defined]
    remembered.arity = len(signature(function).parameters)  # type: ignore[attr-defined]
    _REMEMBERED.add(remembered)
    return cast("F", remembered)


def copied_with_facts(inputs: T, tokens: BatchTokens, device: torch.device) -> tuple[T, BatchTokens]:
    """Copies a batch to a device at once, with all that functions made by `once_per_batch` worked out of its tokens.

    Args:
        inputs: arguments of the model.
        tokens: of the batch, on the processor.
        device: where they go; what is there already is given back.
    """
    hosts = tuple(side for side in (tokens.encoder, tokens.decoder) if side is not None)
    asked = [
        (f, sides) for f in _REMEMBERED for sides in product(hosts, repeat=f.arity) if sides[-1] in f.values_of(*sides)
    ]
    facts = tuple(function.values_of(*sides)[sides[-1]] for function, sides in asked)
    inputs, copies, facts = copied_together((inputs, hosts, facts), device)
    if copies is hosts:
        return inputs, tokens
    copy_of = dict(zip(hosts, copies, strict=True))
    for (function, sides), fact in zip(asked, facts, strict=True):
        *_, last = there = [copy_of[side] for side in sides]
        function.values_of(*there)[last] = fact
    return inputs, BatchTokens(*(None if side is None else copy_of[side] for side in (tokens.encoder, tokens.decoder)))
