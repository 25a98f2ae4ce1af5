"""Which heads a table or a list names."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from headlens.analyses.compact.head_lists import read_heads
from headlens.errors import OptionError
from headlens.files import write_csv
from headlens.heads import Head, parse_heads

A, B, C = Head("encoder", 0, 1), Head("encoder", 2, 0), Head("cross", 1, 3)
PRUNING = (
    "model,task,strategy,seed,n_pruned,removed\n"
    "m,sst2,ranked,0,1,encoder.0.1\n"
    "m,sst2,ranked,0,2,encoder.0.1 cross.1.3\n"
    "m,sst2,greedy,0,2,encoder.2.0 cross.1.3\n"
)
HEADS = "model,stack,layer,head,removed\nm,encoder,0,1,True\nm,encoder,0,2,False\nm,cross,1,3,1\nm,cross,1,4,\n"


def file(folder: Path, content: str | bytes, name: str = "list") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        "encoder.0.1\nencoder.2.0\n",
        "encoder.0.1, encoder.2.0",
        "# ranked\nencoder.0.1 # the first\n\n  encoder.2.0;encoder.0.1\r\n",
        "\ufeffencoder.0.1 encoder.2.0",
        "\ufeff\ufeffencoder.0.1 encoder.2.0",
    ],
)
def test_plain_lists(content: str, tmp_path: Path) -> None:
    assert read_heads(file(tmp_path, content)) == [A, B]


def test_rows_of_a_pruning_table(tmp_path: Path) -> None:
    path = file(tmp_path, PRUNING, "pruning.csv")
    assert read_heads(path, ["strategy=greedy"]) == [B, C]
    assert read_heads(path, ["strategy=ranked", "n_pruned=2"]) == [A, C]
    assert read_heads(path, ["n_pruned=1.0"]) == [A]


@pytest.mark.parametrize(
    ("rows", "example"),
    [
        # The best metric of those that were chosen, whatever a random set or the whole model has.
        (["accuracy,none,,0,0.95,,", "accuracy,importance,,2,0.8,,not decided", "accuracy,ranked,,2,0.7,,not decided",
          "accuracy,random,4,2,0.9,,not decided", "accuracy,placebo,0,2,0.99,importance,not needed"],
         "strategy=importance,n_pruned=2"),
        (["loss,importance,,2,0.8,,", "loss,ranked,,2,0.7,,", "loss,random,4,2,0.1,,"], "strategy=ranked"),
        # The most heads that are not needed.
        (["accuracy,ranked,,2,0.9,,not decided", "accuracy,importance,,1,0.8,,not needed",
          "accuracy,importance,,3,0.7,,not needed", "accuracy,random,4,3,0.9,,not needed"],
         "strategy=importance,n_pruned=3"),
        # Of random sets alone.
        (["accuracy,random,4,2,0.9,,", "accuracy,random,5,2,0.8,,"], "seed=4"),
        (["accuracy,ranked,,2,x,,", "accuracy,greedy,,2,,,"], "strategy=greedy"),
    ],
)  # fmt: skip
def test_the_row_that_is_named_as_an_example_is_the_best_that_was_chosen(
    rows: list[str], example: str, tmp_path: Path
) -> None:
    """And it names one list of heads."""
    names = "metric,strategy,seed,n_pruned,value,control_of,verdict,removed\n"
    heads = ["" if ",none," in row else f"encoder.{number}.0" for number, row in enumerate(rows)]
    lines = [f"{row},{head}\n" for row, head in zip(rows, heads, strict=True)]
    path = file(tmp_path, names + "".join(lines), "pruning.csv")
    with pytest.raises(OptionError, match="name different heads") as refused:
        read_heads(path)
    assert refused.value.advice == f"Choose one, such as --where {example}."
    assert len(read_heads(path, example.split(","))) == 1


@pytest.mark.parametrize("task", ["=HYPERLINK(1)", "@x", "-LRB-", "'+a", "a\nb\rc", "a\u2028b"])
def test_tasks_are_named_as_they_are(task: str, tmp_path: Path) -> None:
    rows = [{"task": task, "removed": "encoder.0.1"}, {"task": "sst2", "removed": "encoder.2.0"}]
    assert read_heads(write_csv(pd.DataFrame(rows), tmp_path / "pruning.csv"), [f"task={task}"]) == [A]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_lines_end_as_any_editor_ends_them(end: str, tmp_path: Path) -> None:
    path = file(tmp_path, PRUNING.replace("\n", end), "pruning.csv")
    assert read_heads(path, ["strategy=greedy"]) == [B, C]


def test_rows_that_agree_need_no_choice(tmp_path: Path) -> None:
    path = file(tmp_path, "n,removed\n1,encoder.0.1 cross.1.3\n2,cross.1.3 encoder.0.1\n")
    assert read_heads(path) == [A, C]


def test_tables_of_heads_say_yes_and_no(tmp_path: Path) -> None:
    assert read_heads(file(tmp_path, HEADS)) == [A, C]


def test_names_once() -> None:
    assert parse_heads(("encoder.0.1", "cross.1.3", "encoder.0.1")) == [A, C]


@pytest.mark.parametrize(
    ("content", "where", "messages"),
    [
        (PRUNING, [], ["3 rows that name different heads", "--where strategy=greedy,n_pruned=2"]),
        (PRUNING, ["strategy=ranked"], ["2 rows that name different heads", "--where n_pruned=2."]),
        (PRUNING, ["strategy=beam"], ["has no row with strategy=beam"]),
        (PRUNING, ["strateg=beam"], ["has no column 'strateg'", "columns: model, task, strategy"]),
        (PRUNING, ["greedy"], ["'greedy' is not a condition", "COLUMN=VALUE"]),
        (
            PRUNING.replace("cross.1.3", "cross.1"),
            ["n_pruned=2"],
            ["list:3: 'cross.1' is not the name of a head", "encoder.3.1"],
        ),
        ("removed\n", [], ["has no rows"]),
        ("a,removed\n1,\n", [], ["names no head"]),
        (HEADS.replace("True", "perhaps"), [], ["list:2: removed is 'perhaps'", "True or False"]),
        (HEADS.replace("encoder,0,1", "side,0,1"), [], ["list:2: 'side.0.1' is not the name of a head"]),
        ("encoder.0.1\nencoder.0\n", [], ["list:2: 'encoder.0' is not the name of a head", "STACK.LAYER.HEAD"]),
        ("encoder.0.1\n", ["a=b"], ["has no column 'removed'", "plain list"]),
        ("", [], ["names no head"]),
        ("# nothing\n", [], ["names no head"]),
        (b"\xe9", [], ["list is not UTF-8"]),
        (None, [], ["list cannot be read: No such file"]),
    ],
)
def test_bad_lists(content: str | bytes | None, where: list[str], messages: list[str], tmp_path: Path) -> None:
    path = tmp_path / "list" if content is None else file(tmp_path, content)
    with pytest.raises(OptionError) as caught:
        read_heads(path, where)
    assert all(m in str(caught.value) for m in messages), str(caught.value)
    assert caught.value.advice


ABLATION = "stack,layer,head,delta\nencoder,0,1,-0.5\ncross,1,3,-0.1\n"


def test_the_folder_of_a_run_is_its_table(tmp_path: Path) -> None:
    (tmp_path / "examples.csv").write_text("example,loss\n1,2\n", encoding="utf-8")
    (tmp_path / "pruning.csv").write_text("n,removed\n1,encoder.0.1\n2,encoder.0.1 cross.1.3\n", encoding="utf-8")
    assert read_heads(tmp_path, ["n=2"]) == [A, C]
    (tmp_path / "more.csv").write_text("n,removed\n1,cross.1.3\n", encoding="utf-8")
    with pytest.raises(OptionError, match=r"several such tables\.\nName one of them: more\.csv, pruning\.csv"):
        read_heads(tmp_path)


@pytest.mark.parametrize(
    ("files", "given", "messages"),
    [
        ({"ablation.csv": ABLATION}, "", ["folder without a table of heads that has removed", "--heads NUMBER"]),
        ({"ablation.csv": ABLATION}, "ablation.csv", ["lists no heads", "--heads NUMBER", "ablate --prune"]),
        (
            {"rank.csv": ABLATION},
            "rank.csv",
            ["least important heads of", "rank.csv, say how many with --heads NUMBER"],
        ),
        ({"ablation.csv": ABLATION, "examples.csv": "a,b\n"}, "examples.csv", ["lists no heads", "ablation.csv"]),
        ({"log.csv": "step,loss\n"}, "", ["folder without a table of heads", "Give a pruning.csv"]),
        ({}, "", ["folder without a table of heads", "Give a pruning.csv"]),
        (
            {"sweep.csv": "run,removed\npenalty-1,encoder.0.1\n", "gates.csv": "stack,layer,head,gate\n"},
            "gates.csv",
            ["lists no heads", "sweep.csv lists heads", "models, have lost theirs already"],
        ),
        (
            {"sweep.csv": "run,removed\npenalty-1,\n", "results.csv": "run,heads\n"},
            "results.csv",
            ["lists no heads", "sweep.csv lists heads", "models, have lost theirs already"],
        ),
        ({"sweep.csv": "run,removed\npenalty-1,\n"}, "", ["sweep.csv names no head", "None was removed there"]),
        (
            {"sweep.csv": "run,removed\na,encoder.0.1\nb,cross.1.3\n"},
            "",
            ["2 rows that name different heads", "--where run=b"],
        ),
    ],
)
def test_what_a_run_has_instead(files: dict[str, str], given: str, messages: list[str], tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(OptionError) as caught:
        read_heads(tmp_path / given)
    assert all(m in str(caught.value) for m in messages), str(caught.value)
