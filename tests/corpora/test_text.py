"""Plain text: one sentence a line, and the splitter of words."""

import gc
import gzip
import json
import logging
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import read_conllu

import headlens.corpora.text
from headlens.corpora.conllu import ConlluCorpus, write_conllu
from headlens.corpora.sentence import Corpus, Example, sound
from headlens.corpora.sources import CorpusOptions, WrittenCorpus, open_corpus
from headlens.corpora.table import comma_rows, json_rows, tab_rows
from headlens.corpora.text import (
    LONGEST_TEXT,
    Line,
    ParallelCorpus,
    TextCorpus,
    as_written,
    distinct_names,
    file_stem,
    full_examples,
    open_text,
    plain_sentence,
    split_words,
)
from headlens.errors import CorpusError, counted


def save(folder: Path, data: bytes, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        (2 * b"\xef\xbb\xbf", []),
        (3 * b"\xef\xbb\xbf" + b"one\n" + b"\xef\xbb\xbf", ["one", "\ufeff"]),
        (b"one\n\xef\xbb\xbf", ["one", "\ufeff"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\n\r\ntwo\r\n", ["one", "", "two"]),
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),
        ("a\u2028b\x0cc\x85d\rd\n".encode(), ["a\u2028b\x0cc\x85d\rd"]),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines(tmp_path: Path, data: bytes, lines: list[str], name: str) -> None:
    path = save(tmp_path, gzip.compress(data) if name.endswith(".gz") else data, name)
    assert list(open_text(path)) == list(open_text(str(path))) == [Line(i, text) for i, text in enumerate(lines, 1)]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\ufeff"))))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = save(tmp_path_factory.getbasetemp(), "".join(f"{line}\n" for line in lines).encode())
    assert [line.text for line in open_text(path)] == lines


def test_reading_is_lazy(tmp_path: Path) -> None:
    lines = open_text(save(tmp_path, b"good\n\xff\n"))
    assert next(lines) == (1, "good")
    with pytest.raises(CorpusError):
        next(lines)


@pytest.mark.parametrize(
    ("data", "line", "message", "advice"),
    [
        (b"one\ntw\xf6\n", 2, "not UTF-8: byte 0xf6 at byte 3 of the line", "iconv -f latin1 -t utf-8 a.txt"),
        (b"\xe2\x82\n", 1, "not UTF-8: byte 0xe2 at byte 1", "iconv"),
        (b"\xed\xa0\x80\n", 1, "not UTF-8: byte 0xed at byte 1", "iconv"),
        (b"one\n\ntwo\0\n", 3, "a NUL character", "binary or UTF-16"),
        ("one\n".encode("utf-16"), 1, "not UTF-8: byte 0xff", "iconv -f utf-16"),
        ("one\n".encode("utf-16-be"), 1, "a NUL character", "UTF-16"),
    ],
)
def test_what_is_no_text(tmp_path: Path, data: bytes, line: int, message: str, advice: str) -> None:
    path = save(tmp_path, data)
    with pytest.raises(CorpusError) as caught:
        list(open_text(path))
    assert (caught.value.path, caught.value.line) == (path, line)
    assert str(caught.value).startswith(f"{path}:{line}: {message}")
    assert advice in caught.value.advice


PACKED = gzip.compress(b"".join(b"line %d\n" % i for i in range(50_000)))
BROKEN_GZIP = {
    "not gzipped": b"one\n",
    "cut off": PACKED[: len(PACKED) // 2],
    "without its end": PACKED[:-4],
    "damaged": PACKED[:2000] + b"\xff" * 200 + PACKED[2200:],
    "header only": PACKED[:4],
    "followed by rubbish": gzip.compress(b"one\n") + b"rubbish",
}


@pytest.mark.parametrize("name", BROKEN_GZIP)
def test_broken_gzip(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, BROKEN_GZIP[name], "a.txt.gz")
    read = []
    with pytest.raises(CorpusError, match="broken gzip file") as caught:
        read.extend(open_text(path))
    assert caught.value.line is not None
    assert "must not end in .gz" in caught.value.advice


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"gone\.txt: no such file\nCheck the spelling"):
        next(open_text(tmp_path / "gone.txt"))
    with pytest.raises(CorpusError, match=r"is a folder, not a file\nName a file in it"):
        next(open_text(tmp_path))
    folder = tmp_path / "folder.gz"
    folder.mkdir()
    with pytest.raises(CorpusError, match="is a folder"):
        next(open_text(folder))


@pytest.mark.posix
def test_what_can_be_read_only_once(tmp_path: Path) -> None:
    """A pipe without a writer would be waited for without end."""
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (tmp_path / "pipe.txt", Path("/dev/null")):
        with pytest.raises(CorpusError, match=r"is a pipe or a device, not a file\nSave it as a file first"):
            next(open_text(path))


def test_unreadable_file(tmp_path: Path) -> None:
    path = save(tmp_path, b"one\n")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("needs a user whom file permissions concern")
    with pytest.raises(CorpusError, match="cannot be read: Permission denied"):
        next(open_text(path))


@pytest.mark.parametrize("name", ["x" * 300, "a/b.txt"])
def test_names_that_cannot_be_opened(tmp_path: Path, name: str) -> None:
    save(tmp_path, b"a file, not a folder", "a")
    with pytest.raises(CorpusError, match="cannot be read"):
        next(open_text(tmp_path / name))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data/en_ewt-ud-test.conllu", "en_ewt-ud-test"),
        ("a.txt", "a"),
        ("a.tsv.gz", "a"),
        ("train.en.gz", "train.en"),
        ("test.de", "test.de"),
        ("a.b.jsonl", "a.b"),
        ("A.parquet", "A"),
        (".txt", ".txt"),
        ("notes", "notes"),
    ],
)
def test_short_name(path: str, name: str) -> None:
    assert file_stem(path) == file_stem(Path(path)) == name


# Half of what is drawn comes from the characters that the splitter treats in a way of their own.
odd = st.sampled_from(
    list("aé字1२_'’-‐.,!…\"« \t\xa0\u200b\u200d\u200c\xad\u0301\u093f\x07\x85\u2028\ufeff#😀\U000e0041")
)
texts = st.text(odd | st.characters(exclude_categories=["Cs"]), max_size=40)


def words(text: str) -> list[str]:
    return [w.form for w in split_words(text)]


def test_all_combining_marks_are_part_of_words() -> None:
    marks = {c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c).startswith("M")}
    assert words("".join(f"a{c}a " for c in sorted(marks))) == [f"a{c}a" for c in sorted(marks)]


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


@given(texts)
def test_as_written_a_sentence_is_the_line(text: str) -> None:
    sentence = plain_sentence(text, "7")
    written = as_written(sentence)
    assert (written.text, written.id) == (text, "7")
    assert [word.form for word in written.words] == [word.form for word in sentence.words]
    assert all(written.text[word.start : word.end] == word.form for word in written.words)


def test_a_written_corpus_keeps_the_white_space_of_both_sides(tmp_path: Path) -> None:
    for name, content in (("a.txt", " One  two.\r\n\tthree \n"), ("b.txt", "Eins\nzwei  drei\n")):
        (tmp_path / name).write_bytes(content.encode())
    corpus = open_corpus(str(tmp_path / "a.txt"), CorpusOptions(target=str(tmp_path / "b.txt")))
    pairs = [(e.source.text, e.target and e.target.text) for e in WrittenCorpus(corpus)]
    assert pairs == [(" One  two.", "Eins"), ("\tthree ", "zwei  drei")]
    assert [(e.source.text, e.target and e.target.text) for e in corpus] == [
        ("One two.", "Eins"),
        ("three", "zwei drei"),
    ]


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
    assert [(e.source.text, e.source.id) for e in corpus.rows()] == [
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
    rows = [Example(*sides) for sides in ((full, full), (full, empty), (empty, full), (empty, empty))]
    with caplog.at_level(logging.WARNING):
        assert [(e.source, e.target) for e in full_examples(rows, "pairs")] == [(full, full)]
    assert [r.getMessage() for r in caplog.records] == ["pairs: skipped 2 pairs in which one side is empty"]
    caplog.clear()
    assert [e.source for e in full_examples([Example(full), Example(empty)], "single")] == [full]
    assert not caplog.records


SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def text(folder: Path, name: str, lines: list[str]) -> TextCorpus:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return TextCorpus(path)


def bank(folder: Path, name: str, forms: list[str]) -> ConlluCorpus:
    path = folder / name
    path.write_text("".join(f"1\t{f}\t_\t_\t_\t_\t0\troot\t_\t_\n\n" for f in forms), encoding="utf-8")
    return ConlluCorpus(path)


def pairs(corpus: Corpus) -> list[tuple[str, str | None]]:
    return [(e.source.text, e.target.text if e.target else None) for e in corpus]


def test_equal_lengths(tmp_path: Path) -> None:
    corpus = ParallelCorpus(text(tmp_path, "a.en", ["one", "two"]), text(tmp_path, "a.de", ["eins", "zwei"]))
    assert corpus.name == "a.en+a.de"
    assert pairs(corpus) == pairs(corpus) == [("one", "eins"), ("two", "zwei")]


def test_blank_sides_are_left_out_and_nothing_shifts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = text(tmp_path, "a.en", ["one", "", "three", " ", "five"])
    target = text(tmp_path, "a.de", ["eins", "zwei", "", "\t", "fünf"])
    with caplog.at_level(logging.WARNING):
        assert pairs(ParallelCorpus(source, target)) == [("one", "eins"), ("five", "fünf")]
    assert [r.getMessage() for r in caplog.records] == ["a.en+a.de: skipped 2 pairs in which one side is empty"]


@pytest.mark.parametrize(("longer", "shorter"), [(3, 2), (5, 1), (1, 0), (4, 0)])
@pytest.mark.parametrize("is_source_longer", [True, False])
def test_unequal_lengths_of_text(tmp_path: Path, longer: int, shorter: int, is_source_longer: bool) -> None:
    long, short = text(tmp_path, "long.txt", ["a"] * longer), text(tmp_path, "short.txt", ["b"] * shorter)
    corpus = ParallelCorpus(long, short) if is_source_longer else ParallelCorpus(short, long)
    read = []
    with pytest.raises(CorpusError) as caught:
        read.extend(corpus)
    assert len(read) == shorter
    assert (caught.value.path, caught.value.line) == (long.path, shorter + 1)
    assert caught.value.message.endswith(
        f": the sides differ in length: short.txt has {counted(shorter, 'line')}, long.txt has {longer}."
    )
    assert caught.value.advice.startswith("Line N of one file must be the translation of line N of the other")


@pytest.mark.parametrize(("source", "target"), [(3, 2), (2, 3), (1, 0), (0, 2)])
def test_unequal_lengths_of_treebanks(tmp_path: Path, source: int, target: int) -> None:
    corpus = ParallelCorpus(bank(tmp_path, "a.conllu", ["x"] * source), bank(tmp_path, "b.conllu", ["y"] * target))
    counts = [("a.conllu", source), ("b.conllu", target)]
    (short, few), (long, many) = sorted(counts, key=lambda c: c[1])
    with pytest.raises(CorpusError) as caught:
        list(corpus)
    assert str(caught.value).startswith(
        f"a+b: the sides differ in length: {short} has {counted(few, 'sentence')}, {long} has {many}."
    )
    assert caught.value.line is None


def test_both_empty(tmp_path: Path) -> None:
    assert pairs(ParallelCorpus(text(tmp_path, "a.txt", []), text(tmp_path, "b.txt", []))) == []


def test_blank_lines_at_the_end_do_not_count(tmp_path: Path) -> None:
    long = text(tmp_path, "a.txt", ["one", "two", "", " "])
    assert pairs(ParallelCorpus(long, text(tmp_path, "b.txt", ["eins", "zwei"])))[-1] == ("two", "zwei")
    unequal = text(tmp_path, "c.txt", ["one", "two", "", "four", ""])
    with pytest.raises(CorpusError, match=r"b\.txt has 2 lines, c\.txt has 4\."):
        pairs(ParallelCorpus(unequal, text(tmp_path, "b.txt", ["eins", "zwei"])))
    with pytest.raises(CorpusError, match=r"b\.tok\.de has 1 line, c\.txt has 4\."):
        pairs(ParallelCorpus(unequal, text(tmp_path, "b.tok.de", ["eins", "", ""])))
    with pytest.raises(CorpusError, match=r"c\.txt has 4 sentences, b\.v2\.conllu has 6\."):
        pairs(ParallelCorpus(unequal, bank(tmp_path, "b.v2.conllu", ["x"] * 6)))


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("a.txt", "b.txt"), "a b"),
        (("text.tok.en", "text.raw.en"), "text.tok.en text.raw.en"),
        (("a.txt", "a.conllu"), "a.txt a.conllu"),
        (("a.tsv", "a.tsv.gz"), "a.tsv a.tsv.gz"),
        (("x/a.tsv", "y/a.tsv"), "x/a.tsv y/a.tsv"),
        (("x/a.tsv", "x/a.tsv"), "a a"),
        (("train.v1.jsonl", "train.v2.jsonl", "train.v1.csv"), "train.v1.jsonl train.v2.jsonl train.v1.csv"),
    ],
)
def test_names_of_several_files(files: tuple[str, ...], names: str) -> None:
    assert " ".join(distinct_names([file_stem(file) for file in files], files)) == names


def test_a_pair_of_files_of_one_name(tmp_path: Path) -> None:
    corpus = ParallelCorpus(text(tmp_path, "a.txt", ["one"]), bank(tmp_path, "a.conllu", ["x"]))
    assert corpus.name == "a.txt+a.conllu"


lines = st.lists(st.sampled_from(["", "a", "b c"]), max_size=5)


@given(lines, lines)
def test_against_pairing_by_hand(
    tmp_path_factory: pytest.TempPathFactory, source: list[str], target: list[str]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    corpus = ParallelCorpus(text(folder, "a.txt", source), text(folder, "b.txt", target))
    common = min(len(source), len(target))
    if any(source[common:] + target[common:]):
        with pytest.raises(CorpusError, match="differ in length"):
            pairs(corpus)
    else:
        wanted = [(a, b) for a, b in zip_longest(source, target, fillvalue="") if a and b]
        assert pairs(corpus) == wanted


def test_treebank_with_treebank_or_text(tmp_path: Path) -> None:
    german = bank(tmp_path, "de.conllu", ["eins", "zwei"])
    english = bank(tmp_path, "en.conllu", ["one", "two"])
    both = list(ParallelCorpus(english, german))
    assert [(e.source.text, e.target.text) for e in both if e.target] == [("one", "eins"), ("two", "zwei")]
    assert all(e.source.has_tree and e.target and e.target.has_tree for e in both)
    mixed = list(ParallelCorpus(text(tmp_path, "en.txt", ["one", "two"]), german))
    assert [(e.source.has_tree, e.target and e.target.has_tree) for e in mixed] == [(False, True)] * 2


def test_error_in_one_side_keeps_its_place(tmp_path: Path) -> None:
    target = tmp_path / "a.de"
    target.write_bytes(b"eins\nf\xfcnf\n")
    with pytest.raises(CorpusError, match=r"a\.de:2: not UTF-8"):
        list(ParallelCorpus(text(tmp_path, "a.en", ["one", "five"]), TextCorpus(target)))


@pytest.mark.slow
@pytest.mark.shared_data
def test_parallel_treebanks_and_captions() -> None:
    if not SHARED.is_dir():
        pytest.skip("needs ../shared/data")
    english, german = (
        ConlluCorpus(SHARED / f"ud_{long}_pud" / f"{short}_pud-ud-test.conllu")
        for long, short in (("english", "en"), ("german", "de"))
    )
    examples = list(ParallelCorpus(english, german))
    assert len(examples) == 1_000
    assert all(e.target and e.source.id == e.target.id for e in examples)
    captions = [TextCorpus(SHARED / "multi30k" / "raw" / f"test_2016_flickr.{code}.gz") for code in ("en", "de")]
    assert sum(1 for _ in ParallelCorpus(*captions)) == 1_000


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("read", "unit", "damage"),
    [
        pytest.param(read_conllu, "1\ta\t_\t_\t_\t_\t0\troot\t_\t_\n\n", "1\ta\n\n", id="CoNLL-U"),
        pytest.param(tab_rows, "a\tb\n", "\0\n", id="tabs"),
        pytest.param(comma_rows, "a,b\n", 'a,"b"c\n', id="commas"),
        pytest.param(lambda path: sound(row for _, row in json_rows(path)), '{"a": 1}\n', "[]\n", id="JSON lines"),
    ],
)
def test_files_are_closed_at_once(
    read: Callable[[Path], Iterator[Any]],
    unit: str,
    damage: str,
    ending: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a garbage collection: after an error, and when the reader stops before the end."""
    path = tmp_path / f"file{ending}"
    text = (unit * 3 + damage + unit * 3).encode()
    path.write_bytes(gzip.compress(text) if ending else text)
    handles: list[IO[bytes]] = []
    open_binary = headlens.corpora.text._open_binary

    def opened(path: Path) -> IO[bytes]:
        handles.append(open_binary(path))
        return handles[-1]

    monkeypatch.setattr(headlens.corpora.text, "_open_binary", opened)
    gc.disable()
    try:
        rows = read(path)
        next(rows)
        assert not handles[0].closed
        del rows
        assert handles[0].closed
        with pytest.raises(CorpusError) as held:  # its traceback holds the reader's variables
            list(read(path))
        assert handles[1].closed, held
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.csv", "a.jsonl"])
def test_texts_of_megabytes_are_refused_with_their_line_or_left_out(tmp_path: Path, name: str) -> None:
    long = "a b " * (LONGEST_TEXT // 4) + "c"
    lines = {"a.txt": ["A cat.", long], "a.jsonl": ['{"text": "A cat."}', json.dumps({"text": long})]}
    (path := tmp_path / name).write_text("\n".join(lines.get(name, ["text", long])) + "\n")
    if name != "a.csv":  # where the csv module ends, no later row is known
        with path.open("a") as file:
            file.write({"a.jsonl": '{"text": "A dog."}\n'}.get(name, "A dog.\n"))
        left = list(open_corpus(str(path), CorpusOptions(column="text", skip_broken=True)))
        assert [e.source.text for e in left] == ["A cat.", "A dog."][name == "a.tsv" :]
    with pytest.raises(CorpusError) as refused:
        list(open_corpus(str(path), CorpusOptions(column="text")))
    size = "131,072" if name == "a.csv" else "1,000,001"  # what the csv module reads at most
    assert str(refused.value).startswith(f"{path}:2: ")
    assert f"{size} characters" in str(refused.value)


@pytest.mark.parametrize("side", ["en", "de"])
def test_a_pair_with_a_text_of_megabytes_is_refused_or_left_out(tmp_path: Path, side: str) -> None:
    for own in ("en", "de"):
        middle = "x " * LONGEST_TEXT if own == side else "x"
        (tmp_path / f"a.{own}").write_text(f"A cat.\n{middle}\nA dog.\n")
    options = CorpusOptions(target=str(tmp_path / "a.de"))
    with pytest.raises(CorpusError, match=rf"a\.{side}:2: a text of 2,000,000 characters"):
        list(open_corpus(str(tmp_path / "a.en"), options))
    left = open_corpus(str(tmp_path / "a.en"), replace(options, skip_broken=True))
    assert [e.source.text for e in left] == ["A cat.", "A dog."]
