"""How the program ends: exit codes, messages, colours, pipes, signals."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from built_commands import command_line
from tiers import rest_slow

from headlens.errors import Interrupted, OptionError, SelfCheckError
from headlens_cli.app import main

Headlens = Callable[..., Any]


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make the recipe of `classify` raise."""

    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("headlens.analyses.classify.recipe.run_classify", broken)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OptionError("--limit is odd.", "Give an even one."), 2, "Error: --limit is odd.\nGive an even one.\n"),
        (SelfCheckError("a mask was ignored."), 1, "Error: a mask was ignored.\n"),
        (ZeroDivisionError("by zero"), 1, "Unexpected ZeroDivisionError: by zero\nRun again with --debug"),
        (Interrupted(signal.SIGINT), 130, "Interrupted.\n"),
        (Interrupted(signal.SIGTERM), 143, "Interrupted.\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(
    headlens: Headlens, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    fail_with(monkeypatch, error)
    done = headlens("classify")
    assert done.code == code
    assert done.err.startswith(message)
    assert "Traceback" not in done.err
    assert done.out == ""


def test_what_is_noted_on_an_error_is_said(headlens: Headlens, monkeypatch: pytest.MonkeyPatch) -> None:
    error = Interrupted(signal.SIGINT)
    error.add_note("Resume with: headlens classify --resume runs/x")
    fail_with(monkeypatch, error)
    assert headlens("classify").err == "Interrupted.\nResume with: headlens classify --resume runs/x\n"


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(headlens: Headlens, place: str) -> None:
    arguments = ["classify", "demo", "--corpus", "nowhere.conllu"]
    with pytest.raises(Exception, match="nowhere"):
        headlens(*(["--debug", *arguments] if place == "before" else [*arguments, "--debug"]))


def program(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "headlens_cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", rest_slow([("classify", "--corpus", "nowhere.txt"), ("models",)], [("models",)]))
def test_no_colours_in_a_pipe(arguments: tuple[str, ...]) -> None:
    with program(*arguments) as process:
        out, err = process.communicate()
    assert b"\x1b" not in out + err
    assert out + err


def on_a_terminal(*arguments: str, **environment: str) -> bytes:
    """What the program shows on a terminal."""
    pty = pytest.importorskip("pty", reason="needs pseudo-terminals")
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headlens_cli", *arguments],
        stdout=other,
        stderr=other,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    )
    os.close(other)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # Linux says so at the end
            break
        if not part:
            break
        shown += part
    os.close(main)
    process.wait()
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("classify", "--corpus", "nowhere.txt"), ("models",)])
def test_colours_on_a_terminal_unless_no_color(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    colour = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|9[0-7]|38)(?:;[0-9;]*)?m")
    assert b"\x1b[" in on_a_terminal(*arguments)
    assert not colour.search(on_a_terminal(*arguments, NO_COLOR="1"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("models", "--all"), ("--help",), ("classify", "--help"), ("models", "check", "--json")]
)
def test_a_reader_that_leaves_ends_the_program_quietly_as_a_signal_would(arguments: tuple[str, ...]) -> None:
    with program(*arguments) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait()
    assert (process.returncode, err) == (141, b"")


@pytest.mark.slow
@pytest.mark.parametrize("style", [(), ("--json",)])
def test_a_run_whose_reader_leaves_is_complete(tiny_bert: Path, tmp_path: Path, style: tuple[str, ...]) -> None:
    out = tmp_path / "run"
    options = ("--limit", "3", "--frequency", "none", "--no-figures", "--out", str(out), *style)
    with program("classify", str(tiny_bert), *options) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait()
    assert (process.returncode, err) == (141, b"")
    assert json.loads((out / "run.json").read_text())["status"] == "finished"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_behind_stdout_is_an_error_with_a_message(buffered: bool) -> None:
    """Also where Python finds it out on its way out only, when it writes what it has in its buffer."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headlens_cli", "models", "check", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"},
        )
    assert done.returncode == 2
    assert done.stderr.startswith(b"Error: Cannot write to standard output: No space left on device.")
    assert b"Traceback" not in done.stderr


class Broken(io.StringIO):
    """A stream that cannot be written, from some character on."""

    def __init__(self, number: int, room: int = 0) -> None:
        super().__init__()
        self.number, self.room = number, room

    def write(self, text: str) -> int:
        if self.tell() + len(text) > self.room:
            raise OSError(self.number, os.strerror(self.number))
        return super().write(text)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EBADF])
@pytest.mark.parametrize("room", [0, 10])
@pytest.mark.parametrize("arguments", [("models",), ("--help",), ("--version",), ("classify", "--limit", "0")])
def test_streams_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], room: int, number: int
) -> None:
    """Without standard output a command fails, with a message; without standard error nothing is lost but words."""
    usual = 2 if arguments[0] == "classify" else 0
    for broken in ("stdout", "stderr"):
        streams = {"stdout": io.StringIO(), "stderr": io.StringIO(), broken: Broken(number, room)}
        monkeypatch.setattr(sys, "argv", ["headlens", *arguments])
        for name, stream in streams.items():
            monkeypatch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as end:
            main()
        lost = broken == "stdout" and not usual
        assert end.value.code == (2 if lost else usual)
        if lost:
            expected = f"Error: Cannot write to standard output: {os.strerror(number)}.\nRedirect it elsewhere."
            assert streams["stderr"].getvalue().startswith(expected)


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_is_one_that_nobody_reads(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """Python has none then."""
    monkeypatch.setattr(sys, "argv", ["headlens", "models"])
    monkeypatch.setattr(sys, closed, None)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    getattr(sys, closed).close()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_anything_was_done_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    with program("classify", "--out", str(tmp_path / "run")) as process:
        while not (tmp_path / "run" / "run.json").exists():
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate()
    assert process.returncode == code
    assert (out, err) == (b"", b"Interrupted.\n")
    assert not (tmp_path / "run").exists()


# Where a signal comes, in the words of Python, before the program is run.
PLACES = {
    "imports": """
class Finder:
    def find_spec(name, *_):
        name == "headlens_cli.app" and come()
sys.meta_path.insert(0, Finder)
""",
    "figures": "folder.write_figure = come",
    "the last table": "folder.RunFolder.table = come",
    "the last save": """
write = folder.write_json
folder.write_json = lambda data, path: (write(data, path), data["status"] == "finished" and come())
""",
    "the end": "atexit.register(come)",
}


@pytest.mark.slow
@pytest.mark.posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", PLACES)
def test_a_signal_is_told_wherever_it_comes(tmp_path: Path, place: str, number: int) -> None:
    """What has told its results has ended: it does so with its own code."""
    about = f"come = lambda *_: signal.raise_signal({number})"
    code = f"import atexit, signal, sys\nfrom headlens.runs import folder\n{about}\n{PLACES[place]}\n"
    code += "from headlens_cli.__main__ import main\nmain()"
    figures = "--figures" if place == "figures" else "--no-figures"
    words = [sys.executable, "-c", code, "masks", "--length", "8", figures, "--quiet", "--out", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = (0, "") if place == "the end" else (128 + number, "Interrupted.")
    assert (done.returncode, done.stderr.partition("\n")[0]) == told, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("classify", "--no-such-option"), ("nosuch",), ("classify", "--limit", "many")])
def test_what_cannot_be_parsed(headlens: Headlens, arguments: tuple[str, ...]) -> None:
    done = headlens(*arguments)
    assert done.code == 2
    assert arguments[-1].removeprefix("--") in done.err or "--limit" in done.err


def test_a_list_that_is_given_twice_is_refused_by_every_command_that_takes_one() -> None:
    # Of an option that is given twice typer takes the last: half of what somebody wrote would be lost silently.

    commands: Any = command_line()
    asked = 0
    for name, command in commands.commands.items():
        for parameter in getattr(command, "params", ()):
            metavar = parameter.metavar or ""
            if not metavar.endswith("S") or not metavar.isupper() or parameter.multiple:
                continue
            asked += 1
            option = parameter.opts[0]
            with pytest.raises(Exception, match=f"{option} is given 2 times") as found:
                command.make_context(name, [option, "1", option, "2"])
            assert "with values separated by commas" in str(found.value)
    assert asked >= 10
