"""What other packages register: known by name at once, loaded when it is asked for, refused in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headlens import extensions
from headlens.errors import ExtensionError, Interrupted, OptionError
from headlens.extensions import Registry, extension_errors, loaded_extensions, with_extension_errors

GROUP = "headlens.strategies"


def failing(error: BaseException) -> Callable[[], object]:
    def load() -> object:
        raise error

    return load


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry[str]]:
    """A registry of words, to which a package adds more."""

    def make(**loads: Callable[[], object]) -> Registry[str]:
        dist = SimpleNamespace(name="other", version="1.2")
        points = [
            SimpleNamespace(name=n, value=f"other:{n}", group=GROUP, dist=dist, load=own) for n, own in loads.items()
        ]
        monkeypatch.setattr(extensions, "entry_points", lambda group: points if group == GROUP else [])
        monkeypatch.setattr(extensions, "_loaded", {})
        return Registry(GROUP, {"a": "own", "b": "own too"}, str, "word")

    return make


def test_names_are_known_and_nothing_is_loaded_before_it_is_asked_for(registered: Callable[..., Registry[str]]) -> None:
    words = registered(c=lambda: "theirs", broken=failing(RuntimeError("no")))
    assert list(words) == ["a", "b", "c", "broken"]
    assert words["a"] == "own"
    assert loaded_extensions() == []
    assert words["c"] == "theirs"
    assert loaded_extensions() == [
        {"group": GROUP, "name": "c", "value": "other:c", "package": "other", "version": "1.2"}
    ]
    assert "d" not in words


@pytest.mark.parametrize(
    "error",
    [
        ImportError("no"),
        SystemExit(3),
        KeyboardInterrupt(),
        AttributeError("nothing"),
        SyntaxError("what"),
        MemoryError(),
    ],
    ids=repr,
)
def test_whatever_goes_wrong_is_told_with_the_package(
    registered: Callable[..., Registry[str]], error: BaseException
) -> None:
    with pytest.raises(
        ExtensionError, match=rf"'c' of {GROUP} \(other:c\) cannot be loaded: {type(error).__name__}"
    ) as told:
        registered(c=failing(error))["c"]
    assert "pip uninstall other" in told.value.advice


def test_the_users_own_interruption_is_none_of_the_package(registered: Callable[..., Registry[str]]) -> None:
    with pytest.raises(Interrupted):
        registered(c=failing(Interrupted(signal.SIGINT)))["c"]


def test_a_name_of_headlens_is_refused(registered: Callable[..., Registry[str]]) -> None:
    words = registered(b=lambda: "theirs")
    assert list(words) == ["a", "b"]
    with pytest.raises(
        ExtensionError, match=r"'b' of headlens\.strategies of the package other takes a name of headlens"
    ):
        words["b"]


def test_something_else_is_refused(registered: Callable[..., Registry[str]]) -> None:
    with pytest.raises(ExtensionError, match=r"names no word, but something of the type int\.\nLet it name a builtins"):
        registered(c=lambda: 3)["c"]


def test_what_it_prints_does_not_stand_among_results(
    registered: Callable[..., Registry[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    def load() -> str:
        print("hello")
        return "theirs"

    assert registered(c=load)["c"] == "theirs"
    assert capsys.readouterr() == ("", "hello\n")


def test_what_takes_long_is_named(
    registered: Callable[..., Registry[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extensions, "_PATIENCE", 0.0)

    def load() -> str:
        end = time.monotonic() + 60
        while "Waiting" not in (seen := capsys.readouterr().err) and time.monotonic() < end:
            time.sleep(0.01)
        return seen

    assert registered(c=load)["c"] == f"Waiting for the entry point 'c' of {GROUP} of the package other to load …\n"


@dataclass(frozen=True)
class Shown:
    """What a package names: functions, one of which yields, and others at their defaults."""

    figures: Callable[[int], Iterator[int]]
    heads: Callable[[int], int]
    findings: Callable[[int], int] = abs
    title: str = "shown"


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("column"), ZeroDivisionError()], ids=repr)
def test_what_fails_when_it_is_called_is_told_with_its_name(error: Exception) -> None:
    def figures(run: int) -> Iterator[int]:
        yield run
        raise error

    def heads(run: int) -> int:
        if run:
            raise error
        return 3

    shown = with_extension_errors(Shown(figures, heads), "The report mine")
    assert (shown.heads(0), shown.findings(-2), shown.title, shown.findings) == (3, 2, "shown", abs)
    with pytest.raises(ExtensionError, match=rf"^The report mine fails in its heads: {type(error).__name__}"):
        shown.heads(1)
    drawn = shown.figures(7)
    assert next(drawn) == 7
    with pytest.raises(ExtensionError, match=rf"^The report mine fails in its figures: {type(error).__name__}"):
        next(drawn)


@pytest.mark.parametrize("error", [OptionError("no"), OSError(28, "full"), MemoryError(), Interrupted(signal.SIGINT)])
def test_what_is_no_fault_of_the_package_stays_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)), extension_errors("The strategy mine", "choices"):
        raise error


@pytest.mark.slow
@pytest.mark.parametrize("group", ["headlens.strategies", "headlens.reports", "headlens.metrics"])
def test_a_broken_package_ends_nothing_that_does_not_need_it(tmp_path: Path, group: str) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nlast = nothing_here:ENTRY\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    def run(*words: str) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "headlens_cli", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
        )

    for words in (["--version"], ["--help"], ["masks", "--length", "8", "--no-figures", "--out", "run"]):
        done = run(*words)
        assert (done.returncode, done.stderr) == (0, ""), words
    done = {
        "headlens.strategies": lambda: run("ablate", "--prune", "1", "--strategies", "last"),
        "headlens.reports": lambda: run("report", "run"),
        "headlens.metrics": lambda: run("classify", "--limit", "2"),
    }[group]()
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or "pip uninstall broken" in done.stderr
