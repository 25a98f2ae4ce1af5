"""From which part of speech to which attention goes, on attention set by hand."""

from __future__ import annotations

from typing import Any

import pytest
from handmade import SENTENCE, Row, Setting, call, observed, one_hot, uniform

from headlens.attention.edits_and_observers import PARTS_OF_SPEECH
from headlens.metrics.part_of_speech import PartOfSpeech

# un ##believ ##able cats sleep .
UPOS = [PARTS_OF_SPEECH.index(name) for name in ("ADJ", "NOUN", "VERB", "PUNCT")]


def pairs(weights: Any, upos: list[int] = UPOS) -> dict[tuple[str, str], float]:
    tables = observed([PartOfSpeech()], [call([Row(weights, upos=upos)], Setting())]).tables()
    if "pos" not in tables:
        return {}
    rows = tables["pos"].rows
    return {(row["from"], row["to"]): row["weight"] for row in rows.to_dict("records") if row["weight"]}


def test_one_part_of_speech_to_another() -> None:
    found = pairs(one_hot(lambda _: 4))
    assert found == {(name, "NOUN"): 1 for name in ("ADJ", "NOUN", "VERB", "PUNCT")}


def test_special_tokens_are_other() -> None:
    assert pairs(one_hot(lambda q: 0 if q == 4 else 5))["NOUN", "other"] == 1


def test_pieces_of_a_word_are_of_its_part_of_speech() -> None:
    found = pairs(uniform())
    assert found["NOUN", "ADJ"] == pytest.approx(3 / 8)
    assert found["NOUN", "other"] == pytest.approx(2 / 8)
    assert sum(weight for (start, _), weight in found.items() if start == "VERB") == pytest.approx(1)


def test_words_without_a_part_of_speech_are_other() -> None:
    found = pairs(uniform(), [-1, *UPOS[1:]])
    assert found["NOUN", "other"] == pytest.approx(5 / 8)
    assert not pairs(uniform(), [-1, -1, -1, -1])
    assert len(SENTENCE) == 8
