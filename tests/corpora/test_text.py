"""Plain text: one sentence a line, and the splitter of words."""

import logging
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.conllu import read_conllu, write_conllu
from headlens.corpora.sentence import Sentence
from headlens.corpora.text import TextCorpus, full_examples, plain_sentence, split_words
from headlens.errors import CorpusError

# Half of what is drawn comes from the characters that the splitter treats in a way of their own.
odd = st.sampled_from(
    list("aé字1२_'’-‐.,!…\"« \t\xa0\u200b\u200d\u200c\xad\u0301\u093f\x07\x85\u2028\ufeff#😀\U000e0041")
)
texts = st.text(odd | st.characters(exclude_categories=["Cs"]), max_size=40)


def words(text: str) -> list[str]:
    return [w.form for w in split_words(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat sat.", ["The", "cat", "sat", "."]),
        ("She doesn't like well-known cafés!", ["She", "doesn't", "like", "well-known", "cafés", "!"]),
        ("l’homme (d'État)", ["l’homme", "(", "d'État", ")"]),
        ("'quoted' -- and... so", ["'", "quoted", "'", "--", "and", "...", "so"]),
        ("It cost 1,000.50, or 3.", ["It", "cost", "1,000.50", ",", "or", "3", "."]),
        ("a.b,c end-", ["a", ".", "b", ",", "c", "end", "-"]),
        ("snake_case @user #tag", ["snake", "_", "case", "@", "user", "#", "tag"]),
        ("rock'n'roll o''clock", ["rock'n'roll", "o", "''", "clock"]),
        ("?!?", ["?", "!", "?"]),
        ("हिन्दी می‌خواهم", ["हिन्दी", "می‌خواهم"]),
        ("Zoe\u0308 cafe\u0301s", ["Zoe\u0308", "cafe\u0301s"]),
        ("中文 字", ["中文", "字"]),
        ("😀😀😎", ["😀😀", "😎"]),
        ("", []),
        (" \t\n", []),
    ],
)
def test_split_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(texts)
def test_splitter_covers_everything_but_space(text: str) -> None:
    found = list(split_words(text))
    assert all(text[w.start : w.end] == w.form for w in found)
    assert all(w.head is None and w.relation is None and w.upos is None for w in found)
    assert all(one.end <= two.start for one, two in pairwise(found))
    covered = {i for w in found for i in range(w.start, w.end)}
    assert covered == {i for i, c in enumerate(text) if not c.isspace()}


@given(texts)
def test_words_of_letters_hold_no_punctuation_at_their_ends(text: str) -> None:
    for form in words(text):
        assert form
        if len(set(form)) > 1:
            assert form[0].isalnum() or unicodedata.category(form[0])[0] in "NL"
            assert form[-1] not in "'’-.,_"


@given(texts)
def test_plain_sentence(text: str) -> None:
    sentence = plain_sentence(text, "7")
    assert sentence.id == "7"
    assert sentence.text == " ".join(sentence.text.split())
    assert not any(unicodedata.category(c) == "Cc" for c in sentence.text)
    kept = [c for c in text if not c.isspace() and unicodedata.category(c) != "Cc"]
    assert [c for c in sentence.text if c != " "] == kept
    assert bool(sentence.words) == bool(kept)
    assert plain_sentence(sentence.text, "7") == sentence


@given(st.lists(texts, max_size=3))
def test_plain_sentences_can_be_written_as_conllu(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "plain.conllu"
    sentences = [s for i, line in enumerate(lines, 1) if (s := plain_sentence(line, str(i))).words]
    write_conllu(sentences, path)
    assert list(read_conllu(path)) == sentences


def test_time_of_long_lines() -> None:
    for text in ("a-" * 50_000, "1," * 50_000, "'" * 100_000, "a" * 100_000, " " * 100_000, "a\u0301" * 50_000):
        assert len(words(text)) <= 100_000


def test_corpus(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes("\ufeffOne  two.\r\n\r\n\x07 \nThree\tfour\u2028five".encode())
    corpus = TextCorpus(path)
    assert corpus.name == "some"
    assert [e.source.text for e in corpus] == [e.source.text for e in corpus] == ["One two.", "Three four five"]
    assert [e.source.id for e in corpus] == ["1", "4"]
    assert [(s.text, s.id) for s in corpus.rows()] == [
        ("One two.", "1"),
        ("", "2"),
        ("", "3"),
        ("Three four five", "4"),
    ]
    assert all(e.target is None and not e.source.has_tree for e in corpus)


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"fine\nna\xefve\n")
    with pytest.raises(CorpusError, match=r"latin\.txt:2: not UTF-8: byte 0xef at byte 3"):
        list(TextCorpus(path))


def test_full_examples(caplog: pytest.LogCaptureFixture) -> None:
    full, empty = plain_sentence("a b", "1"), plain_sentence(" ", "2")
    rows: list[tuple[Sentence, Sentence | None]] = [(full, full), (full, empty), (empty, full), (empty, empty)]
    with caplog.at_level(logging.WARNING):
        assert [(e.source, e.target) for e in full_examples(rows, "pairs")] == [(full, full)]
    assert [r.getMessage() for r in caplog.records] == ["pairs: skipped 2 pairs of which one side is empty"]
    caplog.clear()
    assert [e.source for e in full_examples([(full, None), (empty, None)], "single")] == [full]
    assert not caplog.records
