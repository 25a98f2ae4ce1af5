"""Damaged tables: what is broken is refused with its line, all else is read as the `csv` and `json` modules read it."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fuzz.damage import blows, damaged, fuzzing
from fuzz.test_text import check_words, naive_lines, naive_text, read
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.table import TableCorpus
from headlens.errors import CorpusError

TSV = (
    'id\ttext\tde\tlabel\n1\tOne cat.\tEine Katze.\t0\n2\tTwo, "dogs"\t Zwei  Hunde\t1\n\n3\t\tleer\t\n4\tnaïve\tx\t2\n'
)
CSV = 'id,text,de,label\n1,One cat.,Eine Katze.,0\n2,"Two, ""dogs""","Zwei\nHunde",1\n\n3,,leer,\n4,naïve,x,2\n'
JSONL = (
    '{"id": 1, "text": "One cat.", "de": "Eine Katze.", "pair": {"text": "a"}}\n'
    '{"id": 2, "text": "Two, \\"dogs\\" \\u00e9\\ud83d\\ude00", "de": "Zwei\\nHunde", "label": [1, null, 1.5e3]}\n\n'
    '{"id": 3, "text": null, "de": "leer"}\n{"id": 4, "text": "naïve", "de": "x", "pair": {"text": {}}}\n'
)
Cells = tuple[str, str]


class BrokenError(Exception):
    """Nobody could read this."""


def naive_tsv(lines: list[str]) -> Iterator[Mapping[str, Any]]:
    yield from named([line.split("\t") for line in lines if line.strip()])


def naive_csv(lines: list[str]) -> Iterator[Mapping[str, Any]]:
    try:
        rows = list(csv.reader([f"{line}\n" for line in lines], strict=True))
    except csv.Error as error:
        raise BrokenError from error
    yield from named([row for row in rows if row])


def named(rows: list[list[str]]) -> Iterator[Mapping[str, Any]]:
    for row in rows[1:]:
        if len(row) != len(rows[0]):
            raise BrokenError
        yield dict(zip(rows[0], row, strict=True))
    if rows and any(rows[0].count(name) != 1 for name in ("text", "de")):
        raise BrokenError


def naive_json(lines: list[str]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BrokenError from error
        if not isinstance(row, dict) or not all(isinstance(row.get(c, 0), str | None) for c in ("text", "de")):
            raise BrokenError
        yield row


def naive_cells(data: bytes, rows: Callable[[list[str]], Iterator[Mapping[str, Any]]]) -> list[Cells] | None:
    """Sentence and translation of every row that has both; None if anything is wrong with the file."""
    if (lines := naive_lines(data)) is None:
        return None
    try:
        cells = [(row["text"] or "", row["de"] or "") for row in rows(lines)]
        "".join(a + b for a, b in cells).encode()
    except (BrokenError, KeyError, UnicodeEncodeError):
        return None
    return [(naive_text(a), naive_text(b)) for a, b in cells if naive_text(a) and naive_text(b)]


def check_table(path: Path, data: bytes, expected: list[Cells] | None) -> None:
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    found = read(TableCorpus(path, "text", "de"))
    if isinstance(found, CorpusError):
        # The oracle takes every cell as it is; a mapping that is written as text has tests of its own.
        assert expected is None or "written out as text" in str(found), str(found)
        assert found.path == path
        assert found.line in range(1, data.count(b"\n") + 2)
        assert len(str(found)) < 2000
        return
    assert expected is not None, "a broken file was read"
    assert [(e.source.text, e.target.text) for e in found if e.target] == expected
    for example in found:
        check_words(example.source)


@fuzzing(700)
@given(blows(), st.sampled_from(["", ".gz"]))
def test_damaged_tsv(tmp_path_factory: pytest.TempPathFactory, strokes: Any, packed: str) -> None:
    data = damaged(TSV.encode(), strokes)
    check_table(tmp_path_factory.getbasetemp() / f"fuzzed.tsv{packed}", data, naive_cells(data, naive_tsv))


@fuzzing(700)
@given(blows(), st.sampled_from(["", ".gz"]))
def test_damaged_csv(tmp_path_factory: pytest.TempPathFactory, strokes: Any, packed: str) -> None:
    data = damaged(CSV.encode(), strokes)
    check_table(tmp_path_factory.getbasetemp() / f"fuzzed.csv{packed}", data, naive_cells(data, naive_csv))


@fuzzing(700)
@given(blows(), st.sampled_from(["", ".gz"]))
def test_damaged_json(tmp_path_factory: pytest.TempPathFactory, strokes: Any, packed: str) -> None:
    data = damaged(JSONL.encode(), strokes)
    check_table(tmp_path_factory.getbasetemp() / f"fuzzed.jsonl{packed}", data, naive_cells(data, naive_json))


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "de", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@fuzzing(300)
@given(st.lists(ANY_JSON, max_size=3))
def test_any_json(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    check_table(tmp_path_factory.getbasetemp() / "any.jsonl", data, naive_cells(data, naive_json))


@pytest.mark.parametrize("depth", [50, 400, 470, 700, 900, 5000, 100_000])
def test_deeply_nested_json(tmp_path: Path, depth: int) -> None:
    (path := tmp_path / "deep.jsonl").write_text('{"x": ' * depth + "1" + "}" * depth)
    found = read(TableCorpus(path, "text"))
    assert isinstance(found, CorpusError)
    assert len(str(found)) < 2000
