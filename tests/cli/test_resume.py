"""Runs that are interrupted, killed, shared: `--resume` and torchrun give the CSVs of an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from every_command import CASES
from forks import Forks

Headlens = Callable[..., Any]
TABLES = ("heads", "positions", "syntax", "rare", "similarity")
# `HEADLENS_KILLS=200 pytest tests/cli/test_resume.py` looks more closely.
KILLS = int(os.environ.get("HEADLENS_KILLS", "20"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled treebank, several times: long enough to be interrupted."""
    from headlens.corpora.conllu import write_conllu
    from headlens.corpora.sources import demo_corpus

    path = tmp_path_factory.mktemp("corpus") / "long.conllu"
    write_conllu([e.source for _ in range(3) for e in demo_corpus()], path)
    return path


@pytest.fixture(scope="module")
def options(corpus: Path, tiny_bert: Path) -> list[object]:
    return ["classify", tiny_bert, "--corpus", corpus, "--batch-tokens", 300, "--quiet", "--no-figures"]


@pytest.fixture(scope="module")
def expected(forks: Forks, options: list[object], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that nobody disturbs, and how long it takes."""
    place = tmp_path_factory.mktemp("undisturbed")
    begun = time.monotonic()
    assert forks.run(place, *options, "--out", "run") == 0, (place / "stderr").read_text()
    return place / "run", time.monotonic() - begun


def assert_same_tables(found: Path, expected: Path) -> None:
    for name in TABLES:
        assert (found / f"{name}.csv").read_bytes() == (expected / f"{name}.csv").read_bytes(), name


def kill(child: int, number: int) -> None:
    """Send a signal, if it is not too late."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob(".*")]


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(KILLS))
def test_a_killed_run_is_resumed(
    forks: Forks, options: list[object], expected: tuple[Path, float], tmp_path: Path, attempt: int
) -> None:
    undisturbed, seconds = expected
    folder = tmp_path / "run"
    child = forks.start(tmp_path, *options, "--out", folder)
    # spread evenly over the run, at random within each part
    time.sleep(seconds * (attempt + random.random()) / KILLS)
    kill(child, signal.SIGKILL)
    code = forks.wait()
    assert code in (-signal.SIGKILL, 0)
    for table in folder.glob("[!.]*.csv"):  # what begins with a dot is not whole yet, and says so
        pd.read_csv(table)  # whole, or not there
    if (folder / "run.json").exists() and json.loads((folder / "run.json").read_text())["status"] == "finished":
        assert forks.run(tmp_path, "classify", "--resume", folder) == 2
    elif (folder / "run.json").exists():
        assert forks.run(tmp_path, "classify", "--resume", folder, "--quiet") == 0
    else:  # before there was anything to resume
        assert forks.run(tmp_path, *options, "--out", folder) == 0
    assert_same_tables(folder, undisturbed)
    assert leftovers(folder) == []


@pytest.mark.slow
def test_a_run_killed_again_and_again_comes_to_its_end(
    forks: Forks, options: list[object], expected: tuple[Path, float], tmp_path: Path
) -> None:
    undisturbed, seconds = expected
    folder = tmp_path / "run"
    child = forks.start(tmp_path, *options, "--figures", "--out", folder)
    record = folder / "run.json"
    while not record.exists():  # before, there is nothing to go on with
        time.sleep(0.005)
    time.sleep(seconds / 3)
    for _ in range(8):
        kill(child, signal.SIGKILL)
        # Killed on its way out, a run that has finished has come to its end as well.
        if forks.wait() == 0 or json.loads(record.read_text())["status"] == "finished":
            break
        child = forks.start(tmp_path, "classify", "--resume", folder, "--quiet")
        time.sleep(seconds * random.uniform(0.1, 0.4))
    else:
        assert forks.wait() == 0
    assert_same_tables(folder, undisturbed)
    found = json.loads(record.read_text())
    assert found["status"] == "finished"
    assert len(found["resumed"]) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_run_that_can_be_resumed(
    forks: Forks, options: list[object], expected: tuple[Path, float], tmp_path: Path, number: int, code: int
) -> None:
    undisturbed, _ = expected
    folder = tmp_path / "run"
    child = forks.start(tmp_path, *options, "--out", folder)
    kept = folder / ".resume"
    while not list(kept.glob("*.npz")):
        time.sleep(0.005)
    os.kill(child, number)
    assert forks.wait() == code
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    assert not (folder / ".headlens.lock").exists()
    assert not (folder / "heads.csv").exists(), "it must have been interrupted half-way"
    refused = forks.run(tmp_path, *options, "--out", folder)
    assert refused == 2
    assert forks.run(tmp_path, "classify", "--resume", folder, "--quiet") == 0
    assert_same_tables(folder, undisturbed)
    assert leftovers(folder) == []


@pytest.mark.slow
def test_two_runs_into_one_folder_refuse_each_other(
    forks: Forks, options: list[object], headlens: Headlens, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    child = forks.start(tmp_path, *options, "--out", folder)
    while not (folder / "run.json").exists():
        time.sleep(0.005)
    os.kill(child, signal.SIGSTOP)
    try:
        for more in (["--out", folder], ["--out", folder, "--overwrite"]):
            done = headlens(*options, *more)
            assert done.code == 2
            assert f"is being written to by another headlens process ({child})" in done.err
        done = headlens("classify", "--resume", folder)
        assert done.code == 2
        assert "being written" in done.err
    finally:
        os.kill(child, signal.SIGCONT)
    assert forks.wait() == 0


@pytest.mark.slow
def test_what_cannot_be_resumed(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("classify", tiny_bert, "--limit", 20, "--out", "done", "--quiet").code == 0
    assert headlens("attend", tiny_bert, "--out", "other", "--quiet").code == 0
    for arguments, message in (
        (["--resume", "nowhere"], "nowhere holds no run"),
        (["--resume", "done"], "there is nothing left to do"),
        (["--resume", "other"], "--resume: other/run.json records a run of attend"),
        (["--resume", "done", "--out", "elsewhere"], "Leave --out and --overwrite out"),
        (["--resume", "done", "--overwrite"], "Leave --out and --overwrite out"),
    ):
        refused = headlens("classify", *arguments)
        assert refused.code == 2, arguments
        assert message in refused.err
    assert not Path("nowhere").exists()


@pytest.mark.slow
def test_a_resumed_run_takes_no_other_options(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("classify", tiny_bert, "--limit", 20, "--out", "run", "--quiet").code == 0
    record = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps(record | {"status": "interrupted"}))
    refused = headlens("classify", "--resume", "run", "--limit", 10)
    assert refused.code == 2
    assert "limit was 20 and is 10" in refused.err


def test_an_error_in_what_is_read_does_not_cost_the_earlier_run(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("attend", tiny_bert, "A sentence.", "--out", "run", "--quiet").code == 0
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    Path("bad.tsv").write_text("sentence\tlabel\nGood.\n")
    for command in (
        ("classify", tiny_bert, "--corpus", "absent.conllu"),
        ("classify", "absent-model"),
        ("ablate", tiny_bert, "--task", "sst2", "--data", "bad.tsv"),
        ("prune", tiny_bert, "--task", "sst2", "--data", "bad.tsv", "--dev-data", "bad.tsv"),
        ("train", "new:bert-tiny", "--corpus", "bad.tsv", "--validation", "absent.txt"),
    ):
        refused = headlens(*command, "--out", "run", "--overwrite", "--quiet")
        assert refused.code == 2, command
        assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before, command


# --- several processes


def torchrun(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "headlens_cli"]
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 257], ids=["an empty shard", "uneven shards"])
def test_two_processes_give_the_tables_of_one(headlens: Headlens, tiny_bert: Path, tmp_path: Path, limit: int) -> None:
    options = ["classify", tiny_bert, "--limit", limit, "--batch-tokens", 500]
    one = headlens(*options, "--out", tmp_path / "one", "--json")
    assert one.code == 0, one.err
    two = torchrun(tmp_path, *options, "--out", "two", "--json")
    assert two.returncode == 0, two.stderr
    assert json.loads(two.stdout)["corpus"] == json.loads(one.out)["corpus"], "only the first process prints"
    for name in TABLES:
        if not (tmp_path / f"one/{name}.csv").exists():
            assert not (tmp_path / f"two/{name}.csv").exists()
            continue
        first, second = (pd.read_csv(tmp_path / f"{n}/{name}.csv") for n in ("one", "two"))
        assert list(first) == list(second)
        for column in first:
            if first[column].dtype == float:
                np.testing.assert_allclose(second[column], first[column], rtol=0, atol=1e-6, err_msg=f"{name}.{column}")
            else:
                assert second[column].astype(str).tolist() == first[column].astype(str).tolist(), f"{name}.{column}"
    record = json.loads((tmp_path / "two/run.json").read_text())
    assert (record["processes"], record["models"][0]["encoding"]["sentences"]) == (2, limit)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("classify", "masks", "report", "train mlm")])
def test_every_command_runs_in_two_processes_or_says_that_it_does_not(
    command: Callable[[str], list[str]], tmp_path: Path, case: str
) -> None:
    """The tables are those of the first process; the other one shows nothing of them."""
    words = [word for word in command(case) if word != "--quiet"]
    done = torchrun(tmp_path, *words)
    if case in ("sparsefinder", "compact"):
        assert done.returncode != 0
        assert f"Error: {case} runs in one process." in done.stderr
        assert not (tmp_path / "run").exists()
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Next: ") == 1
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "finished"


@pytest.mark.slow
def test_an_error_in_two_processes_is_said_once(tiny_bert: Path, tmp_path: Path) -> None:
    done = torchrun(tmp_path, "classify", tiny_bert, "--corpus", "nowhere.txt")
    assert done.returncode != 0
    assert done.stderr.count("nowhere.txt: no such file") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_as_many_processes_resume_as_began(headlens: Headlens, tiny_bert: Path, tmp_path: Path) -> None:
    options = ["classify", tiny_bert, "--limit", 30, "--out", tmp_path / "run"]
    assert headlens(*options, "--quiet").code == 0
    record = json.loads((tmp_path / "run/run.json").read_text())
    (tmp_path / "run/run.json").write_text(json.dumps(record | {"status": "interrupted", "processes": 2}))
    refused = headlens("classify", "--resume", tmp_path / "run")
    assert refused.code == 2
    assert "was started with 2 processes, but now there is 1" in refused.err
    assert "Resume with" not in refused.err
