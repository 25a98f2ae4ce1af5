"""The data of the view of attention: what is kept of the weights, what is left out, and what is told."""

from __future__ import annotations

import base64
import json
import pickle
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
from headlens.pages.score_parts import ScoreParts
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
        (np.array([[0.5, np.nan], [0.5, 0.5]]), "or are NaN"),
        (np.array([[0.5, np.inf], [0.5, 0.5]]), "from 0 to 1"),
        ([[0.5], [0.5, 0.5]], "no array of numbers"),
        ([["a", "b"], ["c", "d"]], "no array of numbers"),
    ],
)
def test_weights_that_are_none_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        headlens.attention_page(["a", "b"], weights)


def test_a_head_of_nan_is_not_there() -> None:
    weights = softmax(2, 2, 3, 3)
    weights[1, 0] = np.nan
    (own,) = data_of(headlens.attention_page("abc", weights))["sentences"][0]["maps"]
    assert own["missing"] == [[1, 0]]
    assert np.abs(unpacked(own)[1, 1] - weights[1, 1]).max() < 0.004


def test_rows_that_do_not_add_up_to_one_are_told() -> None:
    weights = softmax(1, 2, 3, 3)
    for whole in (weights, torch.tensor(weights).bfloat16()):
        assert "add up to" not in headlens.attention_page("abc", whole)
    weights[0, 1] *= 0.5
    told = "Weights of a token add up to between 0.5 and 1, not to 1. They are shown as they are."
    assert told in headlens.attention_page("abc", weights)
    # Keys were taken for queries: columns add up to 1, rows do not.
    turned = softmax(1, 2, 3, 3).swapaxes(2, 3)
    assert "not to 1. They are shown" in headlens.attention_page("abc", turned)


def test_two_texts_of_one_s_own() -> None:
    (own,) = data_of(headlens.attention_page("abcd", softmax(1, 1, 4, 4), second_text=3))["sentences"][0]["maps"]
    assert own["query_groups"]["texts"] == own["key_groups"]["texts"] == [0, 0, 0, 1]
    wrong: list[tuple[Any, str | None]] = [(0, None), (4, None), (-1, None), (2, "wxyz"), ("1", None), (1.5, None)]
    for number, keys in wrong:
        with pytest.raises(OptionError, match=f"second_text {number!r} is not the number of a token"):
            headlens.attention_page("abcd", softmax(1, 1, 4, 4), keys, second_text=number)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tokens": None}, "tokens None is no list of labels"),
        ({"keys": 3}, "keys 3 is no list of labels"),
        ({"stack": "left"}, "stack 'left' is unknown.*encoder, decoder, cross"),
        ({"weights": 1j * np.eye(2)}, "no array of numbers: complex numbers"),
        ({"weights": 1j * torch.eye(2)}, "no array of numbers: complex numbers"),
    ],
)
def test_what_is_no_attention(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=f"(?s){words}"):
        headlens.attention_page(**{"tokens": "ab", "weights": np.eye(2), **given})


def test_a_notebook_shows_the_page_in_a_frame_of_its_own() -> None:
    page = headlens.attention_page(["a", HOSTILE[1]], softmax(1, 1, 2, 2))
    shown = page._repr_html_()  # type: ignore[attr-defined]
    (frame,) = re.findall(
        r'^<iframe title="[^"]*" sandbox="allow-scripts" style="[^"]*" srcdoc="([^"]*)"></iframe>$', shown
    )
    assert unescape(frame) == page
    assert repr(page) == f"attention page of a {HOSTILE[1]} (0.1 MB of HTML)"
    assert pickle.loads(pickle.dumps(page)) == page


def test_a_page_has_what_weights_are_made_of_as_it_was() -> None:
    generator = np.random.default_rng(0)
    queries, keys = (generator.standard_normal((2, n, 8)).astype(np.float32) for n in (3, 4))
    scores = np.einsum("hqd,hkd->hqk", queries.astype(float), keys) * 8**-0.5 - 0.2 * np.arange(4)
    weights = (np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)).astype(np.float32)
    parts = ScoreParts(1, [0, 2], 8**-0.5, queries, keys, shared_by=3).fitted(weights)
    whole = np.full((2, 3, 3, 4), 0.25, np.float32)
    whole[1, [0, 2]] = weights
    own = SentenceMap("1", "cross", "abc", "wxyz", whole, scores=[parts])
    data = attention_data(AttentionView(["m"], [own]))["sentences"][0]["maps"][0]["scores"]
    (kept,) = data
    assert (kept["layer"], kept["heads"], kept["d"], kept["shared_by"], kept["off"]) == (1, [0, 2], 8, 3, parts.off)

    def array(name: str, *shape: int) -> npt.NDArray[np.float64]:
        packed = zlib.decompress(base64.b64decode(kept[name]))
        return np.frombuffer(packed, "<f4").reshape(shape).astype(float)

    # As the script of the page makes them
    products = np.einsum("hqd,hkd->hqk", array("queries", 2, 3, 8), array("keys", 2, 4, 8))
    raised = np.exp(kept["scaling"] * products + array("rest", 2, 3, 4))
    made = raised / raised.sum(-1, keepdims=True) * array("sums", 2, 3)[..., None]
    assert np.abs(made - weights).max() < 1e-5
    assert kept["size"] == sum(len(kept[name]) for name in ("queries", "keys", "rest", "sums"))
    assert data_of(page_of_view("A", AttentionView(["m"], [own])))["sentences"][0]["maps"][0]["scores"] == data


def test_queries_and_keys_count_for_the_size_of_a_page() -> None:
    weights = softmax(1, 1, 4, 4)
    vectors = np.random.default_rng(0).standard_normal((1, 4, 64)).astype(np.float32)
    parts = ScoreParts(0, [0], 0.125, vectors, vectors).fitted(weights[0])
    view = AttentionView(["m"], [sentence(weights, "1", scores=[parts])])
    own = attention_data(view)["sentences"][0]["maps"][0]
    size = len(own["weights"]) + own["scores"][0]["size"]
    assert [attention_data(view, room)["left_out"] for room in (size, size - 1)] == [0, 1]
