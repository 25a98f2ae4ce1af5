"""Rows of different length as one tensor."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.collate import attention_mask, padded


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=6), st.booleans())
def test_on_the_right(rows: list[list[int]], arrays: bool) -> None:
    given_rows: Sequence[Sequence[int]] = [np.array(r, dtype=np.int64) for r in rows] if arrays else rows  # type: ignore[misc]
    longest = max(map(len, rows))
    assert padded(given_rows, -7).tolist() == [r + [-7] * (longest - len(r)) for r in rows]
    assert attention_mask(given_rows).tolist() == [[1] * len(r) + [0] * (longest - len(r)) for r in rows]
