"""Sentences of a corpus that cannot be read: refused with their line, or left out and counted."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.sentence import BrokenRows
from headlens.corpora.sources import open_corpus
from headlens.errors import CorpusError


def rows(line: Callable[[int], str], broken: str | bytes, head: str = "", number: int = 8) -> bytes:
    """A file of so many rows, of which the third cannot be read."""
    lines = [line(n).encode() for n in range(1, number)]
    return head.encode() + b"".join([*lines[:2], broken if isinstance(broken, bytes) else broken.encode(), *lines[2:]])


def tree(n: int) -> str:
    return f"# sent_id = s{n}\n1\tWord\t_\t_\t_\t_\t2\tnsubj\t_\t_\n2\tgoes{n}\t_\t_\t_\t_\t0\troot\t_\t_\n\n"


def text(n: int) -> str:
    return f"sentence number {n}\n"


# By case: name of the file, its content, and what is told of the broken row.
CASES: dict[str, tuple[str, bytes, str]] = {
    "latin-1": ("a.txt", rows(text, b"caf\xe9\n"), "a.txt:3: not UTF-8: byte 0xe9 at byte 4 of the line"),
    "NUL": ("a.txt", rows(text, "a\0b\n"), "a.txt:3: a NUL character"),
    "tabs": (
        "a.tsv",
        rows(lambda n: f"{n}\ttext {n}\n", "3\n", "id\ts\n"),
        "a.tsv:4: 1 column where the first row has 2.",
    ),
    "commas": (
        "a.csv",
        rows(lambda n: f"{n},text {n}\n", "3,a,b\n", "id,s\n"),
        "a.csv:4: 3 columns where the first row",
    ),
    "list": ("a.csv", rows(lambda n: f"{n},text {n}\n", "3,['a']\n", "id,s\n"), "a.csv:4: 's' holds a list"),
    "cut JSON": ("a.jsonl", rows(lambda n: json.dumps({"s": f"text {n}"}) + "\n", '{"s\n'), "a.jsonl:3: broken JSON: "),
    "no column": (
        "a.jsonl",
        rows(lambda n: json.dumps({"s": f"text {n}"}) + "\n", '{"t": "a"}\n'),
        "a.jsonl:3: there is",
    ),
    "number": (
        "a.jsonl",
        rows(lambda n: json.dumps({"s": f"text {n}"}) + "\n", '{"s": 3}\n'),
        "a.jsonl:3: 's' holds int",
    ),
    "head": ("a.conllu", rows(tree, tree(9).replace("\t2\t", "\t7\t")), "a.conllu:10: head 7"),
    "columns": ("a.conllu", rows(tree, "1\tWord\n\n"), "a.conllu:9: 2 columns instead of 10"),
    "bytes in a tree": ("a.conllu", rows(tree, tree(9).encode().replace(b"Word", b"\xff")), "a.conllu:10: not UTF-8"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_sentence_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str) -> None:
    name, content, message = CASES[case]
    path = tmp_path / name
    path.write_bytes(content)
    column = None if name.endswith((".txt", ".conllu")) else "s"
    with pytest.raises(CorpusError, match="Or leave such rows out with --data-args skip-broken") as caught:
        list(open_corpus(str(path), CorpusOptions(column=column)))
    assert f"{name}{caught.value.message.removeprefix(str(path))}".startswith(message)
    options = CorpusOptions(column=column, skip_broken=True)
    with caplog.at_level(logging.WARNING):
        found = [example.source.text for example in open_corpus(str(path), options)]
    assert len(found) == 7
    assert f"a: Left out by --data-args skip-broken: 1 of 8 rows. {message}" in caplog.text
    # What is read before the limit counts, and nothing behind it.
    caplog.clear()
    assert len(list(open_corpus(str(path), CorpusOptions(column=column, skip_broken=True, limit=2)))) == 2
    assert not caplog.text
    assert len(list(open_corpus(str(path), CorpusOptions(column=column, skip_broken=True, limit=5)))) == 5
    assert "1 of 6 rows" in caplog.text


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_broken_side_takes_its_pair_along(tmp_path: Path, side: str) -> None:
    for name in ("source", "target"):
        broken: Any = b"\xff\n" if name == side else f"{name} 3\n"
        (tmp_path / f"{name}.txt").write_bytes(rows(lambda n, name=name: f"{name} {n + (n > 2)}\n", broken))
    options = CorpusOptions(target=str(tmp_path / "target.txt"), skip_broken=True)
    pairs = [
        (e.source.text, e.target.text if e.target else "") for e in open_corpus(str(tmp_path / "source.txt"), options)
    ]
    assert pairs == [(f"source {n}", f"target {n}") for n in (1, 2, 4, 5, 6, 7, 8)]


@pytest.mark.parametrize(
    ("rows", "most"), [(1, 0), (2, 1), (4, 1), (8, 2), (20, 5), (40, 10), (44, 10), (1000, 10), (2000, 20), (9950, 99)]
)
def test_how_many_may_be_left_out(rows: int, most: int) -> None:
    counted = BrokenRows("s", None, skip=True)
    for number in range(1, most + 1):
        counted.add(CorpusError("broken", path="s", line=number))
    counted.check(rows)
    counted.add(CorpusError("broken", path="s", line=most + 1))
    with pytest.raises(CorpusError, match=rf"{most + 1} of {rows} rows? cannot be read\. The first: s:1: broken"):
        counted.check(rows)


def test_a_file_of_utf_16_is_no_file_with_broken_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\ntwo\n".encode("utf-16"))
    with pytest.raises(CorpusError, match="iconv -f utf-16"):
        list(open_corpus(str(tmp_path / "a.txt"), CorpusOptions(skip_broken=True)))
