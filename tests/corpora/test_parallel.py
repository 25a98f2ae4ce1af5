"""Parallel text: both sides stay in step."""

import logging
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.parallel import ParallelCorpus
from headlens.corpora.sentence import Corpus
from headlens.corpora.text import TextCorpus
from headlens.errors import CorpusError, counted

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
    assert [r.getMessage() for r in caplog.records] == ["a.en+a.de: skipped 2 pairs of which one side is empty"]


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
        f": the sides differ in length: short has {counted(shorter, 'sentence')}, long has {longer}."
    )
    assert caught.value.advice.startswith("Line N of one file must be the translation of line N of the other")


@pytest.mark.parametrize(("source", "target"), [(3, 2), (2, 3), (1, 0), (0, 2)])
def test_unequal_lengths_of_treebanks(tmp_path: Path, source: int, target: int) -> None:
    corpus = ParallelCorpus(bank(tmp_path, "a.conllu", ["x"] * source), bank(tmp_path, "b.conllu", ["y"] * target))
    counts = [("a", source), ("b", target)]
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
    with pytest.raises(CorpusError, match=r"b has 2 sentences, c has 4\."):
        pairs(ParallelCorpus(unequal, text(tmp_path, "b.txt", ["eins", "zwei"])))


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
