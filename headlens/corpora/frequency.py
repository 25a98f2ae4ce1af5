"""Frequencies of words, and the rarest words of a sentence."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headlens.corpora.alignment import Side, is_punctuation
from headlens.corpora.encoding import EncodedSequence
from headlens.corpora.sentence import Example
from headlens.errors import CorpusError, OptionError
from headlens.unchanged_files import unchanged

MIN_CONTENT = 5
Booleans = npt.NDArray[np.bool_]
Frequency = Callable[[str], float]  # relative frequency of a word, from 0 to 1; 0 for a word never seen


@dataclass(frozen=True)
class CountedFrequency:
    """Frequencies from counts of case-folded words; the sum of all counts is `total`."""

    counts: Mapping[str, float]
    total: float

    def __call__(self, word: str) -> float:
        """Looks a word up, whatever its case."""
        return self.counts.get(word_key(word), 0.0) / self.total


def file_frequency(path: str | Path) -> CountedFrequency:
    """Reads a file of WORD<TAB>COUNT lines in UTF-8; entries that differ in case only are added up.

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
    return CountedFrequency(counts, total)


def corpus_frequency(corpus: Iterable[Example], side: Side = "source") -> CountedFrequency:
    """Counts the words of one side of a corpus as they stand in the text.

    Words that touch are counted joined as well ("can" + "not"), since a token may cover both; these do not add to
    the total.

    Raises:
        CorpusError: if there are no words.
    """
    counts: Counter[str] = Counter()
    total = 0
    for sentence in filter(None, (example.source if side == "source" else example.target for example in corpus)):
        spans = sorted({(w.start, w.end) for w in sentence.words})
        touching = [(a[0], b[1]) for a, b in pairwise(spans) if a[1] == b[0]]
        counts.update(word_key(sentence.text[start:end]) for start, end in (*spans, *touching))
        total += len(spans)
    if not total:
        raise CorpusError("The corpus has no words to count.", "Give word frequencies as wordfreq:LANGUAGE or a file.")
    return CountedFrequency(counts, total)


def make_frequency(spec: str, corpus: Iterable[Example], side: Side = "source") -> Frequency:
    """Opens the word frequencies that an option names.

    Of a text of several words the package `wordfreq` tells the harmonic combination that it documents.

    Args:
        spec: `wordfreq:LANGUAGE` (of the package, Speer 2022), `corpus`, or the path of a file of WORD<TAB>COUNT lines.
        corpus: examples whose words are counted, read once and for `corpus` only.
        side: side of pairs that `corpus` counts.

    Raises:
        OptionError: if `spec` is none of these, or there is no list for the language.
        CorpusError: if the file or the corpus holds no counts.
    """
    if spec == "corpus":
        return corpus_frequency(corpus, side)
    option = "--frequency" if side == "source" else "--data-args target-frequency"
    source, _, language = spec.partition(":")
    if source == "wordfreq":
        import wordfreq

        try:
            wordfreq.get_frequency_list(language)
            wordfreq.word_frequency("a", language)
        except (LookupError, ValueError) as error:
            known = ", ".join(sorted(wordfreq.available_languages()))
            advice = f"Languages: {known}. Or give a file of WORD<TAB>COUNT, or `corpus`."
            message = f"{option} {spec}: there is no word frequency list for {language!r}."
            raise OptionError(message, advice) from error
        except ImportError as error:
            message = f"{option} {spec}: word frequencies for {language!r} need the package {error.name}."
            raise OptionError(message, "Install it: pip install 'wordfreq[cjk]'") from error
        return partial(wordfreq.word_frequency, lang=language)  # keeps a cache of its own
    if not Path(spec).is_file():
        advice = "Give wordfreq:LANGUAGE (wordfreq:en), `corpus` or a file."
        raise OptionError(f"{option} {spec!r} is not a file.", advice)
    return file_frequency(spec)


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
        content = np.array([not is_punctuation(form) for form in forms], dtype=np.bool_)
        first, second = rarest(np.array([frequency(form) for form in forms], dtype=np.float64), content)
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
        text = line.decode("utf-8")
        word, count = (text.lstrip("\ufeff") if number == 1 else text).strip().split("\t")
        value = float(count)
    except UnicodeDecodeError as error:
        raise CorpusError("not UTF-8.", advice, path=path, line=number) from error
    except ValueError as error:
        text = line.decode(errors="replace").strip()[:60]
        raise CorpusError(f"not WORD<TAB>COUNT: {text!r}", advice, path=path, line=number) from error
    if not math.isfinite(value) or value < 0:
        raise CorpusError(f"{count!r} is not a count.", advice, path=path, line=number)
    return word, value
