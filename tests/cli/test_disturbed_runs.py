"""Every command that is killed or whose disk fills up: afterwards it ends with the files of an undisturbed run.

`HEADLENS_KILLS=200 pytest -m slow tests/cli/test_disturbed_runs.py` looks more closely.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from every_command import CASES
from forks import Forks

from headlens.runs.folder import LOCK_NAME, RunFolder

KILLS = int(os.environ.get("HEADLENS_KILLS", "20"))
AGAIN = 5  # kills of one run, which is resumed in between
# What a run tells of its time and place, and columns of measured seconds.
TIMES = {"started", "ended", "resumed", "wall_time_s", "peak_memory_bytes", "directory", "git_commit"}
SECONDS = ["seconds_per_forward", "ci_low", "ci_high", "speedup", "speedup_low", "speedup_high", "tokens_per_second"]
pytestmark = pytest.mark.slow
at_length = pytest.mark.skipif("HEADLENS_KILLS" not in os.environ, reason="looks closely, with HEADLENS_KILLS=200")


@pytest.fixture(scope="module")
def undisturbed(
    forks: Forks, command: Callable[[str], list[str]], tmp_path_factory: Any
) -> Callable[[str], tuple[dict[str, Any], float, list[str]]]:
    """The files of a run that nobody disturbs, its seconds, and what it wrote where."""
    done: dict[str, Any] = {}

    def of(case: str) -> tuple[dict[str, Any], float, list[str]]:
        if case not in done:
            place = tmp_path_factory.mktemp("undisturbed")
            log = {"at": 0, "folder": "run", "often": True, "log": str(place / "writes")}
            begun = time.monotonic()
            assert forks.run(place, *command(case), disturbed=log) == 0, (place / "stderr").read_text()
            seconds = time.monotonic() - begun
            done[case] = (files_of(place), seconds, (place / "writes").read_text().splitlines())
        return done[case]

    return of


def files_of(place: Path) -> dict[str, Any]:
    """The files of a run by name: bytes, or what does not depend on time and place."""
    found: dict[str, Any] = {}
    # A lock that nobody holds may stay where a run was killed as it ended.
    for path in sorted(p for p in (place / "run").rglob("*") if p.is_file() and p.name != LOCK_NAME):
        name = path.relative_to(place / "run").as_posix()
        if path.name == "run.json":
            record = {k: v for k, v in json.loads(path.read_text()).items() if k not in TIMES}
            # A run that goes on writes in another order, and a page is made anew with --overwrite.
            again = {} if record["command"] != "report" else {"arguments": None, "command_line": None}
            found[name] = record | again | {"files": sorted(record["files"])}
        elif path.name == "compact.csv":
            found[name] = pd.read_csv(path).drop(columns=SECONDS).to_csv()
        else:
            found[name] = path.read_bytes()
    return found


def assert_same(place: Path, expected: dict[str, Any]) -> None:
    found = files_of(place)
    assert found.keys() == expected.keys()
    differing = {name: found[name] for name in found if found[name] != expected[name]}
    assert {k: v for k, v in expected.items() if k in differing} == differing


def brought_to_its_end(forks: Forks, command: list[str], place: Path, disturbed: dict[str, Any] | None = None) -> int:
    """Does what the messages advise: resume; or, where there is nothing to resume, start once more."""
    record = place / "run" / "run.json"
    status = json.loads(record.read_text())["status"] if record.exists() else "none"
    if status == "finished":
        if (place / "run" / RunFolder.KEPT).exists():
            # Killed as it removed what it had kept: --resume does that, and says that nothing else is left.
            assert forks.run(place, command[0], "--resume", "run", "--quiet") == 2
        return 0
    if command[0] == "report":
        words = [*command, "--overwrite"]
    else:
        words = command if status == "none" else [command[0], "--resume", "run", "--quiet"]
    return forks.run(place, *words, disturbed=disturbed)


def steps(case: str, count: int) -> list[Any]:
    return [pytest.param(case, (n + 0.5) / count, id=f"{case}-{n + 1} of {count}") for n in range(count)]


def rounds(kills: int) -> list[Any]:
    return [step for case in CASES for step in steps(case, max(1, round(kills / len(CASES))))]


@pytest.mark.parametrize(("case", "part"), rounds(KILLS // AGAIN))
def test_killed_at_a_write_again_and_again(
    forks: Forks, command: Any, undisturbed: Any, tmp_path: Path, record_property: Any, case: str, part: float
) -> None:
    expected, _, writes = undisturbed(case)
    kills, draw = 0, random.Random(f"{case} {part}")
    for time_again in range(AGAIN):
        at = 1 + int(part * len(writes)) if not time_again else draw.randint(1, max(1, len(writes) // 2))
        disturbed = {"at": at, "folder": "run", "often": True}
        code = brought_to_its_end(forks, command(case), tmp_path, disturbed)
        assert code in (-9, 0), (tmp_path / "stderr").read_text()
        kills += code == -9
        for table in tmp_path.glob("run/[!.]*.csv"):  # what begins with a dot is not whole yet, and says so
            pd.read_csv(table)
    record_property("kills", kills)
    assert kills
    assert brought_to_its_end(forks, command(case), tmp_path) == 0, (tmp_path / "stderr").read_text()
    assert_same(tmp_path, expected)


@at_length
@pytest.mark.parametrize(("case", "part"), rounds(KILLS // 10))
@pytest.mark.posix
@pytest.mark.parametrize("number", [getattr(signal, "SIGKILL", 9), signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_time(
    forks: Forks, command: Any, undisturbed: Any, tmp_path: Path, case: str, part: float, number: int
) -> None:
    expected, seconds, _ = undisturbed(case)
    child = forks.start(tmp_path, *command(case), disturbed={"at": 0, "folder": "run", "often": True})
    while not (tmp_path / "run").exists():  # before, not even its handlers may be there
        time.sleep(0.005)
    time.sleep(seconds * part * random.random())
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)
    code = forks.wait()
    assert code in ((-9, 0) if number == signal.SIGKILL else (128 + number, 0)), (tmp_path / "stderr").read_text()
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    assert brought_to_its_end(forks, command(case), tmp_path) == 0, (tmp_path / "stderr").read_text()
    assert_same(tmp_path, expected)


@at_length
@pytest.mark.parametrize(("case", "part"), rounds(KILLS // 4))
def test_the_disk_fills_up(
    forks: Forks, command: Any, undisturbed: Any, tmp_path: Path, case: str, part: float
) -> None:
    """From some write on each fails: exit code 2, a message, no half file; and when there is room, the same result."""
    expected, _, writes = undisturbed(case)
    number = random.choice([errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
    at = 1 + int(part * sum(line.split()[0] in ("open", "os.rename", "os.mkdir") for line in writes))
    disturbed = {"at": at, "folder": "run", "often": True, "problem": number}
    code = forks.run(tmp_path, *command(case), disturbed=disturbed)
    message = (tmp_path / "stderr").read_text()
    assert code == 2, message
    assert "Error: Cannot write run" in message, message
    assert os.strerror(number) in message, message
    assert brought_to_its_end(forks, command(case), tmp_path) == 0, (tmp_path / "stderr").read_text()
    assert_same(tmp_path, expected)


@at_length
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [100, 3_000, 20_000, 100_000])
def test_files_cannot_grow(forks: Forks, command: Any, undisturbed: Any, tmp_path: Path, case: str, size: int) -> None:
    """What libraries write, safetensors among them, fails in their own words."""
    expected = undisturbed(case)[0]
    code = forks.run(tmp_path, *command(case), disturbed={"at": 0, "folder": "run", "often": True, "size": size})
    message = (tmp_path / "stderr").read_text()
    if code:
        assert code == 2, message
        assert "Error: Cannot write" in message, message
        assert "File too large" in message, message
    # Not every command writes a file that large.
    assert code or size > max(len(content) for content in expected.values() if isinstance(content, bytes))
    assert brought_to_its_end(forks, command(case), tmp_path) == 0, (tmp_path / "stderr").read_text()
    assert_same(tmp_path, expected)


@at_length
@pytest.mark.parametrize("case", ["classify", "ablate", "train", "masks --task", "sparsefinder"])
def test_the_program_itself_is_killed(
    forks: Forks, command: Any, undisturbed: Any, tmp_path: Path, record_property: Any, case: str
) -> None:
    """No fork and nothing replaced: `python -m headlens_cli`, again and again until it has come to its end."""
    expected, seconds, _ = undisturbed(case)
    kills = 0
    while kills < max(1, KILLS // 20):
        words = command(case)
        if (tmp_path / "run/run.json").exists():
            words = [case.split(maxsplit=1)[0], "--resume", "run", "--quiet"]
        with (tmp_path / "stderr").open("w") as errors:
            program = [sys.executable, "-m", "headlens_cli", *words]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            with subprocess.Popen(program, cwd=tmp_path, stderr=errors, stdout=errors, env=environment) as process:
                lock = tmp_path / "run" / LOCK_NAME
                before = lock.stat().st_mtime_ns if lock.exists() else 0
                while process.poll() is None and (not lock.exists() or lock.stat().st_mtime_ns == before):
                    time.sleep(0.01)
                time.sleep(random.uniform(0, seconds))
                process.kill()
        assert process.returncode in (-9, 0), (tmp_path / "stderr").read_text()
        kills += process.returncode == -9
        record = tmp_path / "run/run.json"
        if record.exists() and json.loads(record.read_text())["status"] == "finished":
            assert_same(tmp_path, expected)
            shutil.rmtree(tmp_path / "run")
    record_property("kills", kills)
    assert brought_to_its_end(forks, command(case), tmp_path) == 0, (tmp_path / "stderr").read_text()
    assert_same(tmp_path, expected)


@at_length
@pytest.mark.parametrize("case", ["classify", "relevance", "ablate", "ablate --prune", "sparsefinder"])
@pytest.mark.parametrize("way", ["batches", "threads"])
def test_batches_and_threads_change_nothing_but_rounding(
    forks: Forks, command: Any, tmp_path: Path, case: str, way: str
) -> None:
    more, threads = (("--batch-tokens", 1000), 1) if way == "batches" else ((), 2)
    other = {"at": 0, "folder": "run", "threads": threads}
    assert forks.run(tmp_path, *command(case), *more, disturbed=other) == 0, (tmp_path / "stderr").read_text()
    assert forks.run(tmp_path / "one", *command(case)) == 0
    tables = sorted(tmp_path.glob("run/*.csv"))
    assert tables
    for path in tables:
        found, expected = pd.read_csv(path), pd.read_csv(tmp_path / "one/run" / path.name)
        pd.testing.assert_frame_equal(found, expected, rtol=1e-3, atol=1e-5, check_exact=False)


def torchrun(place: Path, *arguments: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "headlens_cli", *arguments]
    with (place / "stderr").open("w") as errors:
        return subprocess.Popen(
            words, cwd=place, stdout=errors, stderr=errors, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )


def process_of_rank(launcher: int, rank: int) -> int | None:
    """The number of one of the processes that torchrun started; None while there is none."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
            if f"\0RANK={rank}\0".encode() in Path(f"/proc/{child}/environ").read_bytes():
                return int(child)
    return None


@at_length
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux, to find the processes")
@pytest.mark.parametrize("case", ["classify", "train"])
def test_one_of_two_processes_is_killed(command: Any, tmp_path: Path, case: str) -> None:
    """torchrun ends the other one; two processes go on with the run and write the files of two undisturbed ones."""
    for name in ("whole", "0", "1"):
        (tmp_path / name).mkdir()
    assert torchrun(tmp_path / "whole", *command(case)).wait() == 0, (tmp_path / "whole/stderr").read_text()
    for rank in (0, 1):
        place = tmp_path / str(rank)
        launcher = torchrun(place, *command(case))
        while not (place / "run/run.json").exists() and launcher.poll() is None:
            time.sleep(0.005)
        time.sleep(random.uniform(0, 1))
        child = process_of_rank(launcher.pid, rank)
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        launcher.wait()
        record = place / "run/run.json"
        # A run that ends before there is anything to go on with leaves nothing.
        status = json.loads(record.read_text())["status"] if record.exists() else "none"
        words = command(case) if status == "none" else [case, "--resume", "run", "--quiet"]
        assert status == "finished" or torchrun(place, *words).wait() == 0, (place / "stderr").read_text()
        assert_same(place, files_of(tmp_path / "whole"))
