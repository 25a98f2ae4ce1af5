"""Answers are compared as the official scripts of SQuAD do it; these are written down here once more, step by step."""

import collections
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.tasks.squad_metrics import compare, normalized


def official_normal(s: str) -> str:
    lowered = "".join(c for c in s.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", lowered).split())


def official_f1(gold: str, predicted: str) -> float:
    gold_tokens, predicted_tokens = official_normal(gold).split(), official_normal(predicted).split()
    same = sum((collections.Counter(gold_tokens) & collections.Counter(predicted_tokens)).values())
    if len(gold_tokens) == 0 or len(predicted_tokens) == 0:
        return float(gold_tokens == predicted_tokens)
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted_tokens), same / len(gold_tokens)
    return 2 * precision * recall / (precision + recall)


def official(predicted: str, answers: list[str]) -> tuple[float, float]:
    golds = [a for a in answers if official_normal(a)]
    if not golds:
        golds = [""]
    exact = max(int(official_normal(g) == official_normal(predicted)) for g in golds)
    return float(exact), max(official_f1(g, predicted) for g in golds)


TEXT = st.lists(st.sampled_from(["The", "a", "an", "Cat", "cat", "dogs", "U.S.", "—", "!", "Zoë", "1,000"]), max_size=5)
STRINGS = TEXT.map(" ".join)


@given(STRINGS, st.lists(STRINGS, max_size=3))
def test_against_the_official_rules(predicted: str, answers: list[str]) -> None:
    assert compare(predicted, answers) == pytest.approx(official(predicted, answers))


def test_known_values() -> None:
    assert normalized(" The  U.S.A. — an 'answer'!") == "usa — answer"
    assert compare("the cat", ["Cat!", "dog"]) == (1, 1)
    assert compare("black cat", ["cat"]) == (0, pytest.approx(2 / 3))
    assert compare("", []) == (1, 1)
    assert compare("cat", []) == (0, 0)
    assert compare("", ["the"]) == (1, 1)
