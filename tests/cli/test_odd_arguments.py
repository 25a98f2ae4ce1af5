"""Every option of every command with values that nobody means: exit code 2 with its name, and nothing is written."""

from __future__ import annotations

import socketserver
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from built_commands import command_line
from tiers import rest_slow

from headlens.errors import InputError, OptionError
from headlens.option_values import check_text
from headlens_cli import command

ODD = [
    "",
    "\0",
    "x" * 5000,
    "-1",
    "nan",
    "1e400",
    "9" * 5000,
    "/",
    " ",
    "-",
    ".",
    "..",
    "~",
    "~nobody/x",
    "a\0b",
    "folder",
    "file",
    "file/x",
    "inf",
    "0",
    ",",
    "=",
    "a=",
    "{",
    "é",
]
FAST = ("", "\0", "-1", "nan", "9" * 5000, "~nobody/x", "file/x", "{")
NEEDED = {"compact": ["--heads", "encoder.0.1"], "reproduce": ["voita"]}
GROUP: Any = command_line()


def options() -> Iterator[tuple[str, Any]]:
    """Every option once, by its name and help, with a command that has it."""
    seen = set()
    for name, own in GROUP.commands.items():
        for option in getattr(own, "params", ()):
            key = option.name, str(getattr(option, "help", ""))
            if name in command.COMMANDS and key not in seen and not getattr(option, "is_flag", False):
                seen.add(key)
                yield name, option


OPTIONS = list(options())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and requests that are made and not run."""
    for name in ("home", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("text\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "show_plan", lambda *_: None)
    # An address that is accepted, such as port 0, would be served for ever.
    monkeypatch.setattr(socketserver.BaseServer, "serve_forever", lambda *_, **__: None)
    return tmp_path


def outcome(name: str, option: Any, value: str) -> str:
    """What became of a command with an option of this value: its message, empty where it would run."""
    is_argument = option.param_type_name == "argument"
    given = [value] if is_argument else [f"{option.opts[0]}={value}"]
    plans = ["--dry-run"] if any(own.name == "dry_run" for own in GROUP.commands[name].params) else []
    needed = [] if is_argument else NEEDED.get(name, [])
    try:
        GROUP.main([name, *needed, *plans, *(["--"] if is_argument else []), *given], standalone_mode=False)
    except InputError as error:
        return str(error)
    except Exception as error:
        if getattr(error, "exit_code", 1) != 2:  # Typer refuses with 2 and the option, too; all else is unexpected
            raise
        return str(error)
    return ""


def check(value: str, place: Path) -> int:
    """How many options refuse a value."""
    before, refused = sorted(place.rglob("*")), 0
    for name, option in OPTIONS:
        message = outcome(name, option, value)
        refused += bool(message)
        assert len(message) < 6000, (name, option.opts)
    assert sorted(place.rglob("*")) == before
    return refused


@pytest.mark.parametrize("value", rest_slow(ODD, ("\0", "nan", "~nobody/x")), ids=lambda value: repr(value[:9]))
def test_odd_values_of_every_option(place: Path, value: str) -> None:
    assert check(value, place) > len(OPTIONS) / 10


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--out", "a\0b", "--out holds a NUL character."),
        ("--out", " ", "--out is blank."),
        ("--out", "x" * 5000, "--out is a name of 5,000 bytes."),
        ("--from", "x/" * 3000, "--from is a name of 6,000 bytes."),
        ("--text", "\ud800", "--text contains half a character (a lone surrogate)."),
    ],
)
def test_texts_that_no_option_means(flag: str, value: str, words: str) -> None:
    with pytest.raises(OptionError) as refused:
        check_text(flag, value, is_place=True)
    assert refused.value.message == words
    assert refused.value.advice


def test_long_texts_are_no_names() -> None:
    check_text("--text", "word " * 5000, is_place=False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("limit = 2.7", "--limit cannot be 2.7.\nGive a whole number."),
        ("limit = true", "--limit cannot be True."),
        ("seed = 1979-05-27", "--seed cannot be 1979-05-27."),
        ("max-unknown = false", "--model-args max-unknown cannot be False.\nGive a number."),
        ("corpus = true", "--corpus cannot be True."),
        ("figures = 1", "--figures cannot be 1.\nGive true or false."),
        ("models = [[1]]", "--models cannot be [1]."),
        ("max-unknown = nan", "--model-args max-unknown nan is not a finite number."),
    ],
)
def test_values_of_a_file_keep_their_types(place: Path, line: str, words: str) -> None:
    (place / "own.toml").write_text(f"{line}\n")
    with pytest.raises(OptionError) as refused:
        GROUP.main(["classify", "--config", "own.toml", "--dry-run"], standalone_mode=False)
    assert str(refused.value).startswith(f"--config: own.toml: {words}")
