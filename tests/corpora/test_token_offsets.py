"""Ids and spans of tokenizers."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import ByT5Tokenizer, MarianTokenizer, PreTrainedTokenizerBase

from headlens.corpora.alignment import Side, is_punctuation, match_surfaces, slow_spans, tokenize, trim
from headlens.errors import AlignmentError


@pytest.mark.parametrize(
    ("surface", "expected"),
    [
        *((text, True) for text in (".", "…", " ?! ", "$", "☃", "»,")),
        *((text, False) for text in ("", " ", "a.", "1", "’s", "\u0301", "\u200d")),
    ],
)
def test_is_punctuation(surface: str, expected: bool) -> None:
    assert is_punctuation(surface) is expected


@given(st.text(alphabet="ab \t\u00a0\n", max_size=12), st.data())
def test_trim_agrees_with_strip(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    a, b = trim(text, (start, end))
    assert text[a:b] == text[start:end].strip()
    assert start <= a <= b <= end


def surfaces(tokenizer: PreTrainedTokenizerBase, text: str, side: Side = "source") -> list[str]:
    pieces = tokenize(tokenizer, text, side)
    return [text[start:end] for start, end in pieces.spans]


def test_ids_are_the_tokenizers_own(any_tokenizer: PreTrainedTokenizerBase) -> None:
    text = "Nobody isn't reading  the café (again)."
    assert list(tokenize(any_tokenizer, text).ids) == any_tokenizer(text)["input_ids"]
    assert list(tokenize(any_tokenizer, text, "target").ids) == any_tokenizer(text_target=text)["input_ids"]


@pytest.mark.parametrize(
    "text",
    [
        "  The old  cat \t sold books. ",
        "👩‍👩‍👧 sold 👍🏽!",
        "שלום עולם, مرحبا",
        "na\u0131\u0308ve cafe\u0301",
        "…½ ﬁne ①",
        "漢字の本",
    ],
)
def test_spans_cover_the_text(any_tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    pieces = tokenize(any_tokenizer, text)
    assert len(pieces.ids) == len(pieces.spans)
    covered = {c for start, end in pieces.spans for c in range(start, end)}
    marks = {"Mn", "Cf", "Zs", "Cc"}  # WordPiece strips accents, normalisers drop what shows nothing
    assert covered >= {i for i, c in enumerate(text) if unicodedata.category(c) not in marks}
    assert list(pieces.spans[:-1]) == sorted(pieces.spans[:-1])  # the last may be a special token: (0, 0)


def test_leading_space_is_trimmed(bytebpe_tokenizer: PreTrainedTokenizerBase) -> None:
    assert surfaces(bytebpe_tokenizer, "A cat sold it")[1] != ""
    assert all(s == s.strip() for s in surfaces(bytebpe_tokenizer, " A cat  sold it"))


def test_bytes_of_one_character_share_its_span(bytebpe_tokenizer: PreTrainedTokenizerBase) -> None:
    assert set(surfaces(bytebpe_tokenizer, "漢")) == {"漢"}
    assert len(surfaces(bytebpe_tokenizer, "漢")) == 3


def test_unknown_word_keeps_its_span(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    pieces = tokenize(wordpiece_tokenizer, "a 🦤 b")
    assert pieces.ids[2] == wordpiece_tokenizer.unk_token_id
    assert pieces.spans[2] == (2, 3)


def test_long_texts_are_not_cut(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    assert len(tokenize(wordpiece_tokenizer, "a " * 600).ids) == 602


def test_marian_source_and_target_have_their_own_pieces(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    text = "Nobody cannot see naïve stories!"
    source, target = surfaces(marian_tokenizer, text), surfaces(marian_tokenizer, text, "target")
    assert source != target
    for side in (source, target):
        assert "".join(side) == text.replace(" ", "")


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_with_a_vocabulary_per_side(marian_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    source = Path(marian_tokenizer.spm_files[0]).with_name("vocab.json")
    ids = json.loads(source.read_text(encoding="utf-8"))
    target = tmp_path / "target_vocab.json"
    shifted = {piece: i + 3 if i > 1 else i for piece, i in ids.items()}
    target.write_text(json.dumps(shifted), encoding="utf-8")
    tokenizer = MarianTokenizer(
        *marian_tokenizer.spm_files, str(source), target_vocab_file=str(target), separate_vocabs=True
    )
    text = "Nobody cannot see it"
    one, two = tokenize(marian_tokenizer, text, "target"), tokenize(tokenizer, text, "target")
    assert one.spans == two.spans
    assert one.ids != two.ids


def test_marian_language_code_and_special_tokens_in_the_text(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    assert surfaces(marian_tokenizer, ">>deu<< A cat</s>it")[0] == ">>deu<<"
    assert "</s>" in surfaces(marian_tokenizer, ">>deu<< A cat</s>it")


def test_character_that_becomes_several_pieces_belongs_to_all(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    assert surfaces(marian_tokenizer, "it…")[-4:-1] == ["…"] * 3  # normalised to three full stops


def test_slow_tokenizer_that_cannot_be_aligned() -> None:
    with pytest.raises(AlignmentError, match=r"ByT5Tokenizer is a slow tokenizer(.|\n)*tokenizer\.json"):
        tokenize(ByT5Tokenizer(), "café")


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
