"""Every bad corpus, parser and option a user may give: exit code 2, what and where, advice, and nothing left behind."""

from __future__ import annotations

import errno
import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

Headlens = Callable[..., Any]
A = "1\ta\t_\tNOUN\t_\t_\t{}\t{}\t_\t_\n"
TREE = A.format(0, "root")
PACKED = gzip.compress(b"".join(b"sentence number %d\n" % i for i in range(5000)))


class Case(NamedTuple):
    """Files that are there, what is asked for, and what the message has to say."""

    files: dict[str, str | bytes]
    arguments: Sequence[str]
    messages: Sequence[str]


def corpus(name: str, content: str | bytes, *messages: str, column: str | None = None) -> Case:
    chosen = [] if column is None else ["--column", column]
    return Case({name: content}, ["--corpus", name, *chosen], [name.partition(".")[0], *messages])


def option(*arguments: str, say: Sequence[str] = (), **files: str | bytes) -> Case:
    return Case({k.replace("_", "."): v for k, v in files.items()}, arguments, [arguments[0], *say])


CORPORA = {
    "no such file": Case({}, ["--corpus", "nowhere.conllu"], ["nowhere.conllu: no such file", "hub:NAME"]),
    "no name": Case({}, ["--corpus", ""], ["no name", "Give 'demo'"]),
    "folder": Case({"d/x.txt": "a\n"}, ["--corpus", "d"], ["d: is a folder"]),
    "device": Case(
        {}, ["--corpus", "/dev/null"], ["/dev/null: is a pipe or device, not a regular file", "Save it as a file"]
    ),
    "unknown kind": corpus("image.jpeg", b"x", "headlens cannot read .jpeg files", ".conllu"),
    "empty text": corpus("x.txt", "", "x is empty", "at least one sentence"),
    "blank lines": corpus("x.txt", "\n \n\t\r\n", "x is empty", "blank lines"),
    "only a byte order mark": corpus("x.txt", b"\xef\xbb\xbf", "x is empty"),
    "empty treebank": corpus("x.conllu", "", "x is empty"),
    "only comments": corpus("x.conllu", "# a\n\n# sent_id = b\n", "x is empty", "comments"),
    "empty table": corpus("x.csv", "", "x is empty", column="text"),
    "only a header": corpus("x.tsv", "text\tb\n", "x is empty", column="text"),
    "only null": corpus("x.jsonl", '{"text": null}\n', "x is empty", "empty cells", column="text"),
    "empty archive": corpus("x.txt.gz", gzip.compress(b""), "x is empty"),
    "latin-1": corpus("x.txt", b"fine\nna\xefve\n", "x.txt:2: not UTF-8: byte 0xef at byte 3", "iconv -f latin1"),
    "latin-1 treebank": corpus("x.conllu", TREE.encode() + b"\n# \xe9\n", "x.conllu:3: not UTF-8"),
    "latin-1 table": corpus("x.csv", b"text\nna\xefve\n", "x.csv:2: not UTF-8", column="text"),
    "latin-1 JSON": corpus("x.jsonl", b'{"text": "na\xefve"}\n', "x.jsonl:1: not UTF-8", column="text"),
    "UTF-16": corpus("x.txt", "A cat.\n".encode("utf-16"), "x.txt:1: not UTF-8", "iconv -f utf-16"),
    "UTF-16 without a mark": corpus("x.txt", "A cat.\n".encode("utf-16-le"), "x.txt:1: a NUL character", "UTF-16"),
    "NUL": corpus("x.txt", "one\na\0b\n", "x.txt:2: a NUL character", "save it as UTF-8"),
    "not gzipped": corpus("x.txt.gz", "text", "x.txt.gz:1: broken gzip file", "must not end in .gz"),
    "cut archive": corpus("x.txt.gz", PACKED[: len(PACKED) // 2], "broken gzip file", "download it again"),
    "damaged archive": corpus("x.txt.gz", PACKED[:-8] + b"\0" * 8, "broken gzip file: CRC"),
    "columns": corpus("x.conllu", "1\tword\n\n", "x.conllu:1: 2 columns instead of 10", "Correct the line"),
    "word id": corpus("x.conllu", TREE.replace("1", "²", 1), "x.conllu:1: '²' is not a word id"),
    "gap": corpus("x.conllu", TREE + TREE.replace("1", "3", 1), "x.conllu:2: id 3 where 2 was expected"),
    "huge range": corpus("x.conllu", TREE.replace("1", "1-99999999", 1), "x.conllu:1: multiword token 1-99999999"),
    "head": corpus("x.conllu", A.format(7, "dep"), "x.conllu:1: head 7 is out of range (the sentence has 1 word)"),
    "no number": corpus("x.conllu", A.format("x", "dep"), "x.conllu:1: head 'x' is not a number"),
    "no root": corpus("x.conllu", "# c\n" + A.format(1, "dep"), "x.conllu:2: the sentence has no root"),
    "two roots": corpus("x.conllu", TREE + TREE.replace("1", "2", 1), "x.conllu:2: the sentence has 2 roots"),
    "no relation": corpus("x.conllu", A.format(0, "_"), "x.conllu:1: a head but no relation"),
    "table without column": corpus("x.csv", "a,b\n1,2\n", "x.csv is a table", "--column"),
    "unknown column": corpus(
        "x.csv", "a,,b\n1,2,3\n", "x.csv:1: there is no column 'c'", "a, (one without a name), b", column="c"
    ),
    "unknown column, JSON": corpus(
        "x.jsonl", '{"a": "x"}\n{"b": ""}\n', "x.jsonl:2: there is no column", "Columns: b", column="a"
    ),
    "two of a name": corpus("x.tsv", "a\ta\n1\t2\n", "x.tsv:1: 2 columns are called 'a'", column="a"),
    "too few fields": corpus("x.tsv", "a\tb\n1\t2\n3\n", "x.tsv:3: 1 column where the first row has 2", column="a"),
    "too many fields": corpus("x.csv", "a,b\n1,2,3\n", "x.csv:2: 3 columns where the first row has 2", column="a"),
    "open quote": corpus(
        "x.csv", 'a,b\n1,2\n"3,4\n', "x.csv:3: broken CSV: a quotation mark that is never", column="a"
    ),
    "text after a quote": corpus("x.csv", 'a\n"1"2\n', "x.csv:2: broken CSV: text after a closing", column="a"),
    "no JSON": corpus("x.jsonl", '{"a": "x"}\n{a: 1}\n', "x.jsonl:2: broken JSON", "Correct the line", column="a"),
    "no object": corpus("x.jsonl", '["x"]\n', "x.jsonl:1: not a JSON object", column="a"),
    "no text": corpus("x.jsonl", '{"a": 5, "b": "x"}\n', "x.jsonl:1: 'a' holds int, not text", "Choose", column="a"),
    "half a character": corpus("x.jsonl", '{"a": "\\ud83d"}\n', "x.jsonl:1: 'a' contains half a character", column="a"),
    "no parquet": corpus("x.parquet", b"nope", "x.parquet: cannot be loaded", "damaged", column="a"),
    "no data set": Case({}, ["--corpus", "hub:", "--column", "a"], ["hub: names no data set", "hub:NAME"]),
    "data set without column": Case({}, ["--corpus", "hub:a/b"], ["a/b is a table", "--column"]),
    "data set offline": Case({}, ["--corpus", "hub:no/x", "--column", "a", "--offline"], ["hub:no/x", "--offline"]),
    "data set outside": Case({}, ["--corpus", "hub:../x", "--column", "a"], ["hub:../x: no such file or folder"]),
    "split": Case(
        {"data/train.jsonl": '{"a": "x"}\n'},
        ["--corpus", "hub:data", "--column", "a", "--data-args", "split=dev"],
        ["there is no split 'dev'", "--data-args split: train"],
    ),
}
OPTIONS = {
    "parser": option("--parser", "magic", say=["'magic' is not a parser", "spacy:MODEL"]),
    "parser without a name": option("--parser", "spacy:", say=["is not a parser"]),
    "spaCy model": option("--parser", "spacy:en_nowhere", say=["not installed", "python -m spacy download en_nowhere"]),
    "spaCy folder": option("--parser", "spacy:./nowhere", say=["no usable spaCy model", "another folder"]),
    "spaCy model fit for no shell": option("--parser", "spacy:a;b", say=["download 'a;b'"]),
    "Stanza model": option("--parser", "stanza:xx@nowhere", say=["stanza.download('xx', model_dir='nowhere')"]),
    "Stanza folder fit for no shell": option("--parser", "stanza:xx@$HOME", say=["python -c 'import stanza"]),
    "Stanza language that is a path": option("--parser", "stanza:../en", say=["is not a parser"]),
    "relation": option("--relations", "nosuch", say=["nosuch does not occur", "nsubj"]),
    "nothing to split at": option("--data-args", "split-at= ", say=["is blank", "separator between the two texts"]),
    "split at what is not there": option("--data-args", "split-at==>", say=["no sentence of demo contains it exactly"]),
    "no alignments": Case({}, ["--alignments", "nowhere"], ["nowhere: no such file"]),
    "alignments of no pairs": option("--alignments", "a.txt", say=["the corpus has no pairs"], a_txt="0-0\n"),
    "alignments and a parser": option(
        *("--alignments", "a.txt", "--parser", "stanza:en"),
        say=["the parser's words may differ from those that the links count"],
        a_txt="0-0\n",
    ),
    "root": option("--relations", "root", say=["root does not occur"]),
    "relations": option("--relations", "nosuch,nsubj,nope", say=["nosuch, nope do not occur"]),
    "language": option("--frequency", "wordfreq:xx", say=["no word frequency list for 'xx'", "Languages: ar"]),
    "no language": option("--frequency", "wordfreq:", say=["no word frequency list"]),
    "no list": option("--frequency", "nowhere.tsv", say=["'nowhere.tsv' is not a file", "wordfreq:LANGUAGE"]),
    "no list of targets": option("--data-args", "target-frequency=nowhere.tsv", say=["'nowhere.tsv' is not a file"]),
    "list": Case({"f.tsv": "a\t1\nb\n"}, ["--frequency", "f.tsv"], ["f.tsv:2: not WORD<TAB>COUNT: 'b'", "Write one"]),
    "count": Case({"f.tsv": "a\t-1\n"}, ["--frequency", "f.tsv"], ["f.tsv:1: '-1' is not a count"]),
    "no counts": Case({"f.tsv": "a\t0\n"}, ["--frequency", "f.tsv"], ["f.tsv: no word has a count"]),
    "latin-1 list": Case({"f.tsv": b"\xe9\t1\n"}, ["--frequency", "f.tsv"], ["f.tsv:1: not UTF-8"]),
    "no baseline": Case({}, ["--data-args", "baseline-corpus=b.conllu"], ["b.conllu: no such file"]),
    "baseline without trees": Case(
        {"b.txt": "A cat.\n"}, ["--data-args", "baseline-corpus=b.txt"], ["b: the baseline", "trees"]
    ),
    "broken baseline": Case(
        {"b.conllu": "x\n"}, ["--data-args", "baseline-corpus=b.conllu"], ["b.conllu:1: 1 column instead"]
    ),
    "no target": Case({"x.txt": "a\n"}, ["--corpus", "x.txt", "--target", "y.txt"], ["y.txt: no such file"]),
    "column of no table": Case(
        {"x.txt": "a\n"}, ["--corpus", "x.txt", "--column", "s"], ["--column s: x.txt has no columns.", "Leave"]
    ),
    "column of the demo": option("--column", "s", say=["--column s: demo has no columns."]),
    "target column of a treebank": Case(
        {"x.conllu": TREE}, ["--corpus", "x.conllu", "--data-args", "target-column=s"], ["x.conllu has no columns."]
    ),
    "split of no data set": option(
        "--data-args", "split=dev", say=["--data-args split dev: demo has no splits.", "only data sets"]
    ),
    "two targets": Case(
        {"x.tsv": "a\tb\n1\t2\n"},
        ["--corpus", "x.tsv", "--column", "a", "--data-args", "target-column=b", "--target", "x.tsv"],
        ["--target and --data-args target-column both"],
    ),
    "output is a file": Case({"x.txt": "a\n"}, ["--out", "x.txt"], ["Cannot write x.txt", "--out"]),
    "output in a file": Case({"x.txt": "a\n"}, ["--out", "x.txt/y"], ["Cannot write x.txt/y", "--out"]),
    "no output there": Case({}, ["--out", "/proc/nowhere"], ["Cannot write /proc/nowhere", "--out"]),
}  # fmt: skip
SHARES = ["positional", "diagonal", "rare", "separator", "broad"]
VALUES = [
    *(["--limit", "0"], ["--limit", "-3"], ["--limit", "x"], ["--batch-tokens", "0"], ["--thresholds", "margin=-1"]),
    *(
        ["--thresholds", "margin=nan"],
        ["--thresholds", "min-instances=0"],
        ["--device", "tpu"],
        ["--dtype", "int8"],
        ["--data-args", "level=piece"],
    ),
    *(
        ["--similarity", "some"],
        ["--thresholds", "margin-kind=odd"],
        ["--data-args", "long-sentences=cut"],
        ["--nonsense", "1"],
    ),
]


def check_refused(done: Any, messages: Sequence[str]) -> None:
    assert done.code == 2, done.out + done.err
    said = " ".join(done.err.split())
    for message in messages:
        assert message in said
    assert "Traceback" not in done.err
    assert done.err.startswith(("Error: ", "Usage: ")), "nothing but the message"
    assert done.out == ""
    assert len(done.err.strip().splitlines()) >= 2, "an error says what to do"


def everything() -> set[str]:
    """All files and folders."""
    return {str(p) for p in Path().rglob("*")}


@pytest.mark.usefixtures("loads_once")
@pytest.mark.parametrize("case", [*CORPORA.values(), *OPTIONS.values()], ids=[*CORPORA, *OPTIONS])
def test_refused(headlens: Headlens, tiny_bert: Path, case: Case) -> None:
    for name, content in case.files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = everything()
    few = () if "--corpus" in case.arguments else ("--limit", 60)
    check_refused(headlens("classify", tiny_bert, *few, *case.arguments), case.messages)
    assert everything() == before


class NeverAsked:
    """A parser that must not be set to work."""

    def parse(self, sentences: object) -> None:
        pytest.fail("the corpus was parsed first")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frequency", "wordfreq:xx"], "--frequency wordfreq:xx: there is no word frequency list for 'xx'"),
        (["--frequency", "nowhere.tsv"], "--frequency 'nowhere.tsv' is not a file"),
        (["--data-args", "target-frequency=nowhere.tsv"], "--data-args target-frequency 'nowhere.tsv' is not a file"),
        (["--data-args", "baseline-corpus=nowhere.conllu"], "nowhere.conllu: no such file"),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_parsed(
    headlens: Headlens, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("headlens.corpora.sources.make_parser", lambda *_, **__: NeverAsked())
    check_refused(headlens("classify", tiny_bert, "--parser", "spacy:any", *arguments), [message])
    assert everything() == set()


@pytest.mark.parametrize("arguments", VALUES, ids=" ".join)
def test_values(headlens: Headlens, arguments: list[str]) -> None:
    check_refused(headlens("classify", "demo", *arguments), [arguments[0]])
    assert everything() == set()


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-0.1", "1.1", "half"])
@pytest.mark.parametrize("name", SHARES)
def test_thresholds_are_numbers_from_0_to_1(headlens: Headlens, name: str, value: str) -> None:
    reason = "'half' is not a number." if value == "half" else f"{value} is not a number from 0 to 1."
    check_refused(headlens("classify", "demo", "--thresholds", f"{name}={value}"), [name, reason])


@pytest.mark.parametrize("value", ["nan", "inf", "-0.1"])
def test_a_margin_is_a_finite_number(headlens: Headlens, value: str) -> None:
    reason = f"{value} is not a finite number of 0 or more."
    check_refused(headlens("classify", "demo", "--thresholds", f"margin={value}"), ["--thresholds margin", reason])
    Path("c.toml").write_text(f"[classify]\nmargin = {value}\n")
    check_refused(headlens("classify", "demo", "--config", "c.toml"), ["--thresholds margin", reason])


@pytest.mark.posix
def test_a_pipe_is_not_waited_for(headlens: Headlens, tiny_bert: Path) -> None:
    os.mkfifo("pipe.txt")
    check_refused(
        headlens("classify", tiny_bert, "--corpus", "pipe.txt"), ["pipe.txt: is a pipe or device, not a regular file"]
    )


def test_unreadable_file(headlens: Headlens, tiny_bert: Path) -> None:
    Path("x.txt").write_text("a\n")
    Path("x.txt").chmod(0)
    if os.access("x.txt", os.R_OK):
        pytest.skip("needs a user whom file permissions concern")
    check_refused(headlens("classify", tiny_bert, "--corpus", "x.txt"), ["x.txt: cannot be read: Permission denied"])


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_absent_device(headlens: Headlens, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    check_refused(headlens("classify", "demo", "--device", device), [f"--device {device}: this machine has no"])
    assert everything() == set()


def test_sides_of_different_length(headlens: Headlens, tiny_marian: Path) -> None:
    Path("one.txt").write_text("A sentence.\n")
    Path("two.txt").write_text("A sentence.\nAnother one.\n")
    done = headlens("classify", tiny_marian, "--corpus", "two.txt", "--target", "one.txt")
    check_refused(done, ["two.txt:2: the sides differ in length: one.txt has 1 line, two.txt has 2.", "Line N"])
    assert everything() == {"one.txt", "two.txt"}


def test_a_byte_order_mark_and_windows_line_ends_simply_work(headlens: Headlens, tiny_bert: Path) -> None:
    text = "\ufeff" + TREE + A.format(1, "obj").replace("1", "2", 1)
    Path("x.conllu").write_bytes(text.replace("\n", "\r\n").encode())
    arguments = ("--corpus", "x.conllu", "--relations", "obj", "--json", "--no-figures", "--out", "run")
    done = headlens("classify", tiny_bert, *arguments)
    assert '"words": 2' in done.out, done.err


LONG = "The old teacher read a long book . " * 120


@pytest.mark.parametrize("content", [LONG, "1," * 600 + "1"])
def test_nothing_short_enough(headlens: Headlens, tiny_bert: Path, content: str) -> None:
    Path("x.txt").write_text(content)
    done = headlens("classify", tiny_bert, "--corpus", "x.txt")
    check_refused(
        done, ["x: the model can read no sentence: 1 longer than its 512 tokens", "--data-args long-sentences=window"]
    )
    assert everything() == {"x.txt"}


def test_long_sentences_in_windows(headlens: Headlens, tiny_bert: Path) -> None:
    Path("x.txt").write_text(f"{LONG}\n{'1,' * 600}1 cat\nA cat.\n")
    arguments = ("--corpus", "x.txt", "--data-args", "long-sentences=window", "--no-figures", "--out", "run")
    done = headlens("classify", tiny_bert, *arguments)
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "2 sentences longer than 512 tokens were cut into windows." in said
    assert "1 word was left out of the windows: it is longer than 512 tokens on its own." in said
    assert '"windowed": 2' in Path("run/run.json").read_text()


def test_sentences_left_out_are_told(headlens: Headlens, tiny_bert: Path) -> None:
    Path("x.txt").write_text(f"{LONG}\nA cat.\n")
    done = headlens("classify", tiny_bert, "--corpus", "x.txt", "--out", "run", "--no-figures")
    assert (
        "1 sentence longer than 512 tokens was left out. --data-args long-sentences=window splits them instead."
        in " ".join(done.out.split())
    )


def test_full_disk(headlens: Headlens, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up after run.json, and again after the sums that are kept."""
    for room in (1, 2):
        written = []

        def fsync(number: int, room: int = room, written: list[int] = written) -> None:
            written.append(number)
            if len(written) > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", fsync)
        done = headlens("classify", tiny_bert, "--limit", 5, "--out", f"run{room}")
        check_refused(done, ["Cannot write run", "No space left on device.", "Free some space"])
        assert not [p for p in Path().rglob("*") if p.is_file() and ".tmp" in p.name]
    assert not Path("run1").exists()
    assert "--resume run2" in done.err


FULL_DISK = """
import resource, sys
from headlens_cli.app import main
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
sys.argv = ["headlens", "attend", {model!r}, "--text", "A cat. " * 40, "--out", "run", "--quiet"]
main()
"""


@pytest.mark.slow
def test_a_file_that_grows_too_large(tiny_bert: Path, tmp_path: Path) -> None:
    """9,000 bytes are enough for run.json, not for the maps."""
    code = FULL_DISK.format(model=str(tiny_bert))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Cannot write run/attention.safetensors: File too large.\nFree some space" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_output_that_may_not_be_written(headlens: Headlens, tiny_bert: Path) -> None:
    Path("locked").mkdir(mode=0o500)
    if os.access("locked", os.W_OK):
        pytest.skip("needs a user whom file permissions concern")
    done = headlens("classify", tiny_bert, "--out", "locked/run")
    check_refused(
        done, ["Cannot write locked/run: Permission denied", "Use --out to name a folder that you may write to"]
    )


def test_relevance_refuses_columns_of_no_table_too(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("relevance", tiny_bert, "--column", "s")
    check_refused(done, ["--column s: demo has no columns."])
    assert everything() == set()
