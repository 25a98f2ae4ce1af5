"""What depends on the tokens of a batch alone is worked out once, not once per layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from headlens.attention.edits_and_observers import Tokens

F = TypeVar("F", bound=Callable[..., Any])


def once_per_batch(function: F) -> F:
    """Keep what a function of `Tokens` returns for as long as these are there; queries and keys may be one object.

    The value must not hold the tokens it belongs to, or it would keep them alive.
    """
    # By the first tokens, within these by the second: of a pair of both as a key nobody would hold the last reference.
    kept: WeakKeyDictionary[Tokens, Any] = WeakKeyDictionary()

    @wraps(function)
    def remembered(*tokens: Tokens) -> Any:
        inner = kept
        for outer in tokens[:-1]:
            inner = inner.setdefault(outer, WeakKeyDictionary())
        if tokens[-1] not in inner:
            inner[tokens[-1]] = function(*tokens)
        return inner[tokens[-1]]

    return cast("F", remembered)
