"""What is remembered of a batch, and that it is forgotten with the batch."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import NamedTuple

import pytest
import zoo
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.metrics.batch_cache import once_per_batch


def test_once_per_batch() -> None:
    asked = []

    @once_per_batch
    def length(tokens: Tokens) -> int:
        asked.append(tokens.shape)
        return tokens.shape[1]

    first, second = zoo.tokens((3, 4)), zoo.tokens((3, 4))
    assert [length(first), length(first), length(second)] == [4, 4, 4]
    assert len(asked) == 2


def test_once_per_batch_of_queries_and_keys() -> None:
    asked = []

    @once_per_batch
    def lengths(queries: Tokens, keys: Tokens) -> tuple[int, int]:
        asked.append(queries)
        return queries.shape[1], keys.shape[1]

    short, long = zoo.tokens((3,)), zoo.tokens((5,))
    assert [lengths(short, long), lengths(long, short), lengths(short, short)] == [(3, 5), (5, 3), (3, 3)]
    assert [lengths(short, long), lengths(long, short), lengths(short, short)] == [(3, 5), (5, 3), (3, 3)]
    assert len(asked) == 3


def test_nothing_outlives_its_batch() -> None:
    class Value:
        pass

    single = once_per_batch(lambda tokens: Value())
    paired = once_per_batch(lambda queries, keys: Value())
    tokens, other = zoo.tokens((3,)), zoo.tokens((4,))
    values = [single(tokens), paired(tokens, tokens), paired(tokens, other), paired(other, tokens)]
    kept = [weakref.ref(v) for v in values]
    del values, tokens
    gc.collect()
    assert [v() for v in kept] == [None] * 4
    assert other.shape == (1, 4)


def test_what_depends_on_tokens_alone_is_worked_out_on_the_processor() -> None:
    asked = []

    class Found(NamedTuple):
        real: Tensor
        more: tuple[Tensor, int]
        tokens: Tokens

    @once_per_batch
    def found(queries: Tokens, keys: Tokens) -> Found:
        asked.append({queries.real.device.type, keys.real.device.type})
        return Found(queries.real, (keys.word.double(), int(keys.n_words.max())), zoo.tokens((2,)))

    host = zoo.tokens((3, 4))
    tokens = host.to("meta")
    one = found(tokens, tokens)
    assert asked == [{"cpu"}]
    assert {t.device.type for t in (one.real, one.more[0], one.tokens.real)} == {"meta"}
    assert one.more[1] == found(host, host).more[1]
    assert found(host, host).real is host.real
    assert len(asked) == 1
    # Tokens that somebody made on the device have no others.
    alone = replace(tokens)
    with pytest.raises(RuntimeError, match="meta"):
        found(alone, tokens)
    assert asked[1] == {"meta"}
