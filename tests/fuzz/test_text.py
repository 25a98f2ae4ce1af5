"""Damaged text, alone, in pairs and packed: what is no UTF-8 is refused with its line, nothing readable gets lost."""

from __future__ import annotations

import gzip
import unicodedata
import zlib
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from fuzz.damage import blows, damaged, fuzzing
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.sentence import Corpus, Example, Sentence
from headlens.corpora.text import ParallelCorpus, TextCorpus
from headlens.errors import CorpusError

SENTENCES = [
    "The old teacher's well-known book cost $1,000.50 (again)!",
    "naïve café — “Zoë” … 10:30",
    "",
    "   ",
    "Wait... what?!",
    "漢字かな交じり文。",
    "مَرْحَبًا بالعالم",
    "e\u0301 \u200d \u00ad 👩\u200d👧 \U0001f1e9\U0001f1ea",
    "a\tb\u00a0c\u2028d\x85e\x0cf",
    "__init__ foo_bar --help x--y",
]
SEEDS = [f"{s}\n".encode() for s in SENTENCES]


def naive_lines(data: bytes) -> list[str] | None:
    """The lines of a text file; None if it is none."""
    try:
        text = data.decode("utf-8").lstrip("\ufeff")
    except UnicodeDecodeError:
        return None
    lines = text.split("\n")
    lines = lines if lines[-1] else lines[:-1]
    return None if "\0" in text else [line.removesuffix("\r") for line in lines]


def naive_text(line: str) -> str:
    return " ".join("".join(" " if unicodedata.category(c) == "Cc" else c for c in line).split())


def check_words(sentence: Sentence) -> None:
    """Words stand in order and cover everything but white space; letters and digits are never torn apart."""
    end = 0
    for word in sentence.words:
        assert end <= word.start < word.end
        assert sentence.text[word.start : word.end] == word.form
        assert not sentence.text[end : word.start].strip()
        touching = end == word.start > 0
        assert not (touching and sentence.text[end - 1].isalnum() and word.form[0].isalnum())
        assert (word.head, word.relation) == (None, None)
        end = word.end
    assert not sentence.text[end:].strip()


def read(corpus: Corpus) -> list[Example] | CorpusError:
    """The examples, or the reason why not; any other exception goes through and fails the test."""
    try:
        return list(corpus)
    except CorpusError as error:
        refused = error
    assert refused.path is not None
    assert refused.advice
    return refused


def check_text(path: Path, data: bytes, expected: list[str] | None) -> None:
    path.write_bytes(data)
    found = read(TextCorpus(path))
    if isinstance(found, CorpusError):
        assert expected is None
        assert (found.path, isinstance(found.line, int)) == (path, True)
        return
    assert expected is not None, "a broken file was read"
    texts = [(str(i), naive_text(line)) for i, line in enumerate(expected, 1) if naive_text(line)]
    assert [(e.source.id, e.source.text) for e in found] == texts
    for example in found:
        check_words(example.source)


@fuzzing(1000)
@given(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=6), blows())
def test_damaged_text(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], strokes: Any) -> None:
    data = damaged(b"".join(lines), strokes)
    check_text(tmp_path_factory.getbasetemp() / "fuzzed.txt", data, naive_lines(data))


@fuzzing(300)
@given(st.text(max_size=60))
def test_any_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    check_text(tmp_path_factory.getbasetemp() / "any.txt", data, naive_lines(data))


@fuzzing(400)
@given(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=6), blows(least=1))
def test_damaged_archives(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], strokes: Any) -> None:
    data = damaged(gzip.compress(b"".join(lines), mtime=0), strokes)
    try:
        expected = naive_lines(gzip.decompress(data)) if data else []
    except (EOFError, OSError, zlib.error):
        expected = None
    check_text(tmp_path_factory.getbasetemp() / "fuzzed.txt.gz", data, expected)


def naive_pairs(source: bytes, target: bytes) -> list[tuple[str, str]] | None:
    sides = []
    for data in (source, target):
        if (lines := naive_lines(data)) is None:
            return None
        texts = [naive_text(line) for line in lines]
        while texts and not texts[-1]:
            texts.pop()
        sides.append((len(lines), texts))
    (n_source, sources), (n_target, targets) = sides
    if len(sources) > n_target or len(targets) > n_source:
        return None
    pairs = zip_longest(sources, targets, fillvalue="")
    return [(a, b) for a, b in pairs if a and b]


def check_pairs(folder: Path, source: bytes, target: bytes) -> None:
    (folder / "fuzzed.en").write_bytes(source)
    (folder / "fuzzed.de").write_bytes(target)
    found = read(ParallelCorpus(TextCorpus(folder / "fuzzed.en"), TextCorpus(folder / "fuzzed.de")))
    expected = naive_pairs(source, target)
    if isinstance(found, CorpusError):
        assert expected is None, str(found)
        assert found.path in (folder / "fuzzed.en", folder / "fuzzed.de")
        assert found.line is not None
        return
    assert [(e.source.text, e.target.text) for e in found if e.target] == expected


@fuzzing(600)
@given(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=5), blows(2), blows(2))
def test_damaged_pairs(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], left: Any, right: Any) -> None:
    whole = b"".join(lines)
    check_pairs(tmp_path_factory.getbasetemp(), damaged(whole, left), damaged(whole, right))
