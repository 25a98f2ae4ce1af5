"""With `--offline`, and with models and data of this machine also without it, nobody is asked for anything."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from tiers import rest_slow

import headlens as package
from headlens.analyses.commands import commands

from .conftest import Headlens

TEXT = ("--corpus", "hub:texts.jsonl", "--column", "text")
OF_TASK = ("--task", "sst2", "--data", "train.tsv")
TRAINED = (*OF_TASK, "--dev-data", "dev.tsv", "--steps", "2", "--no-figures")
# Every command with a model: whether that has a task, and the least options.
RUNS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "classify": (False, (*TEXT, "--no-figures")),
    "relevance": (False, (*TEXT, "--no-figures")),
    "attend": (False, ("--text", "the dog sleeps")),
    "probe": (False, ("--limit", "20", "--no-figures")),
    "ablate": (True, (*OF_TASK, "--no-figures")),
    "prune": (True, TRAINED),
    "compact": (False, (*TEXT, "--heads", "encoder.0.1")),
    "train": (True, TRAINED),
    "train-dam": (True, (*TRAINED, "--data-args", "longest=32")),
    "masks": (True, (*TRAINED, "--pattern", "star")),
    "sparsefinder": (False, (*TEXT, "--attention", "entmax15", "--task", "none", "--no-figures")),
}


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Everything that would reach for the network, which is refused."""
    tried: list[Any] = []

    def refuse(name: str) -> Callable[..., None]:
        def refused(*arguments: Any, **_: Any) -> None:
            tried.append((name, *arguments))
            raise OSError("The network was asked.")

        return refused

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse(name))
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, refuse(name))
    return tried


@pytest.fixture
def data(sentiment: tuple[str, ...]) -> None:
    """Files beside those of sentences: `datasets` reads JSON lines that are named as a data set."""
    del sentiment
    words = ["cat", "dog", "bird", "horse", "cow"]
    lines = [f'{{"text": "A {a} sees the {b}."}}\n' for a in words for b in words]
    Path("texts.jsonl").write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize("command", rest_slow(RUNS, ("classify",)))
@pytest.mark.usefixtures("data")
def test_a_model_of_this_machine_asks_nobody(
    command: str, headlens: Headlens, made: Any, tiny_bert: Path, attempts: list[Any]
) -> None:
    has_task, options = RUNS[command]
    done = headlens(command, made("local") if has_task else tiny_bert, *options, "--out", "run")
    assert done.code == 0, done.err
    assert attempts == []


@pytest.mark.parametrize("command", RUNS)
@pytest.mark.usefixtures("data")
def test_offline_asks_nobody_for_what_is_not_here(command: str, headlens: Headlens, attempts: list[Any]) -> None:
    told = headlens(command, "nobody/nothing", *RUNS[command][1], "--offline", "--out", "run")
    assert told.code == 2
    assert "nobody/nothing is not a local folder and not in the local cache, and offline mode is on." in told.err
    assert attempts == []


def test_every_command_with_the_option_is_here() -> None:
    assert set(RUNS) == {name for name, command in commands().items() if "offline" in command.options}


@pytest.mark.parametrize(
    "words",
    [
        ("models", "check", "nobody/nothing"),
        ("classify", "--corpus", "hub:nobody/nothing", "--column", "text"),
        ("classify", "nobody/nothing", "--dry-run"),
        pytest.param(("classify", "--parser", "stanza:tlh"), marks=pytest.mark.slow),
        ("ablate", "--task", "mrpc"),
        ("train", "new:bert-tiny", "--task", "mlm", "--corpus", "hub:nobody/nothing", "--column", "text"),
    ],
)
@pytest.mark.usefixtures("data")
def test_data_models_and_parsers_that_are_not_here(
    words: tuple[str, ...], headlens: Headlens, attempts: list[Any]
) -> None:
    told = headlens(*words, "--offline")
    assert attempts == []
    assert told.code == 2


@pytest.mark.usefixtures("data")
def test_a_file_can_say_so(headlens: Headlens, attempts: list[Any]) -> None:
    Path("mine.toml").write_text("offline = true\n", encoding="utf-8")
    assert headlens("classify", "nobody/nothing", "--config", "mine.toml").code == 2
    assert attempts == []


@pytest.mark.usefixtures("data")
def test_python_asks_nobody_and_is_as_before(attempts: list[Any]) -> None:
    before = dict(os.environ)
    with pytest.raises(package.HeadlensError, match="offline mode is on"):
        package.classify("nobody/nothing", offline=True)
    assert attempts == []
    assert not constants.HF_HUB_OFFLINE
    assert dict(os.environ) == before


REFUSING = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        with open("attempts.txt", "a") as file:
            print(event, arguments, file=file)
        raise OSError("The network was asked.")

sys.addaudithook(refuse)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("classify", "demo", *TEXT, "--limit", "4", "--out", "run"), 0),
        (("classify", "nobody/nothing", "--offline"), 2),
        (("classify", "--corpus", "hub:nobody/nothing", "--column", "text", "--offline"), 2),
    ],
)
@pytest.mark.usefixtures("data")
def test_a_program_asks_nobody(words: tuple[str, ...], code: int) -> None:
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text(REFUSING, encoding="utf-8")
    path = os.pathsep.join(["site", *filter(None, sys.path)])
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    program = [sys.executable, "-m", "headlens_cli", *words]
    told = subprocess.run(program, env={**variables, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert told.returncode == code, told.stderr
    assert not Path("attempts.txt").exists(), Path("attempts.txt").read_text(encoding="utf-8")
    # The guard was there, and would have told.
    probe = [sys.executable, "-c", "import socket; socket.getaddrinfo('localhost', 80)"]
    assert subprocess.run(probe, env={**variables, "PYTHONPATH": path}, capture_output=True, check=False).returncode
    assert Path("attempts.txt").exists()
