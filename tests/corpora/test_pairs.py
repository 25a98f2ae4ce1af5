"""Pairs of sentences, read as one sequence or one by one."""

from __future__ import annotations

import pytest
from saved import sentence, tree
from transformers import PreTrainedTokenizerBase

from headlens.corpora.batches import collate
from headlens.corpora.encoded_corpus import EncodingCounts, encode_corpus
from headlens.corpora.encoding import SentenceEncoder, TokenKind
from headlens.corpora.sentence import Example, Sentence, join_sentences
from headlens.errors import AlignmentError

PAIR = Example(tree("dogs", "chase", "old", "mice"), sentence("They sleep , it seems ."))


def test_joined_sentences_keep_words_and_trees() -> None:
    assert PAIR.target is not None
    whole = join_sentences(PAIR.source, PAIR.target)
    assert [whole.text[w.start : w.end] for w in whole.words] == [
        part.text[w.start : w.end] for part in (PAIR.source, PAIR.target) for w in part.words
    ]
    assert [w.head for w in whole.words[: len(PAIR.source.words)]] == [w.head for w in PAIR.source.words]
    twice = join_sentences(PAIR.source, PAIR.source)
    count = len(PAIR.source.words)
    for word, again in zip(twice.words[:count], twice.words[count:], strict=True):
        assert word.head is not None
        assert again.head == (word.head if word.head < 0 else word.head + count)


def test_joined_as_the_tokenizer_joins_them(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    encoder = SentenceEncoder(wordpiece_tokenizer, pairing="joined")
    encoded = encoder.encode(PAIR)
    assert encoded is not None
    assert PAIR.target is not None
    assert encoded.target is None
    row, expected = encoded.source, wordpiece_tokenizer(PAIR.source.text, PAIR.target.text)
    assert list(row.ids) == expected["input_ids"]
    assert list(row.segments) == expected["token_type_ids"]
    tokens = wordpiece_tokenizer.convert_ids_to_tokens(expected["input_ids"])
    for token, kind, (start, end) in zip(tokens, row.kinds, row.spans, strict=True):
        if not kind & TokenKind.SPECIAL:
            assert row.sentence.text[start:end].lower() == token.removeprefix("##")
    assert row.alignment.unaligned_words == 0
    batch = collate([encoded], pad_id=0, device="cpu")
    assert batch.inputs["token_type_ids"].tolist() == [expected["token_type_ids"]]


def test_models_without_segments_get_none(metaspace_tokenizer: PreTrainedTokenizerBase) -> None:
    encoded = SentenceEncoder(metaspace_tokenizer, pairing="joined").encode(PAIR)
    assert encoded is not None
    assert encoded.source.segments == ()
    assert "token_type_ids" not in collate([encoded], pad_id=0, device="cpu").inputs


def test_apart_both_sides_are_read_like_sources(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    encoded = SentenceEncoder(wordpiece_tokenizer, pairing="apart").encode(PAIR)
    assert encoded is not None
    assert PAIR.target is not None
    assert encoded.target is not None
    assert list(encoded.source.ids) == wordpiece_tokenizer(PAIR.source.text)["input_ids"]
    assert list(encoded.target.ids) == wordpiece_tokenizer(PAIR.target.text)["input_ids"]


def test_alone_the_target_is_not_read(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    encoder = SentenceEncoder(wordpiece_tokenizer)
    assert encoder.encode(PAIR) == encoder.encode(Example(PAIR.source))


def test_a_pair_that_is_too_long_or_half_empty_is_left_out(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    counts = EncodingCounts()
    encoder = SentenceEncoder(wordpiece_tokenizer, 12, long_sentences="window", pairing="joined")
    pairs = [PAIR, Example(PAIR.source, Sentence("", ())), Example(PAIR.source, sentence("yes"))]
    assert len(list(encode_corpus(pairs, encoder, counts))) == 1
    assert (counts.too_long, counts.empty, counts.windowed) == (1, 1, 0)


def test_a_slow_tokenizer_cannot_join(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(AlignmentError, match="slow tokenizer"):
        SentenceEncoder(marian_tokenizer, pairing="joined").encode(PAIR)
