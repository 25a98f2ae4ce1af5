"""What belongs to the default tier of tests, and what to the slow one (`pytest -m slow`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest


def rest_slow(values: Iterable[object], fast: Collection[object] | int = 1) -> list[object]:
    """Parameters of a test, of which the default tier tries those that are among `fast`, or the first so many."""
    values = list(values)
    chosen = values[:fast] if isinstance(fast, int) else [value for value in values if value in fast]
    assert chosen, "the default tier would not run this test at all"
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.slow) for value in values]


def rest_slow_rows(rows: Iterable[tuple[object, ...]], fast: Collection[tuple[object, ...]] | int = 1) -> list[object]:
    """The same for parameters of several names, a tuple each."""
    marked = zip(rows := list(rows), rest_slow(rows, fast), strict=True)
    return [pytest.param(*row, marks=pytest.mark.slow) if own is not row else row for row, own in marked]
