from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_runs import change_record, classify_tables, write_classification, write_hostile, write_other
from tiers import rest_slow

from headlens.errors import InputError
from headlens.runs.reading import read_recorded


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_classification(tmp_path / "run")


def message(folder: Path) -> str:
    with pytest.raises(InputError) as found:
        read_recorded(folder, "run")
    assert found.value.advice
    return str(found.value)


def test_a_run_reads_as_it_was_written(run: Path) -> None:
    found = read_recorded(run, "label")
    assert (found.label, found.command, found.status, found.finished) == ("label", "classify", "finished", True)
    assert found.models == ["demo"]
    assert found.notes == ["34 words share a token."]
    assert found.corpus["sentences"] == 258
    assert found.argument("min_instances", 5) == 30
    assert found.argument("absent", 5) == 5
    assert list(found.tables) == ["heads", "positions", "syntax", "similarity"]
    written = classify_tables()["similarity"]
    pd.testing.assert_frame_equal(found.tables["similarity"], written, check_dtype=False)


def test_titles_name_the_corpus_that_fixed_offsets_are_from(run: Path) -> None:
    own = read_recorded(run, "run").corpus_name
    assert "fixed offsets" not in own
    change_record(run, {"arguments": {"baseline_corpus": "data/en_ewt-train.conllu"}})
    assert read_recorded(run, "run").corpus_name == f"{own}, fixed offsets of en_ewt-train"


def test_options_stand_side_by_side(run: Path) -> None:
    """What a value of some other option holds is none, be it called so."""
    change_record(run, {"arguments": {"other": {"min_instances": 7}, "min_tokens": 3}})
    assert read_recorded(run, "").argument("min_instances", 30) == 30
    assert read_recorded(run, "").argument("min_tokens", 30) == 3


def test_tables_that_the_record_does_not_list_are_read_too(run: Path) -> None:
    change_record(run, {"files": ["heads.csv"], "status": "running"})
    assert list(read_recorded(run, "").tables) == ["heads", "positions", "similarity", "syntax"]


@pytest.mark.parametrize("words", rest_slow(["=1+1", "+a", "-LRB-", "@SUM(A1)", "'=a", "\t=", "a\rb", '"\n,'], 3))
def test_names_that_a_spreadsheet_would_run_stay_names(tmp_path: Path, words: str) -> None:
    recorded = read_recorded(write_hostile(tmp_path / "run", words), "r")
    assert set(recorded.tables["heads"]["model"]) == {words}
    assert set(recorded.tables["heads"][words]) == {words, "rare"}
    assert set(recorded.tables["syntax"]["relation"]) == {words}


def test_names_that_look_like_numbers_stay_names(tmp_path: Path) -> None:
    found = read_recorded(write_classification(tmp_path / "run", model="007"), "")
    assert set(found.tables["heads"]["model"]) == {"007"}
    assert found.models == ["007"]


def test_files_outside_of_the_folder_are_not_followed(run: Path) -> None:
    (run.parent / "outside.csv").write_text("a\n1\n")
    change_record(run, {"files": ["heads.csv", "../outside.csv", "positions.csv", "figures/x.csv"]})
    assert "outside" not in read_recorded(run, "").tables


def test_pictures_are_those_of_the_folder(tmp_path: Path) -> None:
    run = write_other(tmp_path / "run")
    (run / "figures" / "other.txt").write_text("")
    assert [p.name for p in read_recorded(run, "").pictures] == ["sentence1_encoder_layer0.png"]


def test_no_folder(tmp_path: Path) -> None:
    assert f"{tmp_path / 'none'} does not exist" in message(tmp_path / "none")


def test_a_file_is_no_folder(run: Path) -> None:
    assert "run.json is a file" in message(run / "run.json")


def test_a_folder_without_record(tmp_path: Path) -> None:
    assert "holds no run.json" in message(tmp_path)


def test_runs_in_a_folder_are_named(run: Path) -> None:
    with pytest.raises(InputError, match=r"holds no run\.json") as found:
        read_recorded(run.parent, "runs")
    assert found.value.advice == f"Runs in it: {run}."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{half a fi", "cannot be read: Expecting property name"),
        (b'{"command": "\xff"}', "cannot be read"),
        (b"[]", "does not hold a JSON object"),
        (b"[" * 100_000, "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_a_broken_record(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "run.json").write_bytes(content)
    found = message(tmp_path)
    assert words in found
    assert str(tmp_path / "run.json") in found


def test_a_listed_table_that_is_gone(run: Path) -> None:
    (run / "syntax.csv").unlink()
    assert f"{run / 'syntax.csv'} is missing" in message(run)
    change_record(run, {"status": "interrupted"})
    assert "syntax" not in read_recorded(run, "").tables


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"model,stack\na,b\nc,d,e,f\n",
        b'model,stack\n"a,b\n',
        b"model,stack\n\xff\xfe,b\n",
        b"model,stack\na,b,c\nd,e,f\n",
    ],
)
def test_a_broken_table(run: Path, content: bytes) -> None:
    (run / "syntax.csv").write_bytes(content)
    assert f"{run / 'syntax.csv'} cannot be read" in message(run)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"command": 3, "status": None, "models": "x", "corpus": [], "notes": 7, "files": {"a": 1}, "arguments": "no"},
        {"models": [1, None, {}], "notes": [None], "files": [3, None]},
    ],
)
def test_records_of_any_shape_are_endured(tmp_path: Path, record: dict[str, Any]) -> None:
    (tmp_path / "run.json").write_text("{}")
    change_record(tmp_path, record)
    found = read_recorded(tmp_path, "")
    assert isinstance(found.command, str)
    assert not found.finished
    assert all(isinstance(note, str) for note in found.notes)
    assert found.models == ["unknown"]
    assert found.corpus == {}
    assert found.argument("x", 1) == 1
