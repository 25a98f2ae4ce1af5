"""Whether heads point at another occurrence of a word, on attention set by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from handmade import Row, Setting, call, columns, one_hot, uniform
from hypothesis import given
from hypothesis import strategies as st
from naive_samples import make_seq

from headlens.heads import Stack
from headlens.metrics.same_word import SameWord
from headlens.metrics.words import repeats

# [CLS] the cat saw the ca ##t . [SEP]
SEQ = make_seq([-1, 0, 1, 2, 3, 4, 4, 5, -1], cls=[0], sep=[8], punct=[7])
FORMS = (0, 1, 2, 0, 1, -1)
OTHER = {1: 4, 2: 5, 4: 1, 5: 2, 6: 2}


def same(weights: Any, forms: tuple[int, ...] = FORMS, stack: Stack = "encoder") -> dict[str, float]:
    return columns(SameWord(), call([Row(weights, SEQ, forms=forms)], Setting(stack)))


def test_a_head_that_finds_every_other_occurrence() -> None:
    found = same(one_hot(lambda q: OTHER.get(q, 0), len(SEQ)))
    assert (found["same_word"], found["repeated_words"], found["same_word_chance"]) == (1, 4, pytest.approx(1 / 6))


def test_itself_is_no_other_occurrence() -> None:
    assert same(one_hot(lambda q: q, len(SEQ)))["same_word"] == 0


def test_a_word_of_another_form_is_none() -> None:
    assert same(one_hot(lambda _: 3, len(SEQ)))["same_word"] == 0


def test_a_causal_head_can_find_earlier_ones_alone() -> None:
    found = same(one_hot(lambda q: min(OTHER.get(q, 0), q), len(SEQ)), stack="decoder")
    # `the` among four words, `cat` among five
    assert (found["same_word"], found["repeated_words"]) == (1, 2)
    assert found["same_word_chance"] == pytest.approx((1 / 4 + 1 / 5) / 2)


def test_attention_to_all_alike_goes_to_the_word_of_most_pieces() -> None:
    assert same(uniform(len(SEQ)))["same_word"] == 1 / 4  # the first `cat` points at the second


def test_without_repeated_words_nothing_is_known() -> None:
    found = same(uniform(len(SEQ)), (0, 1, 2, 3, 4, -1))
    assert found["repeated_words"] == 0
    assert found["same_word"] != found["same_word"]


@given(forms=st.lists(st.lists(st.integers(-1, 3), min_size=5, max_size=5), min_size=1, max_size=4))
def test_occurrences_are_counted(forms: list[list[int]]) -> None:
    found = repeats(torch.tensor(forms))
    for row, others, earlier in zip(forms, found.others.tolist(), found.earlier.tolist(), strict=True):
        for i, form in enumerate(row):
            assert others[i] == (sum(f == form for f in row) - 1 if form >= 0 else 0)
            assert earlier[i] == (sum(f == form for f in row[:i]) if form >= 0 else 0)
