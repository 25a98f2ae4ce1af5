"""Entropy of heads whose attention is set by hand."""

from __future__ import annotations

import math

import pytest
from handmade import SENTENCE, Row, Setting, call, columns, one_hot, uniform
from naive_samples import make_seq

from headlens.metrics.entropy import Entropy


def test_one_hot_has_none() -> None:
    assert columns(Entropy(), call([Row(one_hot(lambda q: q))])) == {"entropy": 0, "entropy_norm": 0}


def test_uniform_has_the_most() -> None:
    found = columns(Entropy(), call([Row(uniform())]))
    assert found["entropy"] == pytest.approx(math.log(8), abs=1e-6)
    assert found["entropy_norm"] == pytest.approx(1, abs=1e-6)


def test_two_keys() -> None:
    found = columns(Entropy(), call([Row((one_hot(lambda _: 1) + one_hot(lambda _: 2)) / 2)]))
    assert found["entropy"] == pytest.approx(math.log(2), abs=1e-7)
    assert found["entropy_norm"] == pytest.approx(1 / 3, abs=1e-7)


def test_causal_queries_have_only_the_keys_before_them() -> None:
    found = columns(Entropy(), call([Row(uniform(causal=True))], Setting("decoder")))
    assert found["entropy"] == pytest.approx(math.log(math.factorial(8)) / 8, abs=1e-6)
    assert found["entropy_norm"] == pytest.approx(1, abs=1e-6)


def test_words() -> None:
    found = columns(Entropy(), call([Row(uniform())]), level="word")
    expected = -3 / 8 * math.log(3 / 8) + 5 / 8 * math.log(8)
    assert found["entropy"] == pytest.approx(expected, abs=1e-7)
    assert found["entropy_norm"] == pytest.approx(expected / math.log(6), abs=1e-7)


def test_cross_counts_the_keys_of_the_source() -> None:
    found = columns(Entropy(), call([Row(uniform(2, 8), make_seq([0, 1]), SENTENCE)], Setting("cross")))
    assert found["entropy_norm"] == pytest.approx(1, abs=1e-6)


def test_a_single_key_has_no_normalised_entropy() -> None:
    found = columns(Entropy(), call([Row(uniform(1), make_seq([0]))]))
    assert found["entropy"] == 0
    assert math.isnan(found["entropy_norm"])
    both = columns(Entropy(), call([Row(uniform(1), make_seq([0])), Row(uniform(8))]))
    assert both["entropy"] == pytest.approx(math.log(8) * 8 / 9, abs=1e-6)
    assert both["entropy_norm"] == pytest.approx(1, abs=1e-6)
