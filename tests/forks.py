"""Runs of headlens in forks of one process, which imports torch once; each can be killed, or left without a disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SERVER = """
import errno, importlib, json, os, pkgutil, resource, sys
os.environ["OMP_NUM_THREADS"] = "1"
import torch, headlens.analyses, headlens.corpora.sources, headlens_cli.screen, headlens_cli.command
for folder in pkgutil.iter_modules(headlens.analyses.__path__):
    if folder.ispkg:
        importlib.import_module(f"headlens.analyses.{folder.name}.recipe") if folder.name != "planning" else None
from headlens.learning.training_run import CheckpointFolder
from headlens.runs.checkpoint import Checkpoint
from headlens_cli.__main__ import main

def disturb(at, folder, problem=None, size=None, often=False, log=None, threads=1):
    torch.set_num_threads(threads)
    if often:  # so that something is kept of runs that take no second
        Checkpoint.due = property(lambda _: True)
        CheckpointFolder.due = lambda _: True
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    count = 0
    def hook(event, values):
        nonlocal count
        if event == "open":
            path, mode, flags = values
            writes = (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        elif event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir"):
            path, writes = values[0], problem is None or event in ("os.rename", "os.mkdir")
        else:
            return
        if not writes or not str(path).startswith((folder, os.path.abspath(folder))):
            return
        count += 1
        if log:
            os.write(descriptor, f"{event} {path}\\n".encode())
        if count == at and problem is None:
            os.kill(os.getpid(), 9)
        if problem is not None and count >= at:
            raise OSError(problem, os.strerror(problem))
    if log:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sys.addaudithook(hook)

print("ready", flush=True)
for line in sys.stdin:
    told = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(told["place"])
        errors = os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(errors, 2)
        os.dup2(os.open("stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        if told["disturbed"] is not None:
            disturb(**told["disturbed"])
        sys.argv = ["headlens", *told["arguments"]]
        main()
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forks:
    """Runs of headlens, one at a time, each in a process of its own and in a folder that has its stdout and stderr."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def start(self, place: Path, *arguments: object, disturbed: dict[str, Any] | None = None) -> int:
        """Begins a run and returns its process number.

        Args:
            place: the present folder of the run.
            arguments: those of the command line.
            disturbed: what becomes of it, see `disturb` in `SERVER`: `at` which write into `folder` it is killed, or
                from where on each fails with the number `problem`.
        """
        place.mkdir(exist_ok=True, parents=True)
        assert self.process.stdin is not None
        told = {"place": str(place), "arguments": [str(a) for a in arguments], "disturbed": disturbed}
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()
        return int(self._line())

    def wait(self) -> int:
        """Its exit code, negative for the signal that ended it."""
        return int(self._line())

    def run(self, place: Path, *arguments: object, disturbed: dict[str, Any] | None = None) -> int:
        self.start(place, *arguments, disturbed=disturbed)
        return self.wait()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """The process that is forked; what it says itself goes to a file."""
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    folder = tmp_path_factory.mktemp("forks")
    with (
        (folder / "stderr").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", SERVER],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
        ) as process,
    ):
        found = Forks(process)
        assert found._line() == "ready\n", (folder / "stderr").read_text()
        yield found
        process.kill()
