"""Every example once an epoch, in batches that a resumed run finds again."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headlens.learning.batch_sampler import BatchSampler, epoch_batches

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=80)


@given(lengths, st.integers(1, 200), st.integers(0, 9), st.integers(0, 9))
def test_every_example_once_and_within_the_budget(sizes: list[int], budget: int, seed: int, epoch: int) -> None:
    batches = epoch_batches(sizes, budget, seed, epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    assert all(len(b) == 1 or len(b) * max(sizes[i] for i in b) <= budget for b in batches)
    assert batches == epoch_batches(sizes, budget, seed, epoch)


def test_epochs_and_seeds_differ() -> None:
    sizes = [i % 17 + 1 for i in range(400)]
    orders = [epoch_batches(sizes, 60, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({str(order) for order in orders}) == 4


def test_batches_are_of_similar_length() -> None:
    sizes = [i % 17 + 1 for i in range(400)]
    batches = epoch_batches(sizes, 60, 0, 0)
    padded = sum(len(b) * max(sizes[i] for i in b) for b in batches)
    assert padded < 1.15 * sum(sizes)


@given(lengths, st.integers(1, 4), st.integers(1, 4))
def test_processes_share_an_update_evenly_and_leave_nothing_out(sizes: list[int], accumulate: int, count: int) -> None:
    shards = [BatchSampler(tuple(sizes), 60, accumulate, 0, rank, count) for rank in range(count)]
    seen: Counter[int] = Counter()
    for number in range(shards[0].per_epoch(0)):
        own = [shard.of(0, number) for shard in shards]
        assert len({len(batches) for batches in own}) == 1
        assert 1 <= len(own[0]) <= accumulate
        seen.update(i for batches in own for batch in batches for i in batch)
    assert set(seen) == set(range(len(sizes)))
    if count == 1:
        assert max(seen.values()) == 1
