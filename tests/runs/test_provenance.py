import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headlens.runs import run_record


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    git(tmp_path, "init", "-q")
    (tmp_path / "module.py").write_text("x = 1\n")
    git(tmp_path, "add", "module.py")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_versions_are_those_of_the_installed_packages() -> None:
    found = run_record.versions()
    assert found["numpy"] == np.__version__
    assert found["python"].startswith("3.")


def test_the_commit_of_a_checkout(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert run_record.git_commit(checkout / "module.py") == commit
    (checkout / "module.py").write_text("x = 2\n")
    assert run_record.git_commit(checkout / "module.py") == f"{commit}-dirty"


def test_a_file_that_merely_lies_in_a_repository_has_no_commit(checkout: Path) -> None:
    (checkout / "installed.py").write_text("")
    assert run_record.git_commit(checkout / "installed.py") is None


def test_no_repository_and_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_record.git_commit(tmp_path / "x.py") is None
    monkeypatch.setattr(run_record.shutil, "which", lambda _: None)
    assert run_record.git_commit() is None


MEASURE = """
from headlens.runs.run_record import command_line, peak_memory
before = peak_memory()
block = b"x" * 400_000_000
print(None if before is None else peak_memory() - before)
"""


@pytest.mark.slow
def test_peak_memory_grows_with_what_is_used() -> None:
    # in a process of its own: the peak of this one may lie far above what it uses now
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True, env=environment)
    if done.stdout.strip() == "None":
        pytest.skip("this system does not tell")
    assert 300_000_000 < int(done.stdout) < 600_000_000


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        (["/usr/bin/headlens", "classify", "my model", "--limit", "3"], "headlens classify 'my model' --limit 3"),
        (["C:/x/headlens.exe", "models"], "headlens models"),
        (["/home/me/study.py", "classify"], None),
        ([""], None),
    ],
)
def test_what_was_typed(arguments: list[str], typed: str | None) -> None:
    assert run_record.command_line(arguments) == typed


@pytest.mark.slow
def test_what_was_typed_after_python_m(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "headlens_cli", "masks", "--pattern", "star", "--no-figures", "--out", "my run"]
    subprocess.run(words, check=True, capture_output=True, cwd=tmp_path)
    record = json.loads((tmp_path / "my run" / "run.json").read_text())
    assert record["command_line"] == "headlens masks --pattern star --no-figures --out 'my run'"
