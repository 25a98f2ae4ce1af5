"""What depends on the tokens of a batch alone is worked out once, not once per layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from headlens.attention.contract import Tokens

T = TypeVar("T")


def once_per_batch(function: Callable[[Tokens], T]) -> Callable[[Tokens], T]:
    """Keep what a function of the tokens of a batch returns for as long as the tokens are there.

    The value must not hold the tokens it belongs to, or it would keep them alive.
    """
    kept: WeakKeyDictionary[Tokens, T] = WeakKeyDictionary()

    @wraps(function)
    def remembered(tokens: Tokens) -> T:
        if tokens not in kept:
            kept[tokens] = function(tokens)
        return kept[tokens]

    return remembered


def once_per_pair(function: Callable[[Tokens, Tokens], T]) -> Callable[[Tokens, Tokens], T]:
    """The same for functions of the tokens of queries and keys, which may be one object."""
    kept: WeakKeyDictionary[Tokens, WeakKeyDictionary[Tokens, T]] = WeakKeyDictionary()

    @wraps(function)
    def remembered(queries: Tokens, keys: Tokens) -> T:
        by_keys = kept.setdefault(queries, WeakKeyDictionary())
        if keys not in by_keys:
            by_keys[keys] = function(queries, keys)
        return by_keys[keys]

    return remembered
