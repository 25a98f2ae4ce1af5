"""Superlatives follow the sign of what they are said of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from headlens.pages.formatting import by_sign


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.3, 0.1], "above"),
        ([0.2], "above"),
        ([-0.3, -0.1], "below"),
        ([-0.2], "below"),
        ([-0.2, 0.0], "below"),
        ([0.0, 0.0], "equal"),
        ([0.0], "equal"),
        ([0.2, -0.1], "mixed"),
        ([0.2, 0.0], "mixed"),
        ([], "none"),
        ([math.nan], "none"),
        ([math.nan, -0.1], "below"),
        ([math.inf, math.nan], "above"),
    ],
)
def test_words_by_sign(values: Sequence[float], words: str) -> None:
    said = {"above": "above", "below": "below", "mixed": "mixed", "equal": "equal", "none": "none"}
    assert by_sign(values, **said) == by_sign(np.array(values, np.float64), **said) == words


def test_what_is_left_out() -> None:
    assert by_sign([0.0], above="above", below="below") == "below"
    assert by_sign([0.1, -0.1], above="above", below="below") == "above"
    assert by_sign([], above="above", below="below") == ""
