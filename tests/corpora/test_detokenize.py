"""Spans of tokenizers without offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from headlens.corpora.detokenize import match_surfaces, slow_spans


@pytest.mark.parametrize(
    ("tokens", "text", "expected"),
    [
        pytest.param(["▁The", "▁ca", "t"], "The  cat", ["The", "ca", "t"], id="sentencepiece"),
        pytest.param(["▁", "a", "▁b"], " a b", ["", "a", "b"], id="lone space"),
        pytest.param(["the", "ca", "##fe"], "The CAFÉ", ["The", "CA", "FÉ"], id="wordpiece, accents stripped"),
        pytest.param(["ca", "t</w>", "s</w>"], "cat s", ["ca", "t", "s"], id="end of word"),
        pytest.param(["ca@@", "t"], "cat", ["ca", "t"], id="subword-nmt"),
        pytest.param(["Ġa", "b"], " ab", ["a", "b"], id="byte-level, ASCII"),
        pytest.param(["▁fi", "ne"], "ﬁne", ["ﬁ", "ne"], id="ligature"),
        pytest.param(["▁stras", "se"], "Straße", ["Straß", "ße"], id="folded to two letters"),
        pytest.param(["é", "a"], "e\u0301a", ["e\u0301", "a"], id="composed and decomposed"),
        pytest.param(["##", "a"], "##a", ["##", "a"], id="a marker that is text"),
        pytest.param(["a", "b"], "a\u200b\u00ad\x07b", ["a", "b"], id="characters that show nothing"),
        pytest.param([], "  ", [], id="blank"),
    ],
)
def test_match_surfaces(tokens: list[str], text: str, expected: list[str]) -> None:
    spans = match_surfaces(tokens, text)
    assert spans is not None
    assert [text[start:end] for start, end in spans] == expected


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(["a", "x"], "a b"), (["a"], "a b"), (["a", "b"], "a"), (["[UNK]"], "☃"), (["Ã", "©"], "é")],
)
def test_no_match(tokens: list[str], text: str) -> None:
    assert match_surfaces(tokens, text) is None


WORDS = st.text(st.characters(exclude_categories=["Z", "C", "M"], exclude_characters="▁Ġ#@"), min_size=1, max_size=5)


@given(st.lists(st.lists(WORDS, min_size=1, max_size=3), max_size=5))
def test_pieces_of_words_are_found_where_they_were_cut(words: list[list[str]]) -> None:
    text = " ".join("".join(pieces) for pieces in words)
    tokens, spans, at = [], [], 0
    for pieces in words:
        for k, piece in enumerate(pieces):
            tokens.append(piece if k else "▁" + piece)
            spans.append((at, at + len(piece)))
            at += len(piece)
        at += 1
    assert match_surfaces(tokens, text) == spans


class Plain:
    """A tokenizer in Python that splits at spaces; its offsets and modes are missing."""

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids = ids

    def tokenize(self, text: str) -> list[str]:
        return text.split()

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [self.ids.get(t, 0) for t in tokens]


def test_tokens_that_are_not_those_of_the_ids_are_refused() -> None:
    tokenizer = Plain({"a": 1, "b": 2})
    assert slow_spans(tokenizer, "a b", [1, 2], "source") == [(0, 1), (2, 3)]
    assert slow_spans(tokenizer, "a b", [1, 3], "source") is None


def test_sentencepiece_without_offsets_is_matched_by_surface(
    marian_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "The old teacher  isn't reading naïve stories!"
    ids = marian_tokenizer(text, add_special_tokens=False)["input_ids"]
    exact = slow_spans(marian_tokenizer, text, ids, "source")
    monkeypatch.delattr(type(marian_tokenizer.spm_source), "EncodeAsOffsetMapping")  # sentencepiece < 0.2.2
    matched = slow_spans(marian_tokenizer, text, ids, "source")
    assert exact is not None
    assert matched is not None
    assert [text[a:b].strip() for a, b in matched] == [text[a:b].strip() for a, b in exact]
