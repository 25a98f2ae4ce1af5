"""Frequencies of words, and the rarest words of a sentence."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import wordfreq

from headlens.corpora.encoding import EncodedSequence
from headlens.corpora.sentence import Example
from headlens.corpora.token_offsets import Side, is_punctuation
from headlens.errors import CorpusError, OptionError
from headlens.unchanged_files import unchanged

MIN_CONTENT = 5
Booleans = npt.NDArray[np.bool_]


class Frequency(Protocol):
    """Relative frequency of a word; 0 for a word never seen."""

    def __call__(self, word: str) -> float:
        """Returns the relative frequency of `word`, from 0 to 1; 0 for a word that was never seen."""


@dataclass(frozen=True)
class WordfreqFrequency:
    """Frequencies of the `wordfreq` package (Speer 2022), which keeps its own cache.

    Args:
        language: a language code such as `en` or `de`.

    Raises:
        OptionError: if there is no list for the language, or its word splitter is not installed.
    """

    language: str

    def __post_init__(self) -> None:
        try:
            wordfreq.get_frequency_list(self.language)
            wordfreq.word_frequency("a", self.language)
        except (LookupError, ValueError) as error:
            known = ", ".join(sorted(wordfreq.available_languages()))
            advice = f"Languages: {known}. Or give a file of WORD<TAB>COUNT, or `corpus`."
            raise OptionError(f"There is no word frequency list for {self.language!r}.", advice) from error
        except ImportError as error:
            message = f"Word frequencies for {self.language!r} need the package {error.name}."
            raise OptionError(message, "Install it: pip install 'wordfreq[cjk]'") from error

    def __call__(self, word: str) -> float:
        """Looks a word up; a text of several words gets the harmonic combination that wordfreq documents."""
        return float(wordfreq.word_frequency(word, self.language))


@dataclass(frozen=True)
class CountedFrequency:
    """Frequencies from counts of case-folded words; the sum of all counts is `total`."""

    counts: Mapping[str, float]
    total: float

    def __call__(self, word: str) -> float:
        """Looks a word up, whatever its case."""
        return self.counts.get(word_key(word), 0.0) / self.total


class FileFrequency(CountedFrequency):
    """Frequencies from a file of WORD<TAB>COUNT lines in UTF-8; entries that differ in case only are added up."""

    def __init__(self, path: str | Path) -> None:
        """Reads the file.

        Raises:
            CorpusError: if the file cannot be read, with file and line; or if it holds no counts.
        """
        counts: defaultdict[str, float] = defaultdict(float)
        try:
            with unchanged(path), Path(path).open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        word, count = _parse_count(line, path, number)
                        counts[word_key(word)] += count
        except OSError as error:
            raise CorpusError(f"cannot be read ({error.strerror}).", "Check --frequency.", path=path) from error
        total = sum(counts.values())
        if not total:
            raise CorpusError("no word has a count.", "Write one WORD<TAB>COUNT per line.", path=path)
        super().__init__(counts, total)


class CorpusFrequency(CountedFrequency):
    """Frequencies from the corpus itself."""

    @classmethod
    def count(cls, corpus: Iterable[Example], side: Side = "source") -> CorpusFrequency:
        """Counts the words of one side as they stand in the text.

        Words that touch are counted joined as well ("can" + "not"), since a token may cover both; these do not add to
        the total.

        Raises:
            CorpusError: if there are no words.
        """
        counts: Counter[str] = Counter()
        total = 0
        sides = (example.source if side == "source" else example.target for example in corpus)
        for sentence in filter(None, sides):
            spans = sorted({(w.start, w.end) for w in sentence.words})
            touching = [(a[0], b[1]) for a, b in pairwise(spans) if a[1] == b[0]]
            counts.update(word_key(sentence.text[start:end]) for start, end in (*spans, *touching))
            total += len(spans)
        if not total:
            advice = "Give word frequencies as wordfreq:LANGUAGE or a file."
            raise CorpusError("The corpus has no words to count.", advice)
        return cls(counts, total)


def make_frequency(spec: str, corpus: Iterable[Example], side: Side = "source") -> Frequency:
    """Opens the word frequencies that an option names.

    Args:
        spec: `wordfreq:LANGUAGE`, `corpus`, or the path of a file of WORD<TAB>COUNT lines.
        corpus: examples whose words are counted, read once and for `corpus` only.
        side: side of pairs that `corpus` counts.

    Raises:
        OptionError: if `spec` is none of these, or there is no list for the language.
        CorpusError: if the file or the corpus holds no counts.
    """
    if spec == "corpus":
        return CorpusFrequency.count(corpus, side)
    option = "--frequency" if side == "source" else "--target-frequency"
    source, _, language = spec.partition(":")
    if source == "wordfreq":
        try:
            return WordfreqFrequency(language)
        except OptionError as error:
            reason = error.message[:1].lower() + error.message[1:]
            raise OptionError(f"{option} {spec}: {reason}", error.advice) from error
    if not Path(spec).is_file():
        advice = "Give wordfreq:LANGUAGE (wordfreq:en), `corpus` or a file."
        raise OptionError(f"{option} {spec!r} is not a file.", advice)
    return FileFrequency(spec)


def rarest(frequencies: npt.NDArray[np.float64], content: Booleans) -> tuple[Booleans, Booleans]:
    """Marks the least frequent unit of a sentence, and the two least frequent ones; all units of a tie are marked.

    Args:
        frequencies: relative frequency of every unit, (units,).
        content: units that are more than punctuation, (units,); only these are ranked.

    Returns:
        Two masks over the units, (units,), all False in a sentence of fewer than `MIN_CONTENT` content units.
    """
    if content.sum() < MIN_CONTENT:
        return np.zeros_like(content), np.zeros_like(content)
    first, second = np.partition(frequencies[content], 1)[:2]  # the two lowest, which are equal in a tie
    return content & (frequencies == first), content & (frequencies <= second)


def rarest_units(forms: Sequence[str], frequency: Frequency) -> tuple[Booleans, Booleans]:
    """Marks the least frequent unit of a sentence, and the two least frequent ones, as `rarest` does.

    Args:
        forms: the text of each unit, see `unit_forms`; units that are only punctuation are not ranked.
        frequency: where they are looked up.

    Returns:
        Two boolean masks of shape `(units,)`.
    """
    frequencies = np.array([frequency(form) for form in forms], dtype=np.float64)
    return rarest(frequencies, np.array([not is_punctuation(form) for form in forms], dtype=np.bool_))


def rarity(sentences: Sequence[Sequence[str]], frequency: Frequency) -> npt.NDArray[np.int64]:
    """Ranks the units of a batch by rarity, for `Tokens.rarity`.

    Args:
        sentences: the text of each unit of every sentence, see `unit_forms`.
        frequency: where they are looked up.

    Returns:
        (batch, max units): 2 for the least frequent, 1 for the second, else 0.
    """
    ranks = np.zeros((len(sentences), max(map(len, sentences))), dtype=np.int64)
    for row, forms in zip(ranks, sentences, strict=True):
        first, second = rarest_units(forms, frequency)
        row[: len(first)] = first.astype(np.int64) + second
    return ranks


def unit_forms(sequence: EncodedSequence) -> list[str]:
    """Returns the text of every unit, from the beginning of its first word to the end of its last."""
    words, text = sequence.sentence.words, sequence.sentence.text
    spans = [(len(text), 0)] * sequence.n_units
    for word, unit in zip(words, sequence.unit_of_word, strict=True):
        if unit >= 0:
            start, end = spans[unit]
            spans[unit] = min(start, word.start), max(end, word.end)
    return [text[start:end] for start, end in spans]


@lru_cache(maxsize=2**16)
def word_key(word: str) -> str:
    """Returns the form under which a word is counted: composed and case-folded."""
    return unicodedata.normalize("NFC", word).casefold()


def _parse_count(line: bytes, path: str | Path, number: int) -> tuple[str, float]:
    """Reads word and count of a WORD<TAB>COUNT line."""
    advice = "Write one WORD<TAB>COUNT per line, in UTF-8, with counts of 0 or more."
    try:
        word, count = line.decode("utf-8-sig" if number == 1 else "utf-8").strip().split("\t")
        value = float(count)
    except UnicodeDecodeError as error:
        raise CorpusError("not UTF-8.", advice, path=path, line=number) from error
    except ValueError as error:
        text = line.decode(errors="replace").strip()[:60]
        raise CorpusError(f"not WORD<TAB>COUNT: {text!r}", advice, path=path, line=number) from error
    if not math.isfinite(value) or value < 0:
        raise CorpusError(f"{count!r} is not a count.", advice, path=path, line=number)
    return word, value
