"""Attention mass of heads whose attention is set by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from handmade import SENTENCE, Row, Setting, call, columns, one_hot, uniform
from naive_samples import make_seq

from headlens.metrics.mass import Mass


def mass(weights: Any, **options: Any) -> dict[str, float]:
    return columns(Mass(), call([Row(weights)]), **options)


def test_uniform() -> None:
    found = mass(uniform())
    assert [found[f"to_{k}"] for k in ("first", "cls", "sep", "punct", "self")] == [1 / 8] * 5
    assert found["to_prev"] == found["to_next"] == 7 / 64
    assert found["mass_left"] == 1 - 3 / 8
    assert found["distance"] == pytest.approx(2 * sum(d * (8 - d) for d in range(1, 8)) / 64, abs=1e-7)


def test_kinds_that_never_occur_are_empty() -> None:
    found = mass(uniform())
    assert math.isnan(found["to_bos"])
    assert math.isnan(found["to_eos"])


@pytest.mark.parametrize(("key", "kind"), [(0, "cls"), (6, "punct"), (7, "sep")])
def test_all_on_one_kind(key: int, kind: str) -> None:
    found = mass(one_hot(lambda _: key))
    assert {k: found[f"to_{k}"] for k in ("cls", "punct", "sep")} == {
        k: float(k == kind) for k in ("cls", "punct", "sep")
    }
    assert found["to_first"] == float(key == 0)
    assert found["mass_left"] == 0
    assert found["distance"] == sum(abs(q - key) for q in range(8)) / 8


@pytest.mark.parametrize(("offset", "name", "share"), [(0, "self", 1), (-1, "prev", 7 / 8), (1, "next", 7 / 8)])
def test_neighbours(offset: int, name: str, share: float) -> None:
    found = mass(one_hot(lambda q: q + offset))
    assert found[f"to_{name}"] == share
    assert found["distance"] == share * abs(offset)


def test_words_are_places() -> None:
    # All pieces of the long word look at their own word: that is `self` only at word level.
    weights = one_hot(lambda q: [0, 2, 3, 1, 4, 5, 6, 7][q])
    assert mass(weights)["to_self"] == 5 / 8
    found = mass(weights, level="word")
    assert found["to_self"] == pytest.approx(1)
    assert found["distance"] == pytest.approx(0)


def test_punctuation_is_a_word_only_if_all_its_pieces_are() -> None:
    seq = make_seq([0, 0, 1, 1], punct=[1, 2, 3])
    weights = uniform(4)
    assert columns(Mass(), call([Row(weights, seq)]))["to_punct"] == 3 / 4
    assert columns(Mass(), call([Row(weights, seq)]), level="word")["to_punct"] == 1 / 2


def test_begin_and_end() -> None:
    # Another special token, such as a language code, stands first.
    seq = make_seq([-1, -1, 0, 1, -1], special=[0], bos=[1], eos=[4])
    found = columns(Mass(), call([Row(0.75 * one_hot(lambda _: 4, 5) + 0.25 * one_hot(lambda _: 1, 5), seq)]))
    assert (found["to_bos"], found["to_eos"], found["to_first"], found["mass_left"]) == (0.25, 0.75, 0, 0)
    assert math.isnan(found["to_sep"])


@pytest.mark.parametrize("level", ["token", "word"])
@pytest.mark.parametrize("kind", ["first", "cls", "sep", "bos", "eos", "punct"])
def test_only_content_counts_as_left(kind: str, level: str) -> None:
    """Special tokens and punctuation are no content wherever they stand, and the first token is none whatever it is."""
    key = 0 if kind == "first" else 2
    seq = make_seq([0, 1, -1, 2, 3], **({} if kind == "first" else {kind: [2]}))
    weights = 0.75 * one_hot(lambda _: key, 5) + 0.25 * one_hot(lambda _: 3, 5)
    found = columns(Mass(), call([Row(weights, seq)]), level=level)
    assert (found[f"to_{kind}"], found["mass_left"]) == pytest.approx((0.75, 0.25))


def test_cross_has_no_positions() -> None:
    row = Row(one_hot(lambda _: 7, 2, 8), make_seq([0, 1]), SENTENCE)
    found = columns(Mass(), call([row], Setting("cross")))
    assert found["to_sep"] == 1
    assert all(math.isnan(found[name]) for name in ("to_self", "to_prev", "to_next", "distance"))


def test_a_longer_sentence_weighs_more() -> None:
    found = columns(Mass(), call([Row(one_hot(lambda _: 0)), Row(one_hot(lambda _: 1, 2), make_seq([0, 1]))]))
    assert found["to_first"] == 8 / 10
