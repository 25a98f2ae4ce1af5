"""Attention between the two texts of a pair, on attention set by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from handmade import Row, Setting, call, columns, one_hot, uniform
from naive_samples import make_seq

from headlens.heads import Stack
from headlens.metrics.text_pair import TextPair

# [CLS] the cat . [SEP] a cat . ! [SEP]
SEQ = make_seq([-1, 0, 1, 2, -1, 3, 4, 5, 6, -1], cls=[0], sep=[4, 9], punct=[3, 7, 8])
SEGMENT = (-1, 0, 0, 0, -1, 1, 1, 1, 1, -1)
IDS = (0, 5, 6, 7, 1, 8, 6, 7, 9, 1)


def pair(weights: Any, ids: tuple[int, ...] = IDS, stack: Stack = "encoder") -> dict[str, float]:
    return columns(TextPair(), call([Row(weights, SEQ, segment=SEGMENT, ids=ids)], Setting(stack)))


def test_a_head_that_maps_the_second_text_on_the_first() -> None:
    found = pair(one_hot(lambda q: {5: 1, 6: 2, 7: 3, 8: 3}.get(q, 0), len(SEQ)))
    assert (found["pair_tokens"], found["first_to_second"], found["second_to_first"]) == (7, 0, 1)
    assert found["to_pair"] == pytest.approx(4 / 7)
    # `cat` of both texts; points are no words
    assert (found["equal_tokens"], found["to_equal"]) == (2, 0.5)
    assert found["to_equal_chance"] == pytest.approx((1 / 4 + 1 / 3) / 2)


def test_attention_to_everything_alike() -> None:
    found = pair(uniform(len(SEQ)))
    assert (found["first_to_second"], found["second_to_first"]) == (pytest.approx(0.4), pytest.approx(0.3))
    assert found["to_equal"] == 0  # the first of many is no `cat`


def test_special_tokens_are_of_no_text() -> None:
    assert pair(one_hot(lambda q: 4 if SEGMENT[q] >= 0 else 2, len(SEQ)))["to_pair"] == 0


def test_the_first_text_of_a_decoder_sees_no_second() -> None:
    found = pair(uniform(len(SEQ), causal=True), stack="decoder")
    assert (found["pair_tokens"], found["equal_tokens"]) == (4, 1)
    assert np.isnan(found["first_to_second"])


def test_without_equal_tokens_nothing_is_known_of_them() -> None:
    found = pair(uniform(len(SEQ)), (*range(10),))
    assert found["equal_tokens"] == 0
    assert np.isnan(found["to_equal"])
