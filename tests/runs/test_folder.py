import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from headlens.errors import Interrupted, OptionError, OutputError, ResumeError
from headlens.files import write_json
from headlens.runs.checkpoint import Checkpoint
from headlens.runs.folder import LOCK_NAME, RunFolder, default_name
from headlens.runs.run_record import read_run

TABLE = pd.DataFrame({"model": ["demo"], "x": [0.1]})
HOLDER = """
import sys
from headlens.runs.folder import RunFolder
run = RunFolder.create(sys.argv[1], command="classify", model="demo")
run.start({})
print("ready", flush=True)
sys.stdin.read()
"""


def new_run(path: Path, *, overwrite: bool = False) -> RunFolder:
    return RunFolder.create(path, command="classify", model="demo", overwrite=overwrite)


def record(path: Path) -> dict[str, object]:
    found = json.loads((path / "run.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes the run folder `tmp_path / "run"`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_run_writes_its_files_and_record(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with new_run(folder) as run:
        run.start({"arguments": {"corpus": Path("a.txt"), "seed": 3}, "revision": None, "dtype": np.float32(1)})
        assert record(folder)["status"] == "running"
        assert run.table("heads", TABLE) == folder / "heads.csv"
        figure = Figure()
        figure.subplots().plot([1, 2])
        assert [p.suffix for p in run.figure("confidence", figure)] == [".png", ".svg"]
        assert run.figure("empty", None) == []
        run.json("summary", {"a": 1})
        with run.file("attention.safetensors") as temporary:
            temporary.write_bytes(b"x")
        run.finish({"corpus": {"sentences": 5}})
    found = record(folder)
    expected = [
        "heads.csv",
        "figures/confidence.png",
        "figures/confidence.svg",
        "summary.json",
        "attention.safetensors",
    ]
    assert found["files"] == expected
    assert run.files == [folder / name for name in expected]
    assert all(path.is_file() for path in run.files)
    assert (found["status"], found["command"], found["model"]) == ("finished", "classify", "demo")
    assert found["arguments"] == {"corpus": "a.txt", "seed": 3}
    assert found["corpus"] == {"sentences": 5}
    assert {"python", "numpy", "torch", "transformers"} <= set(found["versions"])  # type: ignore[call-overload]
    assert found["wall_time_s"] >= 0  # type: ignore[operator]
    assert found["peak_memory_bytes"] > 10_000_000  # type: ignore[operator]
    assert datetime.fromisoformat(str(found["started"])) <= datetime.fromisoformat(str(found["ended"]))
    assert not (folder / LOCK_NAME).exists()


@pytest.mark.parametrize(
    ("problem", "status"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed"), (SystemExit, "failed")]
)
def test_a_run_that_breaks_off_says_so_and_keeps_its_files(
    tmp_path: Path, problem: type[BaseException], status: str
) -> None:
    def work() -> None:
        with new_run(tmp_path) as run:
            run.start({})
            run.table("heads", TABLE)
            raise problem

    with pytest.raises(problem):
        work()
    assert record(tmp_path)["status"] == status
    assert record(tmp_path)["files"] == ["heads.csv"]
    assert (tmp_path / "heads.csv").exists()
    assert not (tmp_path / LOCK_NAME).exists()


def test_a_block_left_without_finish_is_finished(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        run.start({})
    assert record(tmp_path)["status"] == "finished"


def test_the_problem_of_the_run_is_not_hidden_by_one_of_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OutputError("disk full")

    def work() -> None:
        with new_run(tmp_path):
            monkeypatch.setattr("headlens.runs.folder.write_json", full)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert not (tmp_path / LOCK_NAME).exists()


def test_a_finished_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        run.table("heads", TABLE)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(OutputError, match=r"(?s)holds a finished run of classify.*--overwrite"):
        new_run(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_overwrite_removes_what_the_old_run_lists_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with new_run(folder) as run:
        run.table("old", TABLE)
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "outside.txt").write_text("mine")
    write_json(record(folder) | {"files": ["old.csv", "../outside.txt", "gone.csv"]}, folder / "run.json")
    with new_run(folder, overwrite=True) as run:
        run.table("new", TABLE)
    assert sorted(p.name for p in folder.iterdir()) == ["new.csv", "notes.txt", "run.json"]
    assert (tmp_path / "outside.txt").read_text() == "mine"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def earlier_run(folder: Path) -> dict[str, bytes]:
    """A finished run with a table, a figure and a model, and a file of somebody else; what its files hold."""
    with new_run(folder) as run:
        run.start({"arguments": {"limit": 5}})
        run.table("heads", TABLE)
        run.figure("mass", Figure(), ["png"])
    (folder / "models" / "penalty-1").mkdir(parents=True)
    (folder / "models" / "penalty-1" / "config.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    return contents(folder)


@pytest.mark.parametrize("problem", [OutputError("no data", "Name some."), Interrupted(signal.SIGINT), KeyError("x")])
def test_a_run_that_was_to_be_overwritten_is_back_where_the_new_one_fails_early(
    tmp_path: Path, problem: BaseException
) -> None:
    before = earlier_run(tmp_path)

    def work() -> None:
        with new_run(tmp_path, overwrite=True) as run:
            run.start({"arguments": {"limit": 6}})
            run.set_aside("models/penalty-*")
            assert not (tmp_path / "heads.csv").exists()
            assert not (tmp_path / "models" / "penalty-1").exists()
            raise problem

    with pytest.raises(type(problem)) as stop:
        work()
    assert contents(tmp_path) == before
    assert stop.value.__notes__ == [f"The earlier run in {tmp_path} is as it was."]


def test_a_run_that_has_something_to_show_replaces_the_earlier_one_even_if_it_fails(tmp_path: Path) -> None:
    earlier_run(tmp_path)

    def work() -> None:
        with new_run(tmp_path, overwrite=True) as run:
            run.start({"arguments": {"limit": 6}})
            run.set_aside("models/penalty-*")
            run.table("new", TABLE)
            raise OutputError("no data", "Name some.")

    with pytest.raises(OutputError):
        work()
    assert sorted(contents(tmp_path)) == ["new.csv", "notes.txt", "run.json"]
    assert record(tmp_path)["status"] == "failed"


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_that_a_killed_process_was_overwriting_is_not_lost(tmp_path: Path, overwrite: bool, kept: bool) -> None:
    before = earlier_run(tmp_path)
    killed = new_run(tmp_path, overwrite=True)
    killed.start({"arguments": {"limit": 6}})
    if kept:
        (tmp_path / RunFolder.KEPT).mkdir()
        (tmp_path / RunFolder.KEPT / "pass.npz").write_bytes(b"sums")
    killed._lock.release()
    if kept:
        with resumed(tmp_path) as run:
            run.start({"arguments": {"limit": 6}})
            run.table("new", TABLE)
        assert "new.csv" in contents(tmp_path)
        assert "heads.csv" not in contents(tmp_path)
    elif overwrite:
        with pytest.raises(KeyError), new_run(tmp_path, overwrite=True):
            raise KeyError
        assert contents(tmp_path) == before
    else:
        with pytest.raises(OutputError, match="holds a finished run of classify"):
            new_run(tmp_path)
        assert contents(tmp_path) == before


def test_models_are_set_aside_only_where_a_run_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "models" / "penalty-1").mkdir(parents=True)
    with new_run(tmp_path) as run:
        run.set_aside("models/penalty-*")
    assert (tmp_path / "models" / "penalty-1").is_dir()


@pytest.mark.parametrize("content", ['{"status": "interrupted"}', '{"status": "failed"}', "half a fi", "[]"])
def test_an_unfinished_run_may_be_written_again(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with new_run(tmp_path):
        pass
    assert record(tmp_path)["status"] == "finished"


def interrupted(folder: Path, arguments: dict[str, object] | None = None) -> Path:
    """A folder in which a run was interrupted after it had kept something."""

    def work() -> None:
        with new_run(folder) as run:
            run.start({"arguments": arguments or {"limit": 5}})
            kept = folder / RunFolder.KEPT
            kept.mkdir()
            (kept / "pass.npz").write_bytes(b"sums")
            run.table("heads", TABLE)
            raise Interrupted(signal.SIGTERM)

    with pytest.raises(Interrupted) as stop:
        work()
    assert f"headlens classify --resume {folder}" in stop.value.__notes__[0]
    assert record(folder)["status"] == "interrupted"
    return folder


def resumed(folder: Path, command: str = "classify") -> RunFolder:
    return RunFolder.create(folder, command=command, model="demo", resume=True)


def test_an_interrupted_run_is_not_replaced_by_accident(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.raises(OutputError, match=r"(?s)interrupted.*--resume.*--overwrite"):
        new_run(tmp_path)
    assert (tmp_path / RunFolder.KEPT / "pass.npz").read_bytes() == b"sums"
    with new_run(tmp_path, overwrite=True):
        assert not (tmp_path / RunFolder.KEPT).exists()
        assert not (tmp_path / "heads.csv").exists()


def test_a_resumed_run_keeps_its_record_until_it_has_finished(tmp_path: Path) -> None:
    started = record(interrupted(tmp_path))["started"]
    with resumed(tmp_path) as run:
        run.start({"arguments": {"limit": 5}})
        assert (tmp_path / RunFolder.KEPT / "pass.npz").exists()
        run.finish()
    found = record(tmp_path)
    assert (found["started"], found["status"], found["files"]) == (started, "finished", ["heads.csv"])
    assert len(found["resumed"]) == 1  # type: ignore[arg-type]
    assert not (tmp_path / RunFolder.KEPT).exists()


def test_a_resumed_run_tells_how_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["headlens", "classify", "demo", "--limit", "5"])
    interrupted(tmp_path)
    monkeypatch.setattr(sys, "argv", ["headlens", "classify", "--resume", "run"])
    with resumed(tmp_path) as run:
        run.start({"arguments": {"limit": 5}})
    assert record(tmp_path)["command_line"] == "headlens classify demo --limit 5"


def test_a_run_is_resumed_with_the_arguments_it_began_with(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with resumed(tmp_path) as run, pytest.raises(ResumeError, match=r"(?s)limit was 5 and is 6.*leave them out"):
        run.start({"arguments": {"limit": 6}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no run"),
        ("half a fi", "holds no run"),
        ('{"command": "attend", "status": "interrupted"}', "a run of attend, not of classify"),
        ('{"command": "classify", "status": "finished"}', "there is nothing left to do"),
    ],
)
def test_what_cannot_be_resumed(tmp_path: Path, content: str | None, message: str) -> None:
    folder = tmp_path / "run"
    if content is not None:
        folder.mkdir()
        (folder / "run.json").write_text(content)
    with pytest.raises(OutputError, match=message):
        resumed(folder)
    assert folder.exists() is (content is not None)


def test_a_page_about_the_interrupted_run_goes_when_it_is_resumed(tmp_path: Path) -> None:
    interrupted(tmp_path)
    write_json({**record(tmp_path), "files": ["heads.csv", "report.html"]}, tmp_path / "run.json")
    (tmp_path / "report.html").write_text("This run was interrupted.")
    with resumed(tmp_path) as run:
        run.start({"arguments": {"limit": 5}})
    assert record(tmp_path)["files"] == ["heads.csv"]
    assert not (tmp_path / "report.html").exists()


def test_a_run_that_cannot_go_on_does_not_advise_to_go_on(tmp_path: Path) -> None:
    interrupted(tmp_path)

    def work() -> None:
        with resumed(tmp_path) as run:
            run.start({"arguments": {"limit": 6}})

    with pytest.raises(ResumeError) as refused:
        work()
    assert not hasattr(refused.value, "__notes__")


def test_commands_to_copy_are_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "my run; rm -rf"

    def work() -> None:
        with new_run(folder) as run:
            run.start({})
            run.table("heads", TABLE)
            raise Interrupted(signal.SIGINT)

    with pytest.raises(Interrupted) as stop:
        work()
    assert stop.value.__notes__[0].endswith(f"--resume '{folder}'")


@pytest.mark.parametrize("foreign", ["heads.csv", "figures/mine.png"])
def test_tables_of_somebody_else_are_not_written_over(tmp_path: Path, foreign: str) -> None:
    path = tmp_path / foreign
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(OutputError, match=r"(?s)that headlens cannot attribute to a run.*--overwrite"):
        new_run(tmp_path)
    assert path.read_text() == "mine"
    with new_run(tmp_path, overwrite=True):
        assert path.read_text() == "mine"


def test_half_written_files_of_a_killed_process_are_swept_away(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    left = [tmp_path / ".heads.0a1b2c3d.tmp.csv", tmp_path / "figures" / ".mass.0a1b2c3d.tmp.png"]
    for path in left:
        path.write_bytes(b"half")
    with new_run(tmp_path):
        assert not any(path.exists() for path in left)


@pytest.mark.parametrize("way", ["resume", "start", "overwrite", "reopen"])
def test_what_is_kept_to_resume_goes_when_the_process_was_killed_in_its_last_moment(tmp_path: Path, way: str) -> None:
    """Killed after the record said `finished`, before the lock and what is kept were removed."""
    with new_run(tmp_path) as run:
        run.start({"arguments": {}})
        run.table("heads", pd.DataFrame({"head": [1]}))
    (tmp_path / RunFolder.KEPT).mkdir()
    (tmp_path / RunFolder.KEPT / "pass.npz").write_bytes(b"sums")
    (tmp_path / LOCK_NAME).write_text("1\n")
    if way == "reopen":
        with RunFolder.reopen(tmp_path):
            pass
    elif way == "overwrite":
        with new_run(tmp_path, overwrite=True) as run:
            run.start({"arguments": {}})
    else:
        with pytest.raises(OutputError, match="holds a finished run"):
            resumed(tmp_path) if way == "resume" else new_run(tmp_path)
    assert [path.name for path in tmp_path.rglob(".*")] == []
    assert (tmp_path / "heads.csv").exists() is (way != "overwrite")


def test_a_run_that_kept_nothing_leaves_nothing(tmp_path: Path) -> None:
    def work() -> None:
        with new_run(tmp_path / "run") as run:
            run.start({})
            raise Interrupted(signal.SIGINT)

    with pytest.raises(Interrupted) as stop:
        work()
    assert not (tmp_path / "run").exists()
    assert not hasattr(stop.value, "__notes__")


@pytest.mark.parametrize("path", [None, Path("runs/mine"), Path("a/b/c")])
def test_a_run_that_failed_takes_the_folders_it_made_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path | None
) -> None:
    monkeypatch.chdir(tmp_path)

    def work() -> None:
        with RunFolder.create(path, command="classify", model="demo") as run:
            run.start({})
            raise OptionError("no")

    with pytest.raises(OptionError):
        work()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, Path("runs/mine")])
def test_folders_that_were_there_or_hold_something_else_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path | None
) -> None:
    monkeypatch.chdir(tmp_path)

    def work(beside: str) -> None:
        with RunFolder.create(path, command="classify", model="demo") as run:
            run.start({})
            Path(beside).mkdir(parents=True)
            raise OptionError("no")

    with pytest.raises(OptionError):
        work("runs/other")
    assert [str(p) for p in Path().rglob("*")] == ["runs", "runs/other"]
    Path("runs/other").rmdir()
    with pytest.raises(OptionError):
        work("elsewhere")
    assert sorted(str(p) for p in Path().rglob("*")) == ["elsewhere", "runs"]


def test_a_folder_that_a_living_process_writes_is_refused(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    with pytest.raises(OutputError, match=rf"(?s)another headlens process \({other_process.pid}\).*Wait until"):
        new_run(tmp_path / "run", overwrite=True)
    assert record(tmp_path / "run")["status"] == "running"


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    lock = tmp_path / "run" / LOCK_NAME
    assert lock.read_text() == f"{other_process.pid}\n"
    with new_run(tmp_path / "run"):
        assert lock.read_text() == f"{os.getpid()}\n"
    assert not lock.exists()


def test_one_process_cannot_write_a_folder_twice(tmp_path: Path) -> None:
    with new_run(tmp_path):
        with pytest.raises(OutputError, match="being written"):
            new_run(tmp_path)
        # the refused run must not have taken the lock away
        with pytest.raises(OutputError, match="being written"):
            new_run(tmp_path)


def test_a_file_as_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(OutputError, match=r"Cannot write .*run"):
        new_run(tmp_path / "run")


def test_the_default_folder_has_command_model_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headlens.runs.folder.default_name", lambda *_: Path("runs/classify-demo-20260102-030405"))
    first, second = (RunFolder.create(None, command="classify", model="demo") for _ in range(2))
    assert first.path == Path("runs/classify-demo-20260102-030405")
    assert second.path == Path("runs/classify-demo-20260102-030405-2")
    first.finish()
    second.finish()


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("demo", "demo"),
        ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP--opus-mt-en-de"),
        ("/data/models/albert", "albert"),
        ("../albert base", "albert-base"),
        ("..", "model"),
        ("a:b*ü/c", "a-b---c"),
    ],
)
def test_default_names_are_safe(model: str, part: str) -> None:
    moment = datetime(2026, 11, 21, 3, 4, 5)
    assert default_name("ablate", model, moment) == Path(f"runs/ablate-{part}-20261121-030405")


@pytest.mark.parametrize("name", ["a/b", "../x", "", "."])
def test_names_with_folders_are_refused(tmp_path: Path, name: str) -> None:
    with new_run(tmp_path) as run, pytest.raises(ValueError, match="plain file name"):
        run.figure(name, Figure())


def test_reading_a_record(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    (tmp_path / "run.json").write_text('{"status": "finished"}')
    assert read_run(tmp_path) == {"status": "finished"}


def test_a_run_without_a_folder_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResumeError, match="no run folder to resume"):
        RunFolder.create(None, command="classify", model="demo", resume=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
@pytest.mark.parametrize("what", ["table", "json", "file", "finish"])
def test_a_folder_that_vanishes_is_noticed(tmp_path: Path, how: str, what: str) -> None:
    """Files would be written into a new folder, beside nothing of what was there before."""
    folder = tmp_path / "run"

    def work() -> None:
        with new_run(folder) as run:
            run.start({})
            if how == "removed":
                shutil.rmtree(folder)
            else:
                folder.rename(tmp_path / "elsewhere")
            if how == "replaced":
                folder.mkdir()
                (folder / LOCK_NAME).touch()
            if what == "table":
                run.table("heads", TABLE)
            elif what == "json":
                run.json("heads", {})
            elif what == "file":
                with run.file("heads.txt") as path:
                    path.touch()
            run.finish()

    told = r"(?s)run was removed or moved while this run wrote there.*do not touch the folder"
    with pytest.raises(OutputError, match=told):
        work()
    assert folder.exists() == (how == "replaced")
    assert not folder.exists() or [p.name for p in folder.iterdir()] in ([LOCK_NAME], [])


def test_sums_are_not_kept_in_a_folder_that_vanished(tmp_path: Path) -> None:
    class Nothing:
        def dump(self, identity: object = None) -> bytes:
            return b""

        def take(self, content: bytes) -> None: ...

    checkpoint = Checkpoint(tmp_path / "run" / ".resume" / "sums.npz", {})
    (tmp_path / "run").mkdir()
    checkpoint.save(Nothing())
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(OutputError, match=r"Cannot write .*sums\.npz: No such file or directory"):
        checkpoint.save(Nothing())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("overwrite", [True, False])
def test_the_run_file_of_another_program_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    content = '{"run_id": "abc", "project": "mine"}'
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(OutputError, match=r"holds a run\.json that headlens did not write\.\nName another folder"):
        new_run(tmp_path, overwrite=overwrite)
    assert (tmp_path / "run.json").read_text() == content


def test_a_damaged_run_is_replaced_with_the_files_that_it_listed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with new_run(folder) as run:
        run.table("old", TABLE)
    (folder / "notes.txt").write_text("mine")
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text[: text.index("]") + 40])
    with new_run(folder, overwrite=True) as run:
        run.table("new", TABLE)
    assert sorted(p.name for p in folder.iterdir()) == ["new.csv", "notes.txt", "run.json"]


def test_rows_of_tables_are_recorded_also_when_a_run_goes_on(tmp_path: Path) -> None:
    with new_run(tmp_path / "run") as run:
        run.table("new", TABLE)
    assert record(tmp_path / "run")["rows"] == {"new.csv": len(TABLE)}
