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
