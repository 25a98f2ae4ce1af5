"""From what a user writes to a corpus."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import Memory, sentence

from headlens.corpora import sources
from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.parsers import Parser
from headlens.corpora.sentence import ROOT, Corpus, Example, Sentence, Word, summarise
from headlens.corpora.sources import (
    HubCorpus,
    NamedCorpus,
    ParsedCorpus,
    ReadableExamples,
    demo_corpus,
    held_out_of,
    is_held_out,
    open_corpus,
    refuse_unused,
    split_corpus,
)
from headlens.corpora.table import TableCorpus
from headlens.corpora.text import ParallelCorpus, TextCorpus
from headlens.errors import CorpusError, OptionError


class Flat:
    """Hangs every word on the first, and reads ahead like the real parsers."""

    def parse(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        for plain in list(sentences):
            words = (Word(w.form, w.start, w.end, 0 if i else ROOT, "x") for i, w in enumerate(plain.words))
            yield Sentence(plain.text, tuple(words), plain.id)


def opened(spec: str, options: CorpusOptions | None = None) -> Corpus:
    """What is read, below what leaves out sentences that cannot be read."""
    corpus = open_corpus(spec, options)
    assert isinstance(corpus, ReadableExamples)
    return corpus.corpus


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.conllu", ConlluCorpus), ("a.conllu.gz", ConlluCorpus), ("a.txt", TextCorpus), ("a.txt.gz", TextCorpus),
     ("train.en", TextCorpus), ("train.de.gz", TextCorpus), ("a", TextCorpus), ("a.tsv", TableCorpus),
     ("a.csv.gz", TableCorpus), ("a.jsonl", TableCorpus), ("a.parquet", HubCorpus), ("a.json", HubCorpus),
     ("A.TSV", TableCorpus)],
)  # fmt: skip
def test_the_ending_says_what_it_is(tmp_path: Path, name: str, kind: type) -> None:
    (tmp_path / name).touch()
    assert isinstance(opened(str(tmp_path / name), CorpusOptions(column="s")), kind)


def test_demo_and_hub() -> None:
    assert open_corpus().name == open_corpus("demo").name == "demo"
    assert opened("hub:a/b:c", CorpusOptions(column="s", split="dev", target_column="t")) == HubCorpus(
        "a/b:c", "s", "dev", "t"
    )


def test_hub_options(tmp_path: Path) -> None:
    options = CorpusOptions(column="s", offline=True)
    assert opened("hub:a/b", options) == HubCorpus("a/b", "s", "test", None, offline=True)
    (tmp_path / "a.parquet").touch()
    assert opened(str(tmp_path / "a.parquet"), options) == HubCorpus(str(tmp_path / "a.parquet"), "s", offline=True)


def test_table_options(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").touch()
    options = CorpusOptions(column="s", target_column="t")
    assert opened(str(tmp_path / "a.tsv"), options) == TableCorpus(str(tmp_path / "a.tsv"), "s", "t")


@pytest.mark.parametrize("option", ["--column", "--data-args target-column", "--data-args split"])
@pytest.mark.parametrize("specs", [("demo",), ("a.conllu",), ("a.txt.gz", None), ("train.en", "train.de")])
def test_what_no_corpus_has_is_refused(option: str, specs: tuple[str | None, ...]) -> None:
    options = CorpusOptions(**{option.rsplit(maxsplit=1)[-1].removeprefix("--").replace("-", "_"): "dev"})
    parts = "splits" if option == "--data-args split" else "columns"
    named = " and ".join(spec for spec in specs if spec)
    with pytest.raises(OptionError) as caught:
        refuse_unused(options, *specs)
    verb = "have" if "and" in named else "has"
    assert caught.value.message == f"{option} dev: {named} {verb} no {parts}."
    assert caught.value.advice.startswith(f"Leave {option} out: only ")
    assert caught.value.advice.endswith(f" have {parts}.")


@pytest.mark.parametrize("spec", ["a.tsv", "a.csv.gz", "a.JSONL", "a.parquet", "a.json", "hub:a/b"])
def test_a_column_of_any_corpus_of_the_run_is_used(spec: str) -> None:
    options = CorpusOptions(column="s", target_column="t")
    refuse_unused(options, spec)
    refuse_unused(options, "demo", None, spec)
    refuse_unused(CorpusOptions(), "demo")


def test_a_split_of_a_table_is_none() -> None:
    options = CorpusOptions(column="s", split="dev")
    refuse_unused(options, "hub:a/b")
    refuse_unused(options, "a.parquet")
    with pytest.raises(OptionError, match=r"--data-args split dev: a\.csv has no splits"):
        refuse_unused(options, "a.csv")


def test_two_tables_side_by_side(tmp_path: Path) -> None:
    for name, word in (("a.tsv", "one"), ("b.tsv", "eins")):
        (tmp_path / name).write_text(f"x\ts\n0\t{word}\n", encoding="utf-8")
    corpus = open_corpus(str(tmp_path / "a.tsv"), CorpusOptions(column="s", target=str(tmp_path / "b.tsv")))
    assert [(e.source.text, e.target and e.target.text) for e in corpus] == [("one", "eins")]


@pytest.mark.parametrize("name", ["a.py", "a.EN", "a.cs.gz"])
def test_two_letters_are_taken_for_a_language(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert isinstance(opened(str(tmp_path / name)), TextCorpus)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_limit(tmp_path: Path, limit: int) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\nthree\n", encoding="utf-8")
    corpus = open_corpus(str(tmp_path / "a.txt"), CorpusOptions(limit=limit))
    assert corpus.name == "a"
    assert [e.source.text for e in corpus] == [e.source.text for e in corpus] == ["one", "two", "three"][:limit]


def test_limit_reads_no_further(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n\xff\n")
    assert len(list(open_corpus(str(tmp_path / "a.txt"), CorpusOptions(limit=2)))) == 2
    with pytest.raises(CorpusError):
        list(open_corpus(str(tmp_path / "a.txt"), CorpusOptions(limit=3)))


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one(limit: int) -> None:
    with pytest.raises(OptionError, match=rf"--limit {limit} is not a positive number\.\nLeave it out"):
        open_corpus("demo", CorpusOptions(limit=limit))


def test_no_more_is_parsed_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n\xff\n")
    monkeypatch.setattr(sources, "make_parser", lambda *_, **__: Flat())
    corpus = open_corpus(str(tmp_path / "a.txt"), CorpusOptions(limit=2), "spacy:m")
    assert isinstance(corpus, ParsedCorpus)
    assert [e.source.has_tree for e in corpus] == [True, True]


def test_another_name() -> None:
    corpus = NamedCorpus(open_corpus("demo", CorpusOptions(limit=2)), "mine")
    assert corpus.name == "mine"
    assert [e.source.id for e in corpus] == [e.source.id for e in open_corpus("demo", CorpusOptions(limit=2))]


def test_parallel_files_and_a_limit(tmp_path: Path) -> None:
    (tmp_path / "x.en").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (tmp_path / "x.de").write_text("eins\nzwei\ndrei\n", encoding="utf-8")
    corpus = open_corpus(str(tmp_path / "x.en"), CorpusOptions(target=str(tmp_path / "x.de"), limit=2))
    assert [(e.source.text, e.target and e.target.text) for e in corpus] == [("one", "eins"), ("two", "zwei")]
    assert corpus.name == "x.en+x.de"


def test_a_parser_gives_the_sources_trees_and_keeps_the_pairs(tmp_path: Path) -> None:
    (tmp_path / "x.en").write_text("one two\nthree\n", encoding="utf-8")
    (tmp_path / "x.de").write_text("eins zwei\ndrei\n", encoding="utf-8")
    corpus = ParsedCorpus(ParallelCorpus(TextCorpus(tmp_path / "x.en"), TextCorpus(tmp_path / "x.de")), Flat())
    for _ in range(2):
        examples = list(corpus)
        assert [(e.source.text, e.target and e.target.text) for e in examples] == [
            ("one two", "eins zwei"), ("three", "drei"),
        ]  # fmt: skip
        assert all(e.source.has_tree and e.target is not None and not e.target.has_tree for e in examples)


@pytest.mark.parametrize(
    ("name", "keep"), [("a.conllu", True), ("a.conllu.gz", True), ("a.txt", False), ("demo", True)]
)
def test_words_of_a_treebank_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, keep: bool) -> None:
    asked: list[tuple[str, bool]] = []

    def make(spec: str, *, keep_words: bool) -> Parser:
        asked.append((spec, keep_words))
        return Flat()

    monkeypatch.setattr(sources, "make_parser", make)
    (tmp_path / name).touch()
    spec = name if name == "demo" else str(tmp_path / name)
    corpus = open_corpus(spec, parser="spacy:m")
    assert isinstance(corpus, ParsedCorpus)
    assert asked == [("spacy:m", keep)]


def test_a_data_set_named_like_a_treebank_has_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    monkeypatch.setattr(sources, "make_parser", lambda _, *, keep_words: kept.append(keep_words))
    open_corpus("hub:some/bank.conllu", CorpusOptions(column="text"))
    assert kept == [False]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.txt", r"nowhere\.txt: no such file"),
        ("a/b", r"a/b: no such file"),
        ("empty", r"empty: is a folder\.\nGive 'demo', a file"),
        ("one", r"one: is a folder\.\nGive a file in it: one/dev\.conllu\.$"),
        ("many", r"many: is a folder\.\nGive a file in it: many/0\.txt, many/1\.txt, many/2\.txt and 2 others\.$"),
    ],
)
def test_missing_files(spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty/a.pdf", "one/dev.conllu", "one/LICENSE", *(f"many/{n}.txt" for n in range(5))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(CorpusError, match=message) as caught:
        open_corpus(spec)
    assert ("hub:NAME" in caught.value.advice) == ("a file in it" not in message)


def test_a_missing_target(tmp_path: Path) -> None:
    (tmp_path / "x.en").touch()
    with pytest.raises(CorpusError, match=r"x\.de: no such file"):
        open_corpus(str(tmp_path / "x.en"), CorpusOptions(target=str(tmp_path / "x.de")))


def test_a_kind_that_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.docx").touch()
    with pytest.raises(CorpusError, match=r"headlens cannot read \.docx files"):
        open_corpus(str(tmp_path / "x.docx"))


@pytest.mark.parametrize(
    ("name", "content", "listed"),
    [
        ("x.csv", "review,stars\na,1\n", "review, stars"),
        ("x.csv", "review;stars\na,b;1\n", "review, stars"),
        ("x.csv", "review\ttwo words\na\t1\n", "review, two words"),
        ("x.csv", '"a review"\na\n', "a review"),
        ("x.tsv", "a, b\t\n", "a, b, (one without a name)"),
        ("x.jsonl", '\n{"translation": {"en": "a", "de": "b"}, "id": 1}\n', "translation.en, translation.de, id"),
        ("x.jsonl", "", "none"),
    ],
)
def test_the_columns_of_a_table_are_listed(tmp_path: Path, name: str, content: str, listed: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(OptionError, match=rf"Columns: {re.escape(listed)}\.$"):
        open_corpus(str(tmp_path / name))


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").touch()
    table = str(tmp_path / "x.tsv")
    with pytest.raises(OptionError, match=r"which column holds the sentences\?\nName it with --column"):
        open_corpus(table)
    with pytest.raises(OptionError, match="which column"):
        open_corpus("hub:a/b")
    with pytest.raises(OptionError, match="--target and --data-args target-column"):
        open_corpus(table, CorpusOptions(column="s", target_column="t", target=table))
    with pytest.raises(OptionError, match="is not a parser"):
        open_corpus("demo", parser="magic")


@pytest.mark.parametrize("name", ["x.txt", "x.conllu", "x.tsv", "x.jsonl"])
def test_an_empty_corpus_is_an_error_when_it_is_summed_up(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\n\n", encoding="utf-8")
    corpus: Corpus = open_corpus(str(tmp_path / name), CorpusOptions(column="s"))
    with pytest.raises(CorpusError, match="the corpus x is empty"):
        summarise(corpus)


# The relations that `classify` asks for unless told otherwise.
DEFAULTS = ("nsubj", "obj", "amod", "advmod")


def test_trees_and_enough_of_each_default_relation() -> None:
    sentences = [example.source for example in demo_corpus()]
    assert len(sentences) >= 200
    assert all(s.has_tree for s in sentences)
    counts = Counter((w.relation or "").split(":")[0] for s in sentences for w in s.words)
    assert all(counts[relation] >= 100 for relation in DEFAULTS)


def test_text_is_forms_and_spaces() -> None:
    for example in demo_corpus():
        text, covered = example.source.text, set[int]()
        for word in example.source.words:
            assert text[word.start : word.end].lower() == word.form.lower()
            covered |= set(range(word.start, word.end))
        assert {text[i] for i in range(len(text)) if i not in covered} <= {" "}


def test_text_agrees_with_its_comments(caplog: pytest.LogCaptureFixture) -> None:
    corpus = demo_corpus()
    ids = [e.source.id for e in corpus]
    assert len(set(ids)) == len(ids)
    assert not caplog.records
    assert corpus.name == "demo"
    assert isinstance(corpus, ConlluCorpus)


@given(st.integers(0, 900), st.integers(0, 300))
def test_the_share_is_held_out_and_evenly_spread(thousandths: int, count: int) -> None:
    share = thousandths / 1000
    held = [number for number in range(1, count + 1) if is_held_out(number, share)]
    assert len(held) == held_out_of(share, count) == thousandths * count // 1000
    if len(held) > 1:
        apart = np.diff(held)
        assert apart.max() - apart.min() <= 1


def test_shares_as_they_are_written() -> None:
    assert held_out_of(0.29, 100) == 29, "0.29 * 100 is a little less than 29"
    assert [number for number in range(1, 21) if is_held_out(number, 0.05)] == [20]
    assert [number for number in range(1, 11) if is_held_out(number, 0.4)] == [3, 5, 8, 10]


@pytest.mark.parametrize(("share", "held"), [(0.25, [4, 8]), (0.9, [2, 3, 4, 5, 6, 7, 8, 9]), (0.1, None), (0.0, None)])
def test_both_parts_make_the_whole(share: float, held: list[int] | None) -> None:
    corpus = Memory([Example(sentence(str(n))) for n in range(1, 10)])
    kept, dev = split_corpus(corpus, share, 9)
    numbers = [int(e.source.text) for e in kept]
    if held is None:
        assert (dev, numbers) == (None, list(range(1, 10)))
    else:
        assert dev is not None
        assert [int(e.source.text) for e in dev] == held
        assert sorted(numbers + held) == list(range(1, 10))
        assert dev.name == kept.name == "memory"
