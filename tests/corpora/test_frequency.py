"""Word frequencies and the rarest words of a sentence."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wordfreq
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.frequency import (
    corpus_frequency,
    file_frequency,
    make_frequency,
    rarest,
    rarity,
    unit_forms,
)
from headlens.corpora.sentence import Example, Sentence, Word
from headlens.errors import CorpusError, OptionError


def example(text: str, *spans: tuple[int, int], target: Sentence | None = None) -> Example:
    return Example(Sentence(text, tuple(Word(text[a:b], a, b) for a, b in spans)), target)


def test_wordfreq() -> None:
    english = make_frequency("wordfreq:en", [])
    assert english("The") == english("the") == wordfreq.word_frequency("the", "en")
    assert english("xqzwvk") == 0.0
    assert make_frequency("wordfreq:de", [])("und") > english("und")


@pytest.mark.parametrize("language", ["xx", "english", "", "th"])
def test_unknown_language(language: str) -> None:
    with pytest.raises(OptionError, match=r"no word frequency list for(.|\n)*Languages: ar, .*, en, .*corpus"):
        make_frequency(f"wordfreq:{language}", [])


@pytest.mark.parametrize(("language", "module"), [("zh", "jieba"), ("ja", "MeCab"), ("ko", "MeCab")])
def test_language_whose_word_splitter_is_missing(language: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in {"wordfreq.chinese", "wordfreq.mecab"}:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OptionError, match=rf"need the package {module}\.(.|\n)*pip install 'wordfreq\[cjk\]'"):
        make_frequency(f"wordfreq:{language}", [])


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "counts.tsv"
    path.write_text("\ufeff\ufeffthe\t3\nThe\t1\n\ncafe\u0301\t0.5\r\nrare\t0\n", encoding="utf-8")
    frequency = make_frequency(str(path), [])
    assert frequency("THE") == 4 / 4.5
    assert frequency("café") == 0.5 / 4.5
    assert frequency("rare") == frequency("unheard") == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"the", "not WORD<TAB>COUNT: 'the'"),
        (b"the\tmany", "not WORD<TAB>COUNT"),
        (b"the\t1\t2", "not WORD<TAB>COUNT"),
        (b"the\t-1", "'-1' is not a count"),
        (b"the\tnan", "'nan' is not a count"),
        (b"the\tinf", "'inf' is not a count"),
        (b"caf\xe9\t1", "not UTF-8"),
    ],
)
def test_broken_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "counts.tsv"
    path.write_bytes(b"a\t1\n\n" + line + b"\n")
    with pytest.raises(CorpusError) as caught:
        file_frequency(path)
    assert str(caught.value).startswith(f"{path}:3: {message}")
    assert "WORD<TAB>COUNT per line, in UTF-8" in caught.value.advice


def test_file_without_counts(tmp_path: Path) -> None:
    path = tmp_path / "counts.tsv"
    path.write_text("the\t0\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"counts\.tsv: no word has a count"):
        file_frequency(path)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"cannot be read \(Is a directory\)"):
        file_frequency(tmp_path)


def test_neither_file_nor_word(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nowhere\.tsv' is not a file(.|\n)*wordfreq:en"):
        make_frequency(str(tmp_path / "nowhere.tsv"), [])


CORPUS = [
    example("The cat and THE dog", (0, 3), (4, 7), (8, 11), (12, 15), (16, 19)),
    example("I cannot", (0, 1), (2, 5), (5, 8)),
    example("zum Haus", (0, 3), (0, 3), (4, 8), target=Sentence("to", (Word("to", 0, 2),))),
]


def test_corpus() -> None:
    frequency = make_frequency("corpus", CORPUS)
    assert frequency("the") == 2 / 10  # ten stretches of text: the two words of "zum" share one
    assert frequency("zum") == frequency("Cat") == frequency("can") == 1 / 10
    assert frequency("cannot") == 1 / 10  # a token may cover both words
    assert frequency("zu") == frequency("Icannot") == frequency("to") == 0
    assert corpus_frequency(CORPUS, "target")("to") == 1


def test_corpus_without_words() -> None:
    with pytest.raises(CorpusError, match=r"no words to count(.|\n)*wordfreq"):
        make_frequency("corpus", [example("")])


@given(st.lists(st.tuples(st.sampled_from([0.0, 1e-6, 2e-6, 1e-3, 0.05]), st.booleans()), max_size=10))
def test_rarest_against_sorting(units: list[tuple[float, bool]]) -> None:
    frequencies = np.array([f for f, _ in units])
    content = np.array([c for _, c in units], dtype=bool)
    first, second = rarest(frequencies, content)
    ranked = sorted(f for f, c in units if c)
    enough = len(ranked) >= 5
    assert first.tolist() == [enough and c and f == ranked[0] for f, c in units]
    assert second.tolist() == [enough and c and f in ranked[:2] for f, c in units]


def test_rarity_of_the_units_of_a_sentence(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    text = "the aardvark cannot eat , of ☃"
    spans = [(0, 3), (4, 12), (13, 16), (16, 19), (20, 23), (24, 25), (26, 28), (29, 30)]
    encoded = SentenceEncoder(wordpiece_tokenizer).encode(example(text, *spans))
    assert encoded is not None
    assert unit_forms(encoded.source) == ["the", "aardvark", "cannot", "eat", ",", "of", "☃"]
    assert rarity([unit_forms(encoded.source)], make_frequency("wordfreq:en", [])).tolist() == [[0, 2, 1, 0, 0, 0, 0]]


def test_rarity_of_a_batch(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    encoder = SentenceEncoder(wordpiece_tokenizer)
    long = example("a cat the dog it", (0, 1), (2, 5), (6, 9), (10, 13), (14, 16))
    encoded = (encoder.encode(example("cat", (0, 3))), encoder.encode(long))
    sequences = [unit_forms(e.source) for e in encoded if e is not None]
    counts = {"a": 5, "cat": 2, "the": 4, "dog": 1, "it": 2}
    assert rarity(sequences, lambda word: counts[word]).tolist() == [[0, 0, 0, 0, 0], [0, 1, 0, 2, 1]]


def test_forms_of_words_without_a_token(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    encoded = SentenceEncoder(wordpiece_tokenizer).encode(example("a \u200b b", (0, 1), (2, 3), (4, 5)))
    assert encoded is not None
    assert unit_forms(encoded.source) == ["a", "b"]
