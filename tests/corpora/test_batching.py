"""Batches by tokens, of examples with any number of rows."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.batching import cut_batches, one_row, pooled_batches
from headlens.errors import OptionError

Sized = tuple[int, int]
SIZES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), max_size=60)


@given(SIZES, st.integers(1, 200), st.integers(1, 20))
def test_every_example_once_and_no_batch_too_large(sizes: list[Sized], budget: int, pool: int) -> None:
    found = list(pooled_batches(sizes, budget, lambda e: e[0], lambda e: e[1], pool))
    assert sorted(e for batch in found for e in batch) == sorted(sizes)
    for batch in found:
        padded = sum(rows for _, rows in batch) * max(length for length, _ in batch)
        assert padded <= budget or len(batch) == 1


@given(SIZES, st.integers(1, 200))
def test_no_batch_could_take_the_next_example(sizes: list[Sized], budget: int) -> None:
    found = list(cut_batches(sorted(sizes), budget, lambda e: e[0], lambda e: e[1]))
    for batch, following in pairwise(found):
        together = [*batch, following[0]]
        assert sum(rows for _, rows in together) * following[0][0] > budget


def test_the_order_within_a_pool_is_by_length() -> None:
    assert list(pooled_batches([5, 3, 4, 1, 2], 100, lambda n: n, one_row, 3)) == [[3, 4, 5], [1, 2]]
    assert list(cut_batches([], 5, lambda n: n, one_row)) == []


@pytest.mark.parametrize(("budget", "pool", "name"), [(0, 5, "batch-tokens"), (5, 0, "pool")])
def test_numbers_that_cannot_be(budget: int, pool: int, name: str) -> None:
    with pytest.raises(OptionError, match=f"--{name} 0 is not a positive number"):
        pooled_batches([1], budget, lambda n: n, one_row, pool)
