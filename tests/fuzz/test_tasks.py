"""Damaged data of every task, in every format: examples, or a refusal that names the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fuzz.damage import blows, damaged, damaged_json, fuzzing, told
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.sources import CorpusOptions, open_corpus
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.example_sources import SourceCounts
from headlens.tasks.open_task import DataOptions, open_task

KINDS = ["tsv", "csv", "jsonl", "json"]
ROW = {
    "text": "A cat sat.", "sentence": "A good film.", "sentence1": "A cat.", "sentence2": "A dog.", "label": 1,
    "premise": "It rains.", "hypothesis": "It is wet.", "question": "Who sat?", "context": "A cat sat.", "score": 2.5,
    "answers": {"text": ["A cat"], "answer_start": [0]}, "id": "q1", "translation": {"en": "A cat.", "de": "Katze"},
    "startphrase": "A cat", "ending0": "sat.", "ending1": "ran.", "ending2": "flew.", "ending3": "sang.",
    "source": "A cat.", "target": "Eine Katze.", "sent1": "A cat", "sent2": "It",
}  # fmt: skip


def written(kind: str, strokes: Any) -> bytes:
    """Two rows in a format, damaged."""
    if kind == "json":
        return damaged_json([ROW, ROW | {"label": 0}], strokes)
    if kind == "jsonl":
        return damaged_json(ROW, strokes) + b"\n" + json.dumps(ROW).encode() + b"\n"
    mark = "\t" if kind == "tsv" else ","
    cells = [str(value) if kind == "tsv" else f'"{value}"' for value in ROW.values()]
    return damaged("\n".join((mark.join(ROW), mark.join(cells), mark.join(cells), "")).encode(), strokes)


@fuzzing(150)
@given(st.sampled_from(sorted(CATALOGUE)), st.sampled_from(KINDS), blows(least=1), st.booleans())
def test_damaged_data_of_tasks(tmp_path_factory: Any, task: str, kind: str, strokes: Any, skip: bool) -> None:
    path = tmp_path_factory.getbasetemp() / f"data.{kind}"
    path.write_bytes(written(kind, strokes))
    told(lambda: list(open_task(task, path, DataOptions(skip_broken=skip))[1].read(SourceCounts())))


@fuzzing(3)
@given(blows(least=1))
def test_damaged_parquet(tmp_path_factory: Any, strokes: Any) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs the extra `hub`")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra `hub`")
    pytest.importorskip("datasets", reason="needs the extra `hub`")
    path: Path = tmp_path_factory.mktemp("fuzzed") / "a.parquet"
    parquet.write_table(arrow.table({"text": ["A cat sat.", "A dog."], "de": ["a", None]}), path)
    path.write_bytes(damaged(path.read_bytes(), strokes))
    told(lambda: list(open_corpus(str(path), CorpusOptions(column="text"))))
    path.unlink()
