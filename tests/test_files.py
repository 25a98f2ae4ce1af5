import dataclasses
import enum
import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from headlens.attention_masks.attention_mask import AttentionMask
from headlens.corpora.conllu import write_conllu
from headlens.corpora.text import plain_sentence
from headlens.errors import ModelError, OutputError
from headlens.files import atomic_path, csv_rows, output_errors, plain_value, read_csv, write_csv, write_json
from headlens.learning.loop import save_random


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@given(st.lists(st.floats(), min_size=1))
def test_floats_read_back_to_the_last_bit(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = write_csv(pd.DataFrame({"key": 1, "x": values}), tmp_path_factory.mktemp("csv") / "t.csv")
    lines = path.read_bytes().decode().split("\n")
    for value, line in zip(values, lines[1:], strict=False):
        cell = line.split(",")[1]
        # Python's own float parser is the judge; an empty cell means missing
        assert (cell == "") if math.isnan(value) else float(cell) == value
    np.testing.assert_array_equal(read_csv(path)["x"].to_numpy(float), np.array(values))


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_narrow_floats_keep_their_value(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    frame = pd.DataFrame({"x": np.array(values, np.float32)})
    path = write_csv(frame, tmp_path_factory.mktemp("csv") / "t.csv")
    np.testing.assert_array_equal(read_csv(path)["x"].to_numpy(np.float64), np.array(values, np.float64))


def test_csv_text_is_pinned(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "model": ["a,b", 'say "x"', "NA", None],
            "layer": [0, 1, 2, 3],
            "x": [0.1, math.nan, math.inf, -math.inf],
            "ok": [True, False, True, False],
            "mixed": [True, None, np.True_, math.nan],
        }
    )
    path = write_csv(frame, tmp_path / "t.csv")
    expected = (
        'model,layer,x,ok,mixed\n"a,b",0,0.1,true,true\n"say ""x""",1,,false,\nNA,2,inf,true,true\n,3,-inf,false,\n'
    )
    assert path.read_bytes() == expected.encode()


def test_csv_reads_truth_values_and_keeps_words(tmp_path: Path) -> None:
    path = write_csv(pd.DataFrame({"token": ["NA", "null", "nan"], "ok": [True, False, True]}), tmp_path / "t.csv")
    back = read_csv(path)
    assert back["ok"].tolist() == [True, False, True]
    assert back["ok"].dtype == bool
    assert back["token"].tolist() == ["NA", "null", "nan"]


def test_csv_of_no_rows_has_its_header(tmp_path: Path) -> None:
    path = write_csv(pd.DataFrame({"a": [], "b": []}), tmp_path / "t.csv")
    assert path.read_text() == "a,b\n"


def test_csv_takes_a_lone_surrogate(tmp_path: Path) -> None:
    path = write_csv(pd.DataFrame({"token": pd.Series(["x\ud800"], dtype=object)}), tmp_path / "t.csv")
    assert path.read_text(encoding="utf-8") == "token\nx\\ud800\n"


def test_atomic_write_makes_folders_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "file.csv"
    with atomic_path(target) as temporary:
        assert temporary.parent == target.parent
        assert temporary.suffix == ".csv"
        temporary.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert leftovers(target.parent) == ["file.csv"]


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt])
def test_atomic_write_keeps_the_old_file_on_an_exception(tmp_path: Path, problem: type[BaseException]) -> None:
    target = tmp_path / "file.csv"
    target.write_text("old")

    def fail() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise problem

    with pytest.raises(problem):
        fail()
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == ["file.csv"]


def test_atomic_write_keeps_the_rights_of_new_files(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_full_disk_is_an_output_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "t.csv").write_text("old")
    monkeypatch.setattr("headlens.files.os.fsync", full)
    with pytest.raises(OutputError, match=r"(?s)Cannot write .*t\.csv: No space left.*Free some space"):
        write_csv(pd.DataFrame({"a": [1]}), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "old"
    assert leftovers(tmp_path) == ["t.csv"]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EROFS, "may write"),
        (errno.EACCES, "may write"),
        (errno.ENOTDIR, "There is a file where a folder"),
        (errno.EIO, "another folder with --out"),
    ],
)
def test_advice_fits_the_reason(number: int, advice: str) -> None:
    with pytest.raises(OutputError) as caught, output_errors("here.csv"):
        raise OSError(number, os.strerror(number))
    assert advice in caught.value.advice
    assert caught.value.message == f"Cannot write here.csv: {os.strerror(number)}."


def test_a_file_in_place_of_the_folder_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(OutputError, match="There is a file where a folder is needed"):
        write_csv(pd.DataFrame({"a": [1]}), tmp_path / "runs" / "t.csv")


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass(frozen=True)
class Limits:
    low: float
    path: Path


def test_json_has_plain_values(tmp_path: Path) -> None:
    data = {
        "path": Path("a/b"),
        "set": {2, 1},
        "tuple": (1, np.int64(2), np.float32(0.5), np.bool_(True)),
        "array": np.array([[1.0, math.nan]]),
        "limits": Limits(math.inf, Path("x")),
        "colour": Colour.RED,
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        3: None,
    }
    path = write_json(data, tmp_path / "run.json")
    assert json.loads(path.read_text()) == {
        "path": "a/b",
        "set": [1, 2],
        "tuple": [1, 2, 0.5, True],
        "array": [[1.0, None]],
        "limits": {"low": None, "path": "x"},
        "colour": "red",
        "device": "cpu",
        "dtype": "torch.float32",
        "3": None,
    }
    assert path.read_text().endswith("}\n")


def test_json_refuses_what_has_no_plain_form() -> None:
    with pytest.raises(TypeError, match="object cannot be represented in JSON"):
        plain_value({"x": object()})


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("Error while serializing: I/O error: No space left on device (os error 28)", "No space left on device"),
        ("No space left on device (os error 28)", "No space left on device"),
        ('I/O error: Input/output error (os error 5) at path "x"', "Input/output error"),
    ],
)
@pytest.mark.parametrize("kind", [Exception, SafetensorError, RuntimeError])
def test_a_library_in_rust_tells_the_system_error_in_its_words(kind: type[Exception], words: str, reason: str) -> None:
    with pytest.raises(OutputError, match=f"Cannot write model: {reason}."), output_errors("model"):
        raise kind(words)


@pytest.mark.parametrize("error", [RuntimeError("unexpected pos 576"), ModelError("no such file (os error 2)")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, output_errors("model"):
        raise error
    assert caught.value is error


@pytest.mark.skipif(os.name != "posix", reason="needs limits of POSIX")
@pytest.mark.parametrize("writer", ["csv", "safetensors", "tokenizer", "torch", "mask", "conllu"])
def test_whoever_writes_a_file_that_cannot_grow_gives_the_same_error(
    writer: str, tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Nobody's own words, and no half file."""
    import resource

    tensor, path = torch.zeros(2000), tmp_path / "file"

    def write() -> None:
        with atomic_path(path) as temporary:
            if writer == "safetensors":
                save_file({"a": tensor}, temporary)
            elif writer == "tokenizer":
                wordpiece_tokenizer.save_pretrained(tmp_path)
            else:
                save_random(tmp_path, 0)

    sentence = plain_sentence("word " * 500, "1")
    writers = {
        "csv": lambda: write_csv(pd.DataFrame({"x": range(2000)}), path),
        "mask": lambda: AttentionMask(torch.ones(1, 1, 70, 70, dtype=torch.bool)).save(path),
        "conllu": lambda: write_conllu([sentence], path),
    }
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OutputError, match=r"(?s)Cannot write .*file: File too large.*Free some space"):
            writers.get(writer, write)()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [name for name in leftovers(tmp_path) if name.startswith((".", "file"))]


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1) | st.from_regex(
    r"\A'{0,3}[-=+@\t\r\n]['a(0-9]{0,3}\Z"
)


@given(st.lists(CELLS, min_size=1), CELLS.filter(lambda name: name[0] != "\ufeff"))
@example(words=["0"], name="=0")
def test_csv_gives_every_text_back(tmp_path_factory: pytest.TempPathFactory, words: list[str], name: str) -> None:
    path = write_csv(pd.DataFrame({name: words, f"{name}2": 1}), tmp_path_factory.mktemp("csv") / "t.csv")
    back = read_csv(path, words=(name,))
    assert back.columns[0] == name
    assert back[name].tolist() == words


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-LRB-", "'-LRB-"),
        ("\t=1", "'\t=1"),
        ("\r=1", '"\'\r=1"'),
        ("'=1", "''=1"),
        ("'s", "'s"),
        ("-0.5", "-0.5"),
        ("+1", "+1"),
        ("-1e-3", "-1e-3"),
        ("<-8", "<-8"),
        ("-", "-"),
        ("dep->head", "dep->head"),
        (-0.5, "-0.5"),
        (-np.inf, "-inf"),
    ],
)
def test_no_spreadsheet_runs_a_cell(tmp_path: Path, text: object, cell: str) -> None:
    path = write_csv(pd.DataFrame({"a": [text, "x"] if isinstance(text, str) else [text], "b": 1}), tmp_path / "t.csv")
    assert path.read_bytes().decode().startswith(f"a,b\n{cell},1\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2\n3,4", "its last line has no line break"),
        ("a,b\n1,2\n3\n", "line 3 has 1 cell where the first line has 2"),
        ("a,b\n1,2,3\n", "line 2 has 3 cells where the first line has 2"),
        ('a,b\n1,"2\n', "line 2: unexpected end of data"),
        ("a,a\n1,2\n", "two columns have the same name"),
        ("a,b\n1," + "x" * 200_000 + "\n", "line 2: field larger than field limit"),
    ],
)
def test_tables_that_were_cut_are_refused(tmp_path: Path, content: str, words: str) -> None:
    (path := tmp_path / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=words):
        read_csv(path)


def test_rows_of_a_table_with_their_lines(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n\r\n1,"x\ny"\r\n2,\r\n')
    assert list(csv_rows(path)) == [(3, {"a": "1", "b": "x\ny"}), (5, {"a": "2", "b": ""})]
