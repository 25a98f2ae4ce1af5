"""Encoding sentences: ids, kinds of tokens, units, and what is counted."""

import copy
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headlens.corpora.encoded_corpus import EncodingCounts, add_counts, encode_corpus
from headlens.corpora.encoding import SentenceEncoder, TokenKind
from headlens.corpora.sentence import Example, Sentence, Word
from headlens.findings.result_notes import encoding_notes

if TYPE_CHECKING:
    from headlens.runs.corpus_pass import CorpusReader

EMOJI = ["👩\u200d👩\u200d👧", "👍🏽", "❤\ufe0f", "🇩🇪"]
TEXT = st.lists(
    st.one_of(
        st.sampled_from(
            [" ", "  ", "\t", "\u00a0", "שלום", "مَرْحَبًا", "e\u0301", "…", "ﬁ", "漢字", "gonna", "don't", *EMOJI]
        ),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
        st.text("abcdefgXYZ ,.", min_size=1, max_size=6),
    ),
    max_size=8,
).map("".join)


def sentence(text: str, *spans: tuple[int, int]) -> Sentence:
    """Words at the spans given, or the stretches between spaces."""
    if not spans:
        at, found = 0, []
        for part in text.split(" "):
            found += [(at, at + len(part))] if part else []
            at += len(part) + 1
        spans = tuple(found)
    return Sentence(text, tuple(Word(text[a:b], a, b) for a, b in spans))


@st.composite
def sentences(draw: st.DrawFn) -> Sentence:
    """Random text cut at random places; some parts are no word, some are two words with one span."""
    text = draw(TEXT)
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=8))})
    spans = []
    for a, b in pairwise(cuts):
        if text[a:b].strip():
            spans += [(a, b)] * draw(st.sampled_from([1, 1, 1, 0, 2]))
    return Sentence(text, tuple(Word(text[a:b], a, b) for a, b in spans))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings().max_examples // 2)
@given(sentences())
def test_invariants_over_random_text(any_tokenizer: PreTrainedTokenizerBase, random_sentence: Sentence) -> None:
    example = SentenceEncoder(any_tokenizer).encode(Example(random_sentence))
    assert example is not None
    sequence = example.source
    words, text = random_sentence.words, random_sentence.text
    units = [u for u in sequence.units if u >= 0]
    assert units == sorted(units)
    of_word = [u for u in sequence.unit_of_word if u >= 0]
    assert of_word == sorted(of_word)
    assert set(units) == set(of_word) == set(range(sequence.n_units))
    for token, (unit, (start, end), kind) in enumerate(
        zip(sequence.units, sequence.spans, sequence.kinds, strict=True)
    ):
        assert 0 <= start <= end <= len(text)
        overlapping = {u for w, u in zip(words, sequence.unit_of_word, strict=True) if w.start < end and start < w.end}
        if kind & TokenKind.SPECIAL:
            assert unit == -1
        elif start < end:
            assert overlapping == ({unit} if unit >= 0 else set()), token
    if not any(k & TokenKind.SPECIAL for k in sequence.kinds):
        assert sequence.alignment.unaligned_tokens == sequence.units.count(-1)


def kinds(tokenizer: PreTrainedTokenizerBase, text: str) -> list[TokenKind]:
    example = SentenceEncoder(tokenizer).encode(Example(sentence(text)))
    assert example is not None
    return [TokenKind(k) for k in example.source.kinds]


def test_kinds_of_bert(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    assert kinds(wordpiece_tokenizer, "A cat , $ ☃ 漢.") == [
        TokenKind.SPECIAL | TokenKind.CLS,
        TokenKind.CONTENT,
        TokenKind.CONTENT,
        TokenKind.PUNCT,
        TokenKind.PUNCT,
        TokenKind.PUNCT,  # unknown to the vocabulary, but still a symbol
        TokenKind.CONTENT,
        TokenKind.PUNCT,
        TokenKind.SPECIAL | TokenKind.SEP,
    ]


def test_unknown_words_are_not_special(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
    metaspace_tokenizer: PreTrainedTokenizerBase,
    marian_tokenizer: PreTrainedTokenizerBase,
) -> None:
    for tokenizer in (wordpiece_tokenizer, metaspace_tokenizer, marian_tokenizer):
        encoder = SentenceEncoder(tokenizer)
        assert tokenizer.unk_token_id not in encoder.special_kinds
        example = encoder.encode(Example(sentence("ਪੰਜਾਬੀ")))
        assert example is not None
        assert tokenizer.unk_token_id in example.source.ids
        assert example.source.unit_of_word == (0,)


def test_gpt2_adds_nothing_and_its_one_special_token_stays_special(bytebpe_tokenizer: PreTrainedTokenizerBase) -> None:
    assert all(k == TokenKind.CONTENT for k in kinds(bytebpe_tokenizer, "A cat"))
    end = SentenceEncoder(bytebpe_tokenizer).special_kinds[bytebpe_tokenizer.eos_token_id]
    assert TokenKind(end) == TokenKind.SPECIAL | TokenKind.BOS | TokenKind.EOS


def test_tokens_that_the_tokenizer_adds_without_naming_them_are_special(any_tokenizer: PreTrainedTokenizerBase) -> None:
    assert SentenceEncoder(any_tokenizer).unnamed_tokens == []


@pytest.mark.parametrize("added", [["[CLS]"], ["[SEP]"], ["[CLS]", "[SEP]"], ["cat"]])
def test_what_a_tokenizer_adds_is_special_and_told(
    wordpiece_tokenizer: PreTrainedTokenizerBase, added: list[str]
) -> None:
    """A post-processor adds tokens, and the settings beside it name none of them."""
    own = copy.deepcopy(wordpiece_tokenizer)
    ids = [(token, own.convert_tokens_to_ids(token)) for token in added]
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(f"{added[0]} $A {added[-1]}", None, ids)
    unnamed = PreTrainedTokenizerFast(tokenizer_object=own.backend_tokenizer, unk_token="[UNK]", pad_token="[PAD]")
    encoder = SentenceEncoder(unnamed)
    assert sorted(encoder.unnamed_tokens) == sorted(set(added))
    encoded = encoder.encode(Example(sentence("a dog")))
    assert encoded is not None
    kinds = encoded.source.kinds
    assert [bool(kind & TokenKind.SPECIAL) for kind in kinds] == [True, *[False] * (len(kinds) - 2), True]
    assert not any(kind & (TokenKind.CLS | TokenKind.SEP) for kind in kinds)


def test_special_token_inside_the_text_belongs_to_no_word(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    example = SentenceEncoder(wordpiece_tokenizer).encode(Example(sentence("A [SEP] cat")))
    assert example is not None
    assert example.source.units == (-1, 0, -1, 1, -1)
    assert example.source.unit_of_word == (0, -1, 1)


def test_language_code_of_marian_is_special(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    example = SentenceEncoder(marian_tokenizer).encode(Example(sentence(">>deu<< It", (8, 10))))
    assert example is not None
    assert example.source.kinds[0] == TokenKind.SPECIAL
    assert example.source.alignment.unaligned_tokens == 0


def test_words_merged_by_a_token(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    example = SentenceEncoder(wordpiece_tokenizer).encode(Example(sentence("I cannot", (0, 1), (2, 5), (5, 8))))
    assert example is not None
    assert example.source.units == (-1, 0, 1, -1)
    assert example.source.unit_of_word == (0, 1, 1)


PAIR = Example(sentence("A cat sold it"), sentence("She sold books"))


@pytest.mark.parametrize("name", ["marian_tokenizer", "metaspace_tokenizer"])
def test_target_is_the_decoders_input(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(name)
    example = SentenceEncoder(tokenizer, decoder_start_id=tokenizer.pad_token_id).encode(PAIR)
    assert example is not None
    assert example.target is not None
    labels = tokenizer(text_target="She sold books")["input_ids"]
    assert example.target.ids == (tokenizer.pad_token_id, *labels[:-1])
    assert example.target.kinds[0] == TokenKind.SPECIAL
    assert not any(k & TokenKind.EOS for k in example.target.kinds)
    assert example.target.units[0] == -1
    assert example.target.unit_of_word == (0, 1, 2)
    assert [u for u in example.target.units if u >= 0] == sorted(example.target.units)[1:]


def test_start_token_is_special_even_if_its_id_is_ordinary(metaspace_tokenizer: PreTrainedTokenizerBase) -> None:
    example = SentenceEncoder(metaspace_tokenizer, decoder_start_id=7).encode(PAIR)
    assert example is not None
    assert example.target is not None
    assert (example.target.ids[0], example.target.kinds[0]) == (7, TokenKind.SPECIAL)


def test_targets_of_other_models_are_not_read(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    example = SentenceEncoder(wordpiece_tokenizer).encode(PAIR)
    assert example is not None
    assert example.target is None
    assert example.length == len(example.source) == 6


@pytest.mark.parametrize(("max_length", "fits"), [(5, False), (6, True), (None, True)])
def test_limit(wordpiece_tokenizer: PreTrainedTokenizerBase, max_length: int | None, fits: bool) -> None:
    encoded = SentenceEncoder(wordpiece_tokenizer, max_length).encode(PAIR)
    assert (encoded is not None) is fits


def test_limit_of_the_tokenizer(
    wordpiece_tokenizer: PreTrainedTokenizerBase, metaspace_tokenizer: PreTrainedTokenizerBase
) -> None:
    assert SentenceEncoder(wordpiece_tokenizer).limit == 512
    assert SentenceEncoder(metaspace_tokenizer).limit is None  # states 1e30


def test_target_longer_than_the_limit(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    long_target = Example(sentence("it"), sentence("books " * 20))
    encoder = SentenceEncoder(marian_tokenizer, max_length=15, decoder_start_id=marian_tokenizer.pad_token_id)
    assert encoder.encode(long_target) is None
    assert encoder.encode(Example(sentence("it"), sentence("it"))) is not None


def test_counts(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    corpus = [
        Example(sentence("A cat")),
        Example(sentence("I cannot \u200b !", (0, 1), (2, 5), (5, 8), (9, 10))),  # no token for U+200B; none for "!"
        Example(Sentence("", ())),
        Example(sentence("cat " * 30)),
    ]
    counts = EncodingCounts()
    encoded = list(encode_corpus(corpus, SentenceEncoder(wordpiece_tokenizer, max_length=20), counts))
    assert [e.source.sentence for e in encoded] == [corpus[0].source, corpus[1].source]
    assert counts == EncodingCounts(
        sentences=2,
        tokens=4 + 5,
        text_tokens={"source": 2 + 3},
        unknown_tokens={"source": 0},
        words=2 + 4,
        too_long=1,
        empty=1,
        unaligned_words=1,
        unaligned_tokens=1,
        merged_words=2,
        sentences_with_unaligned=1,
    )


def test_words_without_a_token_are_named_and_have_relations_in_trees_alone(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    text, spans = "A \ufeff cat \u200b\u200d", ((0, 1), (2, 3), (4, 7), (8, 10))
    plain = sentence(text, *spans)
    tree = replace(plain, words=tuple(replace(word, head=n - 1) for n, word in enumerate(plain.words)))
    reader = cast("CorpusReader", SimpleNamespace(encoder=SentenceEncoder(wordpiece_tokenizer), encoder_alone=False))
    for whole, end in ((plain, ""), (tree, "; their relations are not measured")):
        counts = EncodingCounts()
        list(encode_corpus([Example(whole)], reader.encoder, counts))
        assert counts.unaligned_forms == {"\ufeff": 1, "\u200b\u200d": 1}
        note = next(note for note in encoding_notes(reader, counts) if "token" in note)
        assert note == f"2 words in 1 sentence have no token, such as U+FEFF (zero width no-break space){end}."
        assert add_counts(EncodingCounts(), counts).unaligned_forms == counts.unaligned_forms


def test_counts_of_pairs(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    counts = EncodingCounts()
    encoder = SentenceEncoder(marian_tokenizer, decoder_start_id=marian_tokenizer.pad_token_id)
    corpus = [PAIR, Example(PAIR.source, Sentence("", ()))]
    (example,) = encode_corpus(corpus, encoder, counts)
    assert (counts.sentences, counts.empty, counts.words) == (1, 1, 4 + 3)
    assert counts.tokens == sum(map(len, example.sides)) > len(example.source)


def test_sentence_of_no_tokens_is_empty(bytebpe_tokenizer: PreTrainedTokenizerBase) -> None:
    counts = EncodingCounts()
    assert not list(
        encode_corpus([Example(Sentence("", (Word("x", 0, 0),)))], SentenceEncoder(bytebpe_tokenizer), counts)
    )
    assert counts.empty == 1


def test_one_token_for_both_ends_begins_where_it_is_first(bytebpe_tokenizer: PreTrainedTokenizerBase) -> None:
    """Else the sink of GPT-2 counts as a separator, and its confidence leaves out what it looks at."""
    tokenizer = copy.deepcopy(bytebpe_tokenizer)
    end = tokenizer.eos_token
    first, *middle, last = kinds(tokenizer, f"{end}A cat{end}")
    assert (first, last) == (TokenKind.SPECIAL | TokenKind.BOS, TokenKind.SPECIAL | TokenKind.EOS)
    assert set(middle) == {TokenKind.CONTENT}
    assert [k for k in kinds(tokenizer, f"A{end} cat") if k] == [TokenKind.SPECIAL | TokenKind.EOS]


def test_two_tokens_for_both_ends_stay_as_they_are(
    wordpiece_tokenizer: PreTrainedTokenizerBase, marian_tokenizer: PreTrainedTokenizerBase
) -> None:
    bert = copy.deepcopy(wordpiece_tokenizer)
    bert.bos_token, bert.eos_token = "[CLS]", "[SEP]"
    first, *_, last = kinds(bert, "A cat")
    assert first == TokenKind.SPECIAL | TokenKind.CLS | TokenKind.BOS
    assert last == TokenKind.SPECIAL | TokenKind.SEP | TokenKind.EOS
    assert kinds(marian_tokenizer, "A cat")[-1] == TokenKind.SPECIAL | TokenKind.EOS
