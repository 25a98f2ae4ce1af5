"""Long sentences cut into windows: the same numbers as for a corpus of the windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from saved import Memory, build, joined, save, sentence, tree
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

from headlens.corpora.corpus_options import LongSentences
from headlens.corpora.encoded_corpus import EncodingCounts, encode_corpus
from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.sentence import Example
from headlens.errors import CorpusError
from headlens.models.loading import LoadedModel, load
from headlens.roles.head_roles import Frequencies, classify_heads
from headlens.roles.role_options import ClassifyOptions
from headlens.runs.corpus_pass import CorpusPass

LIMIT = 16


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    return load(
        save(
            build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=LIMIT),
            tmp_path_factory.mktemp("models") / "tiny",
            wordpiece_tokenizer,
        )
    )


LONG = joined([tree("dogs", "chase", a, b) for a in ("small", "old", "red") for b in ("cats", "birds", "unbelievably")])
SHORT = tree("cats", "see", "big", "dogs")
OPTIONS = ClassifyOptions(long_sentences="window", relations=("nsubj", "obj", "amod"))


@pytest.mark.slow
def test_the_same_as_a_corpus_of_the_windows(loaded: LoadedModel) -> None:
    assert loaded.tokenizer is not None
    corpus = Memory([Example(SHORT), Example(LONG), Example(sentence("x " * 30))])
    found = classify_heads(loaded, corpus, OPTIONS, Frequencies(len))
    encoder = SentenceEncoder(loaded.tokenizer, LIMIT, long_sentences="window")
    windows = [Example(e.source.sentence) for e in encode_corpus(corpus, encoder, EncodingCounts())]
    expected = classify_heads(loaded, Memory(windows), OPTIONS, Frequencies(len))
    assert found.tables.keys() == expected.tables.keys() >= {"heads", "syntax", "rare", "similarity"}
    for name, table in found.tables.items():
        pd.testing.assert_frame_equal(table.rows, expected.tables[name].rows)
    assert found.annotation == expected.annotation
    assert (found.encoding.windowed, found.encoding.sentences) == (2, len(windows))
    assert (expected.encoding.windowed, expected.encoding.too_long) == (0, 0)


def test_arcs_and_notes(loaded: LoadedModel) -> None:
    found = classify_heads(loaded, Memory([Example(LONG), Example(SHORT)]), OPTIONS)
    arcs = [w for w in (*LONG.words, *SHORT.words) if w.relation != "root"]
    assert sum(found.annotation.arcs.values()) + found.annotation.lost_arcs == len(arcs)
    assert found.annotation.lost_arcs > 0
    assert any(n.startswith(f"1 sentence longer than {LIMIT} tokens was cut into windows.") for n in found.notes)
    assert not any("left out" in n for n in found.notes)
    assert np.isfinite(found.tables["heads"].rows["confidence"]).all()


def test_left_out_by_default(loaded: LoadedModel) -> None:
    found = classify_heads(loaded, Memory([Example(LONG), Example(SHORT)]), ClassifyOptions())
    assert (
        f"1 sentence longer than {LIMIT} tokens was left out. --data-args long-sentences=window splits them instead."
        in found.notes
    )
    assert (found.encoding.too_long, found.encoding.windowed) == (1, 0)
    with pytest.raises(
        CorpusError, match=rf"1 longer than its {LIMIT} tokens, 0 empty(.|\n)*--data-args long-sentences=window"
    ):
        classify_heads(loaded, Memory([Example(LONG)]), ClassifyOptions())


def test_words_too_long_are_told(loaded: LoadedModel) -> None:
    text = sentence("a b " + "x1" * 40 + " c d")
    found = classify_heads(loaded, Memory([Example(text), Example(sentence("x1" * 40))]), OPTIONS)
    assert f"1 word was left out of the windows: it is longer than {LIMIT} tokens on its own." in found.notes
    assert f"1 sentence longer than {LIMIT} tokens was left out." in found.notes


def test_pairs_are_never_cut(tmp_path: Path, marian_tokenizer: PreTrainedTokenizerBase) -> None:
    extra = {"pad_token_id": marian_tokenizer.pad_token_id, "decoder_start_token_id": marian_tokenizer.pad_token_id}
    model = build("MarianModel", len(marian_tokenizer), max_position_embeddings=LIMIT, **extra)
    loaded = load(save(model, tmp_path / "marian", marian_tokenizer))
    pairs = [Example(sentence("a cat"), sentence("it")), Example(sentence("a cat " * 9), sentence("it"))]
    found = classify_heads(loaded, Memory(pairs), OPTIONS)
    assert (found.encoding.too_long, found.encoding.windowed) == (1, 0)
    assert f"1 sentence longer than {LIMIT} tokens was left out. Pairs are not cut into windows." in found.notes


@pytest.mark.parametrize("long_sentences", rest_slow(["window", "skip"], ["window"]))
def test_progress_is_told_in_sentences_of_the_corpus(loaded: LoadedModel, long_sentences: LongSentences) -> None:
    steps: list[int] = []
    corpus = Memory([Example(s) for s in (LONG, SHORT, LONG, SHORT, sentence("x " * 30), SHORT)])
    options = replace(OPTIONS, long_sentences=long_sentences, batch_tokens=LIMIT)
    classify_heads(loaded, corpus, options, corpus_pass=CorpusPass(steps.append))
    assert len(steps) > 1
    assert sum(steps) == len(corpus.examples)


def test_a_sentence_without_a_tree_counts_once_however_many_windows_it_has(loaded: LoadedModel) -> None:
    corpus = Memory([Example(sentence("x y " * 30)), Example(sentence("a b")), Example(SHORT)])
    found = classify_heads(loaded, corpus, OPTIONS)
    assert found.encoding.windowed == 1
    assert found.encoding.sentences > 3
    assert "2 sentences have no dependency tree; --parser adds them." in found.notes


@pytest.mark.parametrize("documents", [1, 3])
def test_few_long_texts_have_enough_windows_for_roles(
    documents: int, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    model = build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=512)
    loaded = LoadedModel("tiny", model, wordpiece_tokenizer, None)
    texts = [Example(sentence("The old dog sees a small house . " * (150 // documents))) for _ in range(documents)]
    found = classify_heads(loaded, Memory(texts), replace(OPTIONS, similarity="off"))
    assert found.encoding.windowed == documents
    assert found.encoding.sentences >= 30
    assert not found.too_little
    (note,) = [note for note in found.notes if "fewer than the 30 that roles need" in note]
    assert "windows have at most 40 tokens" in note
    if documents > 1:  # which the model reads whole
        whole = classify_heads(loaded, Memory(texts), replace(OPTIONS, similarity="off", long_sentences="skip"))
        assert (whole.encoding.sentences, whole.too_little) == (documents, True)
        assert "--data-args long-sentences=window reads long texts in parts." in whole.notes[0]
