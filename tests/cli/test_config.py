"""`--config`: options from a file; a run repeated from its own record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from built_commands import command_line
from tiers import rest_slow

from headlens.analyses.ablate.options import AblateRequest
from headlens.analyses.attend.options import AttendRequest
from headlens.analyses.classify.options import ClassifyRequest
from headlens.analyses.commands import commands
from headlens.analyses.compact.options import CompactRequest
from headlens.analyses.relevance.options import RelevanceRequest
from headlens.analyses.training.options import FineTuneRequest, TrainRequest
from headlens.shared_options import arguments
from headlens.tasks.task_options import TaskData

Headlens = Callable[..., Any]
TABLES = ("heads", "positions", "syntax", "rare", "similarity")
# Of commands that write a run folder; their requests hold every option, those of `train` together.
REQUESTS = {
    "classify": ClassifyRequest(),
    "relevance": RelevanceRequest(),
    "train": TrainRequest(),
    "attend": AttendRequest(("A sentence.",)),
    "compact": CompactRequest(),
    "ablate": AblateRequest(),
}
TASK = FineTuneRequest(TaskData("sst2"))


def all_arguments(command: str) -> set[str]:
    return {name for request in [REQUESTS[command], *[TASK] * (command == "train")] for name in arguments(request)}


def recorded(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "run.json").read_text())["arguments"]
    return found


@pytest.mark.slow
def test_a_run_is_repeated_from_its_record(headlens: Headlens, tiny_bert: Path) -> None:
    options = ["--limit", 40, "--relations", "nsubj,det", "--data-args", "level=word", "--no-figures"]
    first = headlens(
        "classify",
        tiny_bert,
        *options,
        "--similarity",
        "all",
        "--thresholds",
        "rare=0.4,margin-kind=relative",
        "--out",
        "first",
    )
    assert first.code == 0, first.err
    again = headlens("classify", "--config", "first/run.json", "--out", "again")
    assert again.code == 0, again.err
    for name in TABLES:
        assert Path(f"again/{name}.csv").read_bytes() == Path(f"first/{name}.csv").read_bytes(), name
    assert recorded("again") == recorded("first")
    assert recorded("first")["relations"] == ["nsubj", "det"]


def test_the_command_line_overrules_the_file(headlens: Headlens, tiny_bert: Path) -> None:
    Path("options.toml").write_text(
        f'models = ["{tiny_bert}"]\nlimit = 30\nbatch-tokens = 500\n'
        '[classify]\nrelations = ["nsubj", "obj"]\nexclude-self = true\n[attend]\nlayer = 1\n'
    )
    done = headlens("classify", "--config", "options.toml", "--limit", 20, "--no-figures", "--out", "run")
    assert done.code == 0, done.err
    found = recorded("run")
    assert (found["limit"], found["batch_tokens"], found["exclude_self"]) == (20, 500, True)
    assert (found["relations"], found["models"]) == (["nsubj", "obj"], [str(tiny_bert)])


def test_options_before_or_after_the_file_are_the_same(headlens: Headlens, tiny_bert: Path) -> None:
    Path("options.toml").write_text("limit = 3\n")
    for place, order in enumerate(
        (["--limit", 2, "--config", "options.toml"], ["--config", "options.toml", "--limit", 2])
    ):
        assert headlens("relevance", tiny_bert, *order, "--out", place).code == 0
        assert recorded(str(place))["limit"] == 2


BAD = {
    "unknown option": ("limt = 3\n", "options.toml: classify has no option 'limt'.\nDid you mean limit?"),
    "nothing alike": ("zzz = 3\n", "classify --help-all lists all"),
    "not TOML": ("limit = = 3\n", "options.toml is not valid TOML: Invalid value (at line 1"),
    "wrong kind of value": ('limit = "many"\n', "--limit"),
    "out of range": ("limit = 0\n", "--limit"),
    "not one of the choices": ('level = "letter"\n', "--data-args level"),
    "a file within": ('config = "other.toml"\n', "no option 'config'"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=list(BAD))
def test_bad_files(headlens: Headlens, content: str, message: str) -> None:
    Path("options.toml").write_text(content)
    done = headlens("classify", "--config", "options.toml")
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere.toml", None, "nowhere.toml cannot be read: No such file"),
        ("no/voita2019.toml", None, "no/voita2019.toml cannot be read: No such file"),
        ("voita2019.v2", None, "voita2019.v2 cannot be read: No such file"),
        ("voita2019.v2.toml", None, "voita2019.v2.toml cannot be read: No such file"),
        ("latin.toml", "corpus = 'na\xefve'".encode("latin-1"), "latin.toml is not UTF-8"),
        ("run.json", b"{", "run.json is not the run.json of a headlens run"),
        ("run.json", b"[1]", "run.json is not the run.json of a headlens run"),
        ("run.json", b'{"command": "attend", "arguments": {}}', "a run of attend, not of classify"),
    ],
)
def test_files_that_are_none(headlens: Headlens, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    done = headlens("classify", "--config", name)
    assert done.code == 2
    assert f"--config: {name}"[:12] in done.err
    assert message in done.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"na\xefve", "is not UTF-8"),
        (b"{", "is not the run.json of a headlens run"),
        (b'{"command": "classify", "arguments": {"limt": 3}}', "classify has no option 'limt'"),
        (b'{"command": "classify", "arguments": {"limit": 0}}', "--limit"),
    ],
)
def test_a_run_that_cannot_be_resumed_is_told_as_such(headlens: Headlens, content: bytes, message: str) -> None:
    Path("run").mkdir()
    Path("run/run.json").write_bytes(content)
    done = headlens("classify", "--resume", "run")
    assert done.code == 2
    assert "--resume: run/run.json" in done.err
    assert "--config" not in done.err
    assert message in done.err
    assert Path("run/run.json").read_bytes() == content


@pytest.mark.parametrize("command", REQUESTS)
def test_options_of_a_command_and_arguments_of_its_runs_are_the_same(command: str) -> None:
    group: Any = command_line()
    declared = commands()[command].options
    given = [own for own in map(declared.__getitem__, all_arguments(command)) if own.option.command_line]
    own = {of.option.group.replace("-", "_") or of.name for of in given if not of.option.of_program} - {"trust"}
    options = {p.name for p in group.commands[command].params}
    assert options - {"out", "overwrite", "resume", "config", "help", "dry_run"} == own


@pytest.mark.usefixtures("small_demo")
@pytest.mark.parametrize("command", rest_slow(["classify", "relevance", "train", "ablate"], ["relevance"]))
def test_defaults_of_the_command_line_are_those_of_the_package(headlens: Headlens, command: str) -> None:
    done = headlens(command, "--limit", 3, "--out", "run", "--quiet", "--no-figures")
    assert done.code == 0, done.err
    expected = json.loads(json.dumps(arguments(REQUESTS[command])))
    assert {**recorded("run"), "limit": None, "figures": True} == expected


def test_so_they_are_for_a_task(headlens: Headlens, tiny_bert: Path) -> None:
    Path("train.tsv").write_text("sentence\tlabel\n" + "yes\t1\nno\t0\n" * 10)
    data = ("--task", "sst2", "--data", "train.tsv")
    assert headlens("train", tiny_bert, *data, "--out", "run", "--quiet", "--no-figures").code == 0
    request = FineTuneRequest(TaskData("sst2", ("train.tsv",)), model=str(tiny_bert), figures=False)
    assert recorded("run") == json.loads(json.dumps(arguments(request)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[clasify]\nlimit = 3\n", "[clasify] is not a command.\nDid you mean [classify]?"),
        ("[somewhere]\nlimit = 3\n", "[somewhere] is not a command.\nTables are named after commands: "),
        ("model = { name = 'x' }\n", "[model] is not a command."),
        ("limit = 100000000000000000000\n", "--limit is larger than 9223372036854775807."),
        ("limit = " + "9" * 5000, "is not valid TOML: Exceeds the limit"),
        ("a = " + "[" * 5000 + "]" * 5000, "is not valid TOML: nested too deeply."),
        ("a" + ".a" * 5000 + " = 1", ""),
    ],
    ids=["misspelled", "unknown", "at the top", "large", "digits", "deep", "dotted"],
)
def test_files_that_cannot_be_meant(headlens: Headlens, text: str, told: str) -> None:
    Path("mine.toml").write_text(text)
    done = headlens("classify", "demo", "--config", "mine.toml", "--out", "run")
    assert done.code == 2
    assert told in done.err
    assert not Path("run").exists()


@pytest.mark.usefixtures("small_demo")
def test_tables_of_other_commands_may_stand_beside(headlens: Headlens) -> None:
    Path("mine.toml").write_text("[classify]\nlimit = 3\nfigures = false\n[ablate]\nlimit = 2\n")
    assert headlens("classify", "demo", "--config", "mine.toml", "--out", "run").code == 0
    assert json.loads(Path("run/run.json").read_text())["arguments"]["limit"] == 3


@pytest.mark.parametrize("text", ["[" * 100_000, "{" + '"a":{' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_records_nested_too_deeply(headlens: Headlens, text: str) -> None:
    Path("run").mkdir()
    Path("run/run.json").write_text(text)
    for given in (("--config", "run/run.json"), ("--resume", "run")):
        assert headlens("classify", "demo", "--limit", "3", *given).code == 2
    assert headlens("report", "run").code == 2


def test_an_empty_name_is_no_folder(headlens: Headlens) -> None:
    for command in (
        ("classify", "demo", "--limit", "3"),
        ("report", "run"),
        ("compact", "demo", "--heads", "encoder.0.1"),
    ):
        done = headlens(*command, "--out", "")
        assert done.code == 2
        assert "the name of the folder is empty" in " ".join(done.err.split())
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("key", ["mask-layers", "mask_layers", "layers"])
def test_an_option_that_was_renamed_is_read_under_both_names(headlens: Headlens, tiny_bert: Path, key: str) -> None:
    Path("own.toml").write_text(f'mask = "star"\n{key} = "x"\n')
    done = headlens("attend", tiny_bert, "--text", "It is.", "--config", "own.toml", "--out", "run")
    assert done.code == 2
    assert "--mask-rules layers 'x' is not a range of layers" in done.err
    assert commands()["attend"].by_field({key: "0"}, "here") == {"layers": "0"}
