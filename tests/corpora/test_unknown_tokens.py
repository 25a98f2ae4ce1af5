"""Text that a tokenizer does not know: counted, told from 1 %, refused from 50 % unless the user lets it through."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertTokenizer, PreTrainedTokenizerBase

from headlens.corpora.encoded_corpus import EncodingCounts, UnknownTokens, encode_corpus
from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.sentence import Example
from headlens.corpora.text import plain_sentence
from headlens.errors import CorpusError

SCRIPTS = {"hebrew": "שלום לכולם כאן", "cherokee": "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ogham": "᚛ᚉᚑᚅᚔᚉᚉᚔᚋ ᚍᚐᚋ᚜"}


def encoded(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], allowed: float) -> EncodingCounts:
    counts = EncodingCounts()
    corpus = [Example(plain_sentence(text, str(number))) for number, text in enumerate(texts)]
    assert list(encode_corpus(corpus, SentenceEncoder(tokenizer, max_unknown=allowed), counts))
    return counts


@pytest.mark.parametrize("script", SCRIPTS)
def test_text_in_another_script(script: str, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    text = SCRIPTS[script]
    plain = wordpiece_tokenizer.tokenize(text)
    if (known := len(plain) - plain.count("[UNK]")) > len(plain) / 2:
        pytest.skip(f"the vocabulary knows {known} of {len(plain)} tokens")
    with pytest.raises(
        CorpusError, match=r"% of the tokens of the corpus \(\d+ of \d+\) are unknown to the model's tokenizer"
    ) as e:
        encoded(wordpiece_tokenizer, [text], 0.5)
    assert "--model-args max-unknown=1" in e.value.advice
    counts = encoded(wordpiece_tokenizer, [text], 1.0)
    (source,) = counts.unknown
    assert source == UnknownTokens(len(plain), plain.count("[UNK]"))
    assert len(source.notes(wordpiece_tokenizer)) == 1


def test_byte_level_vocabularies_know_everything(bytebpe_tokenizer: PreTrainedTokenizerBase) -> None:
    counts = encoded(bytebpe_tokenizer, SCRIPTS.values(), 0.5)  # type: ignore[arg-type]
    (source,) = counts.unknown
    assert source.unknown == 0
    assert source.tokens > 10
    assert source.notes(bytebpe_tokenizer) == []


def test_a_side_that_nobody_can_read(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    long, foreign = plain_sentence("a cat and a dog and a bird and a fish", "1"), plain_sentence("ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "2")
    encoder = SentenceEncoder(wordpiece_tokenizer, pairing="apart", max_unknown=0.5)
    for pair in (Example(long, foreign), Example(foreign, long)):
        with pytest.raises(CorpusError, match=r"100\.0% of the tokens of the corpus \(2 of 2\) are unknown"):
            list(encode_corpus([pair], encoder, EncodingCounts()))


@given(st.integers(0, 300), st.integers(0, 300), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_shares(bytebpe_tokenizer: PreTrainedTokenizerBase, known: int, unknown: int, allowed: float) -> None:
    tally = UnknownTokens()
    tally.add([1] + [7] * known + [0] * unknown + [2], 0, {1, 2})
    assert (tally.tokens, tally.unknown) == (known + unknown, unknown)
    share = unknown / (known + unknown) if known + unknown else 0.0
    assert bool(tally.notes(bytebpe_tokenizer)) == (unknown > 0 and share >= 0.01)
    refused = unknown > 0 and allowed < 1 and share >= allowed
    try:
        tally.check(allowed, "x", bytebpe_tokenizer)
    except CorpusError:
        assert refused
    else:
        assert not refused


def test_what_is_nearly_all_unknown_is_refused_early(bytebpe_tokenizer: PreTrainedTokenizerBase) -> None:
    UnknownTokens(4999, 4999).check(0.5, "x", bytebpe_tokenizer, complete=False)
    UnknownTokens(5000, 4000).check(0.5, "x", bytebpe_tokenizer, complete=False)
    with pytest.raises(CorpusError, match=r"95\.0% of the tokens of x \(4,750 of 5,000\) are unknown"):
        UnknownTokens(5000, 4750).check(0.5, "x", bytebpe_tokenizer, complete=False)


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# By case: words of the vocabulary, whether text is written in lower case, a text, and the cause that is named.
CASES: dict[str, tuple[list[str], bool, str, str]] = {
    "uncased": (["the", "cat", "sat"], False, "The Cat SAT", 'put {"do_lower_case": true} into its tokenizer_config'),
    "uncased, accents": (["été", "##s"], False, "ÉTÉ Étés", '"do_lower_case": true'),
    "cased": (["The", "Cat", "SAT"], True, "The Cat SAT", 'put {"do_lower_case": false} into its tokenizer_config'),
    "capitals": (["A", "##C", "##G", "##T"], False, "acgt gtca", "write the text in capitals"),
    "another script": (
        ["The", "cat", "sat"],
        False,
        "שלום לכולם",
        "Give text in the language and script of the model.",
    ),
    "no letters": (["1", "2"], False, "one two", "Give text in the language and script of the model."),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_named(case: str) -> None:
    words, lower, text, cause = CASES[case]
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=lower, strip_accents=False)
    with pytest.raises(CorpusError) as caught:
        encoded(tokenizer, [text], 0.5)
    assert cause in caught.value.advice
    assert caught.value.advice.endswith(" --model-args max-unknown=1 measures it anyway.")
    (note,) = encoded(tokenizer, [text], 1.0).unknown[0].notes(tokenizer)
    assert (cause in note) == (not cause.startswith("Give"))
