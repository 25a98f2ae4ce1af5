"""The data of the view of attention: what is kept of the weights, what is left out, and what is told."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html import unescape
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import headlens
from headlens.errors import OptionError
from headlens.pages.attention_page import AttentionView, attention_data, page_of_view, size_notes
from headlens.pages.head_cards import SentenceMap, TokenGroups
from headlens.pages.self_contained import LARGE_PAGE
from headlens.visible_text import visible_text

HOSTILE = ["</template><script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "a\u202eb", "]]>", "\x00"]


def softmax(*shape: int, sharp: float = 3.0) -> npt.NDArray[np.float32]:
    scores = sharp * np.random.default_rng(0).standard_normal(shape)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def sentence(weights: npt.NDArray[Any], name: str = "1", state: int = 0, **more: Any) -> SentenceMap:
    tokens = [f"t{i}" for i in range(weights.shape[-1])]
    return SentenceMap(name, "encoder", tokens[: weights.shape[-2]], tokens, weights, state=state, **more)


def data_of(page: str) -> dict[str, Any]:
    """What the script of a page of its own shows."""
    found = re.search(r"<template>(.*?)</template>", page, flags=re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(unescape(found[1]))
    return data


def unpacked(own: dict[str, Any]) -> npt.NDArray[np.float64]:
    data = zlib.decompress(base64.b64decode(own["weights"]))
    shape = own["layers"], own["heads"], len(own["queries"]), len(own["keys"])
    return (np.frombuffer(data, np.uint8).reshape(shape) / 255.0) ** 2


@pytest.mark.parametrize("sharp", [0.1, 3.0, 30.0])
def test_weights_are_off_by_no_more_than_the_page_says(sharp: float) -> None:
    weights = softmax(2, 3, 9, 9, sharp=sharp)
    (own,) = attention_data(AttentionView(["m"], [sentence(weights)]))["sentences"][0]["maps"]
    off = np.abs(unpacked(own) - weights)
    assert off.max() <= 1 / 255  # "at most 0.4 percentage points"
    small = weights < 0.01
    assert off[small].max(initial=0) <= 0.0005
    whole = np.zeros((1, 1, 2, 2), np.float32)
    whole[0, 0, :, 0] = 1
    (own,) = attention_data(AttentionView(["m"], [sentence(whole)]))["sentences"][0]["maps"]
    assert np.array_equal(unpacked(own), whole)


def test_heads_that_there_are_not_are_named() -> None:
    weights = softmax(2, 3, 4, 4)
    weights[1, 2] = np.nan
    weights[0, 1] = np.nan
    (own,) = attention_data(AttentionView(["m"], [sentence(weights)]))["sentences"][0]["maps"]
    assert own["missing"] == [[0, 1], [1, 2]]
    assert unpacked(own)[1, 2].max() == 0


def test_twenty_sentences_of_a_large_model_are_under_five_megabytes() -> None:
    one = softmax(12, 12, 28, 28)
    view = AttentionView(["m"], [sentence(one, str(i)) for i in range(20)])
    page = page_of_view("Attention", view)
    assert len(page.encode()) < 5_000_000
    assert len(attention_data(view)["sentences"]) == 20
    assert size_notes(page, view) == []


def test_what_is_too_large_is_left_out_and_told() -> None:
    view = AttentionView(["m"], [sentence(softmax(2, 2, 20, 20), str(i)) for i in range(3)])
    room = 2 * len(attention_data(view)["sentences"][0]["maps"][0]["weights"])
    data = attention_data(view, room)
    assert (len(data["sentences"]), data["left_out"]) == (2, 1)
    (note,) = size_notes("x" * (LARGE_PAGE + 1), view)
    assert note == "attention.html is 5.0 MB: fewer or shorter sentences give a smaller page."


def test_the_note_of_a_page_that_shows_only_some_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    view = AttentionView(["m"], [sentence(softmax(2, 2, 20, 20), str(i)) for i in range(3)])
    monkeypatch.setattr("headlens.pages.attention_page.attention_data", lambda _: {"sentences": [1]})
    assert "shows only 1 of 3 sentences" in size_notes("x" * (LARGE_PAGE + 1), view)[0]


def test_sentences_of_two_states_are_together() -> None:
    weights = softmax(1, 1, 3, 3)
    maps = [sentence(weights, "1"), sentence(weights, "2"), sentence(weights, "1", 1), sentence(weights, "2", 1)]
    data = attention_data(AttentionView(["a", "b"], maps, one_model=False))
    assert [[own["state"] for own in one["maps"]] for one in data["sentences"]] == [[0, 1], [0, 1]]
    assert (data["states"], data["linked"]) == (["a", "b"], False)


def test_a_sentence_is_called_by_its_text_or_else_by_its_words() -> None:
    weights = softmax(1, 1, 3, 3)
    groups = TokenGroups([0, 1, 1], ["[CLS]", "tricycle"], [True, False, False])
    maps = [sentence(weights, "1", text="A cat."), sentence(weights, "2", key_groups=groups), sentence(weights, "3")]
    texts = [one["text"] for one in attention_data(AttentionView(["m"], maps))["sentences"]]
    assert texts == ["A cat.", "[CLS] tricycle", "t0 t1 t2"]


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_words_end_nothing_and_hide_nothing(words: str) -> None:
    groups = TokenGroups([0], [words], [False])
    own = SentenceMap(words, "encoder", [words], [words], np.ones((1, 1, 1, 1)), words, 0, groups, groups)
    page = page_of_view(words, AttentionView([words], [own]))
    assert page.count("<script") == page.count("</script") == 1
    assert page.count("<template>") == page.count("</template>") == 1
    assert "<img" not in page
    assert "\u202e" not in page
    text = re.search(r"<template>(.*)</template>", page, re.S)
    assert text is not None
    assert "<" not in text[1]
    assert json.loads(text[1])["sentences"][0]["maps"][0]["queries"] == [visible_text(words)]


def test_a_page_fetches_nothing_unless_a_server_is_behind_it() -> None:
    view = AttentionView(["m"], [sentence(softmax(1, 1, 2, 2))])
    alone, served = (unescape(page_of_view("A", view, own)) for own in (None, {"limit": 100, "translated": True}))
    assert "default-src 'none'" in alone
    assert "connect-src" not in alone
    assert "connect-src 'self'" in served
    assert '"measuring":{"limit":100,"translated":true}' in served


@pytest.mark.parametrize(
    "groups",
    [
        TokenGroups([0, 1], ["a", "b"], [False, False]),
        TokenGroups([0, 1, 3], ["a", "b", "c"], [False] * 3),
        TokenGroups([0, 1, 2], ["a", "b", "c"], [False]),
        TokenGroups(["x", 1, 2], ["a", "b", "c"], [False] * 3),  # type: ignore[list-item]
    ],
)
def test_groups_that_do_not_fit_are_refused(groups: TokenGroups) -> None:
    with pytest.raises(ValueError, match="do not fit 3 tokens"):
        groups.check(3)


def test_a_page_of_weights_of_one_s_own() -> None:
    weights = torch.softmax(torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    tokens = ["[CLS]", "a", "<b>", "[SEP]"]
    whole = data_of(headlens.attention_page(tokens, weights))
    (own,) = whole["sentences"][0]["maps"]
    assert (own["queries"], own["keys"], own["layers"], own["heads"], own["stack"]) == (tokens, tokens, 2, 3, "encoder")
    assert np.abs(unpacked(own) - weights.numpy()).max() < 0.004
    layer = data_of(headlens.attention_page(tokens, weights[0].half(), title="mine"))["sentences"][0]
    assert (layer["maps"][0]["layers"], layer["text"]) == (1, "mine")
    cross = data_of(headlens.attention_page(["x"], weights[0, 0, :1].numpy(), tokens, stack="cross"))["sentences"][0]
    assert (cross["maps"][0]["queries"], cross["maps"][0]["heads"], cross["maps"][0]["stack"]) == (["x"], 1, "cross")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros((2, 2, 3)), r"have the shape \(2, 2, 3\), and there are 2 x 2 labels"),
        (np.zeros(4), r"have the shape \(4,\)"),
        (np.zeros((0, 2, 2)), "have the shape"),
        (np.full((2, 2), 1.5), "from 0 to 1"),
        (np.full((2, 2), -0.1), "from 0 to 1"),
    ],
)
def test_weights_that_are_none_are_refused(weights: np.ndarray, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        headlens.attention_page(["a", "b"], weights)
