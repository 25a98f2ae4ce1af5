from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_runs import change_record, classify_tables, write_classification, write_hostile, write_other
from tiers import rest_slow

from headlens.errors import InputError
from headlens.files import read_csv
from headlens.runs.reading import Columns, read_recorded


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
    assert set(recorded.tables["heads"][words]) == {words}
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


COLUMNS = Columns(("layer",), ("share",), {"model": (), "stack": ("encoder", "cross")})
GOOD = pd.DataFrame({"model": ["a", "b"], "stack": ["encoder", "cross"], "layer": [0, 1], "share": [0.5, None]})
KINDS = Columns(
    numbers=("p", "n"), words={"model": ()}, counts=("n",), shares=("p",), truths=("kept",), filled=("model",)
)
MADE = pd.DataFrame({"model": ["a", "b"], "p": [0.5, None], "n": [0, 7], "kept": [True, None]})
MADE = MADE.assign(more=[None, 1.5], roles=["none", "1"], drawn=[True, False])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer": [0, -1]}, "3: column layer holds '-1'; expected a whole number from 0 to 4096."),
        ({"layer": [0.5, 1]}, "2: column layer holds '0.5'; expected a whole number from 0 to 4096."),
        ({"layer": [0, None]}, "3: column layer is empty; expected a whole number from 0 to 4096."),
        ({"layer": [0, 10**12]}, "3: column layer holds '1000000000000'; expected a whole number from 0 to 4096."),
        ({"layer": ["x", "y"]}, "2: column layer holds 'x'; expected a whole number from 0 to 4096."),
        ({"share": [0.5, -np.inf]}, "3: column share holds '-inf'; expected a finite number."),
        ({"share": [0.5, "abc"]}, "3: column share holds 'abc'; expected a finite number."),
        ({"stack": ["encoder", "upper"]}, "3: column stack holds 'upper'; expected one of encoder, cross."),
        ({"stack": [None, "cross"]}, "2: column stack is empty; expected one of encoder, cross."),
    ],
)
def test_cells_that_cannot_be(change: dict[str, Any], words: str) -> None:
    path = Path("run/heads.csv")
    COLUMNS.check(GOOD, path)
    with pytest.raises(InputError) as found:
        COLUMNS.check(GOOD.assign(**change), path)
    assert found.value.message == f"run/heads.csv:{words}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"p": [0.5, -0.1]}, "3: column p holds '-0.1'; expected a number from 0 to 1."),
        ({"n": [1.5, 1]}, "2: column n holds '1.5'; expected a whole number of at least 0."),
        ({"model": ["a", None]}, "3: column model is empty; expected a word."),
        ({"kept": [True, "Fals"]}, "3: column kept holds 'Fals'; expected True or False."),
        # what nobody declared
        ({"more": ["\x000.5", 1.5]}, "2: column more holds '\\x000.5'; expected a number or truth value."),
        ({"more": [1.5, np.inf]}, "3: column more holds 'inf'; expected a finite number."),
        ({"drawn": ["x", "False"]}, "2: column drawn holds 'x'; expected a number or truth value."),
    ],
)
def test_cells_of_another_kind(change: dict[str, Any], words: str) -> None:
    KINDS.check(MADE, Path("x.csv"))
    with pytest.raises(InputError) as found:
        KINDS.check(MADE.assign(**change), Path("x.csv"))
    assert found.value.message == f"x.csv:{words}"


def test_the_line_is_that_of_an_editor(tmp_path: Path) -> None:
    """Quoted cells go on over lines, and blank lines are no rows."""
    path = tmp_path / "heads.csv"
    path.write_text('model,stack,layer,share\n"a\nb",encoder,0,\n\n"c\nd",cross,x,\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"heads\.csv:5: column layer holds 'x'"):
        COLUMNS.check(read_csv(path), path)


def test_missing_columns_are_named() -> None:
    with pytest.raises(InputError, match=r"^x\.csv: no column layer, model\."):
        COLUMNS.check(GOOD.drop(columns=["layer", "model"]), Path("x.csv"))


def test_a_row_is_there_once() -> None:
    columns = Columns(("layer",), identity=("model", "layer"))
    twice = pd.DataFrame({"model": ["a", "b", "a"], "layer": [0, 0, 0]})
    columns.check(twice.iloc[:2], Path("x.csv"))
    with pytest.raises(InputError, match=r"^x\.csv:4: a row for a, 0 appears twice\."):
        columns.check(twice, Path("x.csv"))


def test_later_columns_tell_rows_apart_where_they_are() -> None:
    columns = Columns(("layer",), identity=("layer",), later_identity=("kind",))
    columns.check(pd.DataFrame({"layer": [0, 1]}), Path("x.csv"))
    table = pd.DataFrame({"layer": [0, 0, 0], "kind": ["global", "random", "global"]})
    columns.check(table.iloc[:2], Path("x.csv"))
    with pytest.raises(InputError, match=r"^x\.csv:4: a row for 0, global appears twice\."):
        columns.check(table, Path("x.csv"))


def test_an_empty_table_is_fine() -> None:
    COLUMNS.check(GOOD.iloc[:0], Path("x.csv"))
