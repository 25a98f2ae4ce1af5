"""Shards share a corpus without loss or repetition; counts add up."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import Memory, sentence

from headlens.corpora.encoded_corpus import add_counts
from headlens.corpora.sentence import Example
from headlens.runs.processes import Processes, Shard


@given(size=st.integers(0, 40), of=st.integers(1, 12))
def test_every_example_falls_to_one_shard(size: int, of: int) -> None:
    corpus = Memory([Example(sentence(f"number {i}")) for i in range(size)])
    shards = [Shard(corpus, number, of) for number in range(of)]
    texts = [[e.source.text for e in shard] for shard in shards]
    assert sorted(t for part in texts for t in part) == sorted(e.source.text for e in corpus)
    assert [len(part) for part in texts] == [Processes(number, of).shard_size(size) for number in range(of)]
    assert max(map(len, texts)) - min(map(len, texts)) <= 1
    assert shards[0].name == "memory"


@dataclass
class Counts:
    n: int = 0
    by_name: dict[str, int] = field(default_factory=dict)


def test_counts_add_up_name_by_name() -> None:
    total, more = Counts(2, {"nsubj": 1, "obj": 4}), Counts(3, {"obj": 1, "amod": 7})
    add_counts(total, more)
    assert total == Counts(5, {"nsubj": 1, "obj": 5, "amod": 7})
    assert more == Counts(3, {"obj": 1, "amod": 7})


@pytest.mark.parametrize("values", [[None, 1], [1, None], [None, None], [[], 0]])
def test_all_values_are_gathered(monkeypatch: pytest.MonkeyPatch, values: list[object]) -> None:
    """Also None, which a process may well have: the others would count as its own."""

    def gather(found: list[object], value: object) -> None:
        assert value == values[0]
        found[:] = values

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    assert Processes(0, 2).gather(values[0]) == values
