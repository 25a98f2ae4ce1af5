"""Rare-word shares of heads whose attention is set by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from handmade import SENTENCE, Row, Setting, call, columns, observed, one_hot, uniform
from naive_samples import make_seq

from headlens.metrics.rare import RareWords

# `unbelievable` is the rarest word, `sleep` the second.
RANKS = (2, 0, 1, 0)


def rare(weights: Any, ranks: tuple[int, ...] = RANKS) -> dict[str, float]:
    return columns(RareWords(), call([Row(weights, rarity=ranks)]))


def test_on_the_rarest_word() -> None:
    found = rare(one_hot(lambda _: 2))
    assert (found["rare_top1"], found["rare_top2"]) == (1, 1)
    assert (found["rare_chance"], found["rare_chance2"]) == (1 / 4, 1 / 2)
    assert found["rare_words"] == 4


def test_on_the_second_rarest_word() -> None:
    found = rare(one_hot(lambda _: 5))
    assert (found["rare_top1"], found["rare_top2"]) == (0, 1)


def test_ties_in_rarity_count_for_each() -> None:
    found = rare(one_hot(lambda q: 4 if q < 5 else 6), (2, 2, 0, 0))
    assert (found["rare_top1"], found["rare_top2"]) == (1 / 2, 1 / 2)
    assert (found["rare_chance"], found["rare_chance2"]) == (1 / 2, 1 / 2)


def test_to_a_word_is_the_sum_over_its_pieces() -> None:
    pieces = sum(one_hot(lambda _, k=k: k) for k in (1, 2, 3))
    assert rare(0.2 * pieces + 0.4 * one_hot(lambda _: 4))["rare_top1"] == 1
    assert rare(0.1 * pieces + 0.7 * one_hot(lambda _: 4))["rare_top1"] == 0


def test_from_a_word_is_the_mean_over_its_pieces() -> None:
    # Two pieces of `unbelievable` look at itself, one at `cats`; all other words at `cats`.
    assert rare(one_hot(lambda q: 1 if q in (1, 2) else 4))["rare_top1"] == 1 / 4
    assert rare(one_hot(lambda q: 1 if q == 1 else 4))["rare_top1"] == 0


def test_special_tokens_are_left_out() -> None:
    assert rare(0.9 * one_hot(lambda _: 7) + 0.1 * one_hot(lambda _: 3))["rare_top1"] == 1


def test_ties_in_attention_go_to_the_first_word() -> None:
    assert rare(uniform(), (0, 2, 1, 0))["rare_top1"] == 0


def test_a_head_wholly_on_a_special_token_points_at_no_rare_word() -> None:
    assert rare(one_hot(lambda _: 7))["rare_top1"] == 0
    assert rare(one_hot(lambda _: 7))["rare_top2"] == 0


def test_sentences_without_ranks_do_not_count() -> None:
    rows = [Row(one_hot(lambda _: 2), rarity=RANKS), Row(one_hot(lambda _: 4), rarity=(0, 0, 0, 0))]
    found = columns(RareWords(), call(rows))
    assert (found["rare_top1"], found["rare_words"]) == (1, 4)
    nothing = columns(RareWords(), call(rows[1:]))
    assert nothing["rare_words"] == 0
    assert math.isnan(nothing["rare_top1"])


def test_cross_looks_for_rare_words_of_the_source() -> None:
    target = make_seq([-1, 0, 0, 1], special=[0])
    row = Row(one_hot(lambda q: [4, 1, 1, 4][q], 4, 8), target, SENTENCE, rarity=RANKS)
    found = columns(RareWords(), call([row], Setting("cross")))
    assert (found["rare_top1"], found["rare_words"]) == (1 / 2, 2)


def test_chance_in_a_causal_decoder_is_that_of_the_words_so_far() -> None:
    """Four words, the first the rarest and the third the second: 1, 1/2, 1/3, 1/4, and 1, 1/2, 2/3, 2/4."""
    decoder = Setting(stack="decoder")
    found = columns(RareWords(), call([Row(one_hot(lambda _: 0), rarity=RANKS)], decoder))
    assert found["rare_chance"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert found["rare_chance2"] == pytest.approx((1 + 1 / 2 + 2 / 3 + 2 / 4) / 4)


def test_chance_of_a_random_head() -> None:
    rows = [Row(uniform(), rarity=RANKS), Row(uniform(2), make_seq([0, 1]), rarity=(2, 1))]
    found = columns(RareWords(), call(rows))
    assert found["rare_chance"] == pytest.approx((4 * 1 / 4 + 2 * 1 / 2) / 6)
    assert found["rare_chance2"] == pytest.approx((4 * 1 / 2 + 2 * 1) / 6)


def test_no_ranks_at_all_make_no_table() -> None:
    assert observed([RareWords()], [call([Row(uniform())])]).tables() == {}
