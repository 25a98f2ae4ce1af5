"""The states that a training keeps: two of them, told from damaged ones."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headlens.errors import OutputError, ResumeError
from headlens.learning.training_run import CheckpointFolder
from headlens.runs.processes import DeferredSignals


def kept(path: Path, tell: Callable[[str], None] = lambda _: None) -> CheckpointFolder:
    return CheckpointFolder(path / "run" / ".resume" / "training", DeferredSignals(), tell=tell)


def write(path: Path, *contents: str) -> None:
    (path / "run").mkdir(exist_ok=True)
    for content in contents:
        with kept(path).saving() as folder:
            (folder / "state.json").write_text(content)
            (folder / "weights.safetensors").write_bytes(content.encode() * 100)


def names(path: Path) -> list[str]:
    return sorted(p.name for p in (path / "run" / ".resume" / "training").iterdir())


def test_the_last_two_states_are_kept(tmp_path: Path) -> None:
    assert kept(tmp_path).found is None
    write(tmp_path, "a", "b", "c")
    assert names(tmp_path) == ["state-000000001", "state-000000002"]
    found = kept(tmp_path).found
    assert found is not None
    assert (found / "state.json").read_text() == "c"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    path.write_bytes(b"B" + path.read_bytes()[1:])


@pytest.mark.parametrize("damage", [cut, empty, flip, Path.unlink])
@pytest.mark.parametrize("file", ["weights.safetensors", "state.json", "sha256.json"])
def test_a_damaged_state_is_told_and_the_one_before_taken(
    tmp_path: Path, damage: Callable[[Path], None], file: str
) -> None:
    write(tmp_path, "a", "b", "c")
    told: list[str] = []
    damage(tmp_path / "run/.resume/training/state-000000002" / file)
    found = kept(tmp_path, told.append).found
    assert found is not None
    assert (found / "state.json").read_text() == "b"
    assert told == [
        f"{found.with_name('state-000000002')} is damaged; training continues from {found.name}, the state before."
    ]
    # What is learned anew takes a number of its own.
    write(tmp_path, "d")
    assert (tmp_path / "run/.resume/training/state-000000003/state.json").read_text() == "d"
    damage(found.with_name("state-000000003") / file)
    with pytest.raises(ResumeError, match=r"(?s)state-000000003 cannot be resumed from.*--overwrite"):
        kept(tmp_path).found  # noqa: B018 - reads the disk


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_state_that_cannot_be_written_leaves_the_room_it_took(tmp_path: Path, number: int) -> None:
    write(tmp_path, "a", "b")

    def save() -> None:
        with kept(tmp_path).saving() as folder:
            (folder / "weights.safetensors").write_bytes(b"half")
            raise OSError(number, os.strerror(number))

    with pytest.raises(OutputError, match=os.strerror(number)):
        save()
    assert names(tmp_path) == ["state-000000000", "state-000000001"]
    assert kept(tmp_path).found == tmp_path / "run/.resume/training/state-000000001"


def test_a_run_folder_that_was_removed_is_not_made_anew(tmp_path: Path) -> None:
    write(tmp_path, "a")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(OutputError, match="No such file or directory"), kept(tmp_path).saving():
        pass
    assert not (tmp_path / "run").exists()
