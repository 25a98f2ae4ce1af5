"""Confidence of heads whose attention is set by hand."""

from __future__ import annotations

import math

import pytest
from handmade import SENTENCE, Row, Setting, call, columns, one_hot, uniform
from naive_samples import make_seq

from headlens.metrics.confidence import Confidence


def test_uniform_is_one_over_length() -> None:
    found = columns(Confidence(), call([Row(uniform())]))
    assert found["tokens"] == 8
    assert found["confidence"] == found["confidence_all"] == 1 / 8


def test_one_hot_is_one() -> None:
    found = columns(Confidence(), call([Row(one_hot(lambda q: q - 1))]))
    assert found["confidence"] == found["confidence_all"] == 1


def test_separator_is_left_out_without_renormalising() -> None:
    weights = 0.75 * one_hot(lambda _: 7) + 0.25 * one_hot(lambda q: q)
    found = columns(Confidence(), call([Row(weights)]))
    assert found["confidence"] == 0.25
    # the query [SEP] itself has 1 on [SEP]
    assert found["confidence_all"] == (7 * 0.75 + 1) / 8


def test_all_on_separator() -> None:
    found = columns(Confidence(), call([Row(one_hot(lambda _: 7))]))
    assert (found["confidence"], found["confidence_all"]) == (0, 1)


def test_end_of_sentence_is_a_separator_and_begin_is_none() -> None:
    seq = make_seq([-1, 0, 1, -1], bos=[0], eos=[3])
    on_bos, on_eos = (columns(Confidence(), call([Row(one_hot(lambda _, k=k: k, 4), seq)])) for k in (0, 3))
    assert (on_bos["confidence"], on_eos["confidence"]) == (1, 0)


def test_words_add_up_their_pieces() -> None:
    found = columns(Confidence(), call([Row(uniform())]), level="word")
    assert found["tokens"] == 6
    assert found["confidence"] == pytest.approx(3 / 8, abs=1e-12)


def test_causal() -> None:
    found = columns(Confidence(), call([Row(uniform(causal=True))], Setting("decoder")))
    assert found["confidence_all"] == pytest.approx(math.fsum(1 / n for n in range(1, 9)) / 8, abs=1e-7)
    assert found["confidence"] == pytest.approx(math.fsum(1 / n for n in range(1, 8)) / 7, abs=1e-7)


def test_cross_leaves_out_separators_of_both_sides() -> None:
    target = make_seq([-1, 0, 1], special=[0], eos=[2])
    weights = one_hot(lambda q: [2, 7, 3][q], 3, 8)
    found = columns(Confidence(), call([Row(weights, target, SENTENCE)], Setting("cross")))
    assert found["tokens"] == 3
    assert (found["confidence"], found["confidence_all"]) == (0.5, 1)


def test_nothing_but_separators() -> None:
    seq = make_seq([-1, -1], sep=[0, 1])
    found = columns(Confidence(), call([Row(uniform(2), seq)]))
    assert math.isnan(found["confidence"])
    assert found["confidence_all"] == 0.5


def test_query_without_candidate_key_is_not_counted() -> None:
    target, source = make_seq([0, 1]), make_seq([-1, -1], sep=[0, 1])
    found = columns(Confidence(), call([Row(uniform(2), target, source)], Setting("cross")))
    assert math.isnan(found["confidence"])
    assert found["tokens"] == 2
