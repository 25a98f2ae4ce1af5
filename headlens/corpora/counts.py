"""Counts of what became of a corpus add up, over shards and over the batches of one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def add_counts(total: Any, more: Any) -> None:
    """Add the counts of one dataclass to those of another of the same kind.

    Args:
        total: whole numbers, and dictionaries of them; grows.
        more: what is added; stays as it is.
    """
    for field in fields(total):
        before, value = getattr(total, field.name), getattr(more, field.name)
        if isinstance(before, dict):
            for key, n in value.items():
                before[key] = before.get(key, 0) + n
        else:
            setattr(total, field.name, before + value)
