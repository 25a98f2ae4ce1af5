"""Shares that a sentence compares: whole per cent, unless two that differ would look alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.pages.formatting import percent_texts


@pytest.mark.parametrize(
    ("shares", "texts"),
    [
        ([0.623, 0.3], ["62%", "30%"]),
        ([0.9852, math.nan, 0.99], ["98.5%", "nan%", "99.0%"]),
        ([0.9949, 0.99, 1.0], ["99.5%", "99.0%", "100.0%"]),
        ([0.2341, 0.2338], ["23.41%", "23.38%"]),
        ([0.5, 0.5], ["50%", "50%"]),
        ([], []),
    ],
)
def test_shares_beside_each_other(shares: Sequence[float], texts: list[str]) -> None:
    assert percent_texts(*shares) == texts


@given(st.lists(st.integers(0, 10**4), min_size=2, unique=True))
def test_shares_that_differ_look_different(numbers: list[int]) -> None:
    texts = percent_texts(*(number / 10**4 for number in numbers))
    assert len(set(texts)) == len(numbers)
