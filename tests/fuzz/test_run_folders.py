"""Damaged run folders: read, refused with the file, or replaced; whatever is not ours stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from analyses.report.test_page import Elements
from fuzz.damage import blows, damaged, damaged_json, fuzzing, told
from hypothesis import given
from hypothesis import strategies as st
from made_runs import write_ablation, write_classification, write_relevance
from tiers import rest_slow

from headlens.analyses.compact.head_lists import read_heads
from headlens.analyses.report.page import RunSection, overviews, render
from headlens.analyses.report.registry import report_of_run
from headlens.errors import InputError
from headlens.heads import Head
from headlens.pages.latex_tables import latex_table
from headlens.runs.folder import RunFolder
from headlens.runs.reading import read_recorded

MAKERS = {"classify": write_classification, "relevance": write_relevance, "ablate": write_ablation}
MINE = "somebody's\nown\n"


@pytest.fixture(scope="module", params=rest_slow(MAKERS, ["ablate"]))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp("fuzzed") / "run")


def shown(folder: Path) -> Any:
    """Reads a run and writes its page and its LaTeX, both well-formed."""
    found = read_recorded(folder, "run")
    report_of_run(found).check(found)
    html = render([RunSection(found, [], [], [])])
    assert Elements(html).open == []
    html.encode()
    for table in overviews([found]):
        text = latex_table(table)
        assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
        text.encode()
        table.console()
    return found


@fuzzing(40, 0.3)
@given(blows(least=1))
def test_damaged_records(run: Path, strokes: Any) -> None:
    path = run / "run.json"
    whole = path.read_bytes()
    try:
        path.write_bytes(damaged_json(json.loads(whole), strokes))
        told(lambda: shown(run))
    finally:
        path.write_bytes(whole)


@fuzzing(40, 0.5)
@given(blows(least=1), st.integers(0, 9))
def test_damaged_tables_of_runs(run: Path, strokes: Any, which: int) -> None:
    tables = sorted(run.glob("*.csv"))
    path = tables[which % len(tables)]
    whole = path.read_bytes()
    try:
        path.write_bytes(damaged(whole, strokes))
        told(lambda: shown(run))
    finally:
        path.write_bytes(whole)


@fuzzing(60, 0.5)
@given(blows(least=1), st.booleans())
def test_damaged_runs_are_replaced_or_gone_on_with(tmp_path_factory: Any, strokes: Any, overwrite: bool) -> None:
    folder = tmp_path_factory.mktemp("run") / "run"
    files = ["heads.csv", "figures/a.png"]
    record = {"command": "classify", "model": "demo", "status": "interrupted", "files": files, "arguments": {"x": 1}}
    (folder / "figures").mkdir(parents=True)
    kept = [folder / "notes.txt", folder.parent / "outside.csv", folder / "figures" / "mine.png"]
    for path in (*kept, *(folder / name for name in files)):
        path.write_text(MINE)
    (folder / "run.json").write_bytes(damaged_json(record, strokes))

    def write() -> None:
        with RunFolder.create(
            folder, command="classify", model="demo", overwrite=overwrite, resume=not overwrite
        ) as new:
            new.start({"arguments": {"x": 1}})

    found = told(write)
    assert [path.read_text() for path in kept] == [MINE] * len(kept)
    if not isinstance(found, InputError):
        assert read_recorded(folder, "").finished


LISTS = [
    b"model,task,strategy,n_pruned,removed\na,b,ranked,1,encoder.0.1\na,b,ranked,2,encoder.0.1 encoder.1.2\n",
    b"stack,layer,head,removed\nencoder,0,1,true\nencoder,0,2,false\nencoder,1,0,true\n",
    b"encoder.0.1 # first\nencoder.1.2, decoder.0.3\n",
]


@fuzzing(150)
@given(st.sampled_from(LISTS), blows(least=1), st.sampled_from([(), ("n_pruned=2",), ("removed=",), ("x",)]))
def test_damaged_lists_of_heads(tmp_path_factory: Any, whole: bytes, strokes: Any, where: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "pruning.csv"
    path.write_bytes(damaged(whole, strokes))
    found = told(lambda: read_heads(path, where))
    assert isinstance(found, InputError) or all(isinstance(head, Head) for head in found)


@pytest.mark.parametrize("whole", LISTS[:2])
def test_a_table_cut_anywhere_but_at_a_line_end_is_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "pruning.csv"
    ends = {i + 1 for i, byte in enumerate(whole) if byte == ord("\n")}
    for size in range(whole.index(b"\n") + 2, len(whole)):
        path.write_bytes(whole[:size])
        if size not in ends:
            assert "may be truncated" in str(told(lambda: read_heads(path)))


def test_a_table_with_whole_rows_cut_off_is_refused_beside_its_run(run: Path) -> None:
    for path in run.glob("*.csv"):
        whole = path.read_bytes()
        path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
        assert "it was truncated or changed" in str(told(lambda: read_recorded(run, "")))
        path.write_bytes(whole)
