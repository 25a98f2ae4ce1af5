"""What is remembered of a batch, and that it is forgotten with the batch."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
import zoo
from torch import Tensor

from headlens.attention.edits_and_observers import BatchTokens, Tokens
from headlens.metrics.batch_cache import copied_with_facts, once_per_batch


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


def test_what_was_worked_out_ahead_is_copied_with_the_batch() -> None:
    asked = []

    @once_per_batch
    def lengths(queries: Tokens, keys: Tokens) -> Tensor:
        asked.append(queries.real.device.type)
        return queries.real.sum(1)[:, None] * keys.real.sum(1)

    @once_per_batch
    def never(tokens: Tokens) -> Tensor:
        raise AssertionError(tokens)

    source, target = zoo.tokens((5, 3)), zoo.tokens((4, 4))
    lengths(target, source)
    inputs, tokens = copied_with_facts({"ids": source.word}, BatchTokens(source, target), torch.device("meta"))
    assert tokens.encoder is not None
    assert tokens.decoder is not None
    assert inputs["ids"] is tokens.encoder.word
    assert tokens.decoder.host is target
    assert lengths(tokens.decoder, tokens.encoder).device.type == "meta"
    assert asked == ["cpu"]
    here = BatchTokens(source)
    assert copied_with_facts({}, here, torch.device("cpu"))[1] is here


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
