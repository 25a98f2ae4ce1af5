"""A run folder: tables, figures, and `run.json`, which records how they were made."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import pandas as pd
from filelock import FileLock, Timeout

from headlens.errors import Interrupted, NotFiniteError, OutputError, ResumeError
from headlens.extensions import loaded_extensions
from headlens.files import TEMPORARY, atomic_path, output_errors, plain_value, write_csv, write_json
from headlens.models.names import short_model_name
from headlens.plots.export import write_figure
from headlens.runs.kv_groups import SharedKeys, add_kv_groups
from headlens.runs.run_record import (
    RUN_FILE,
    check_same_conditions,
    check_unchanged,
    environment,
    is_of_headlens,
    peak_memory,
    read_run,
    resume_conditions,
    salvaged_files,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Status = Literal["running", "finished", "interrupted", "failed"]
FIGURES = "figures"
PAGE = "report.html"
LOCK_NAME = ".headlens.lock"


class FolderLock:
    """A lock file holding the writer's process number.

    The claim itself is the operating system's, so it ends with the process, however that ends: a file left
    behind by a dead process is taken over, and a process number used again by another program does no harm.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_NAME
        self._lock = FileLock(self.path, blocking=False, thread_local=False)
        self._file: os.stat_result | None = None

    def acquire(self) -> None:
        """Takes the lock and writes the number of this process into its file.

        Raises:
            OutputError: if a living process holds it, or the folder cannot be written.
        """
        with output_errors(self.path):
            try:
                self._lock.acquire()
            except Timeout as problem:
                raise OutputError(
                    f"{self.path.parent} is being written to by another headlens process ({self._owner()}).",
                    "Wait until it has finished, or name another folder with --out.",
                ) from problem
            self._file = self.path.stat()
            with contextlib.suppress(PermissionError):  # Windows locks the beginning of the file
                self.path.write_text(f"{os.getpid()}\n", encoding="ascii")

    def _owner(self) -> str:
        with contextlib.suppress(OSError):
            return self.path.read_text(encoding="ascii", errors="replace").strip() or "unknown"
        return "unknown"

    def release(self) -> None:
        """Releases the lock and removes its file; nothing happens without a lock."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            if self._is_ours(self._file):
                self.path.unlink()
        self._lock.release()
        self._file = None

    def check(self) -> None:
        """Checks that the lock's file is still there, and with it the folder that this process took.

        Raises:
            OutputError: if somebody removed or moved it.
        """
        if self._file is not None and not self._is_ours(self._file):
            raise OutputError(
                f"{self.path.parent} was removed or moved while this run wrote there.",
                "Start again, and do not touch the folder until the run has ended.",
            )

    def _is_ours(self, file: os.stat_result) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(file, self.path.stat())
        return False


class RunFolder:
    """A folder that one run writes.

    Used as `with RunFolder.create(...) as run:`; leaving the block closes the run: `finished`, or
    `interrupted` after Ctrl-C, or `failed` after any other exception. What was written by then stays, and so does
    what lies in the folder `KEPT`, until a resumed run has finished. A run that is overwritten is set aside until the
    new one has something to show, and is back as it was if that fails before.
    """

    KEPT: ClassVar[str] = ".resume"
    OVERWRITTEN: ClassVar[str] = ".overwritten"

    def __init__(self, path: Path, *, command: str, model: str) -> None:
        self.path = path
        self._command = command
        self._record: dict[str, Any] = {"command": command, "model": model, "status": "running", "files": []}
        self._models: list[SharedKeys] = []
        self._lock = FolderLock(path)
        self._created: list[Path] = []  # folders that this run made, the innermost first
        self._overwrites = False
        self._start = time.monotonic()

    @classmethod
    def create(
        cls, path: str | Path | None, *, command: str, model: str, overwrite: bool = False, resume: bool = False
    ) -> RunFolder:
        """Makes or takes a folder for a run and locks it.

        Args:
            path: the folder; None for `runs/<command>-<model>-<YYYYmmdd-HHMMSS>`.
            command: name of the command that runs.
            model: the model's id or folder, as given.
            overwrite: take a folder with another run too; the files which that run lists are replaced.
            resume: go on with the run there, which was interrupted.

        Raises:
            OutputError: if the folder cannot be written, holds a run that is neither to be overwritten nor resumed,
                holds none that could be resumed, or is being written by a living process.
        """
        if resume:
            if path is None:
                raise ResumeError("There is no run folder to resume.", "Name it with --resume.")
            _run_of(Path(path), command)
        folder, created = _made_folder(
            Path(default_name(command, model) if path is None else path), is_new=path is None
        )
        run = cls(folder, command=command, model=model)
        run._created, run._overwrites = created, overwrite
        run._lock.acquire()
        try:
            _remove_leftovers(folder)
            if resume:
                run._continue()
            else:
                run._restore_overwritten()  # where a process was killed before it had anything of its own
                run._set_aside(_files_to_replace(folder, overwrite=overwrite))
        except BaseException:
            run._lock.release()
            raise
        return run

    @classmethod
    @contextlib.contextmanager
    def reopen(cls, path: Path) -> Iterator[RunFolder]:
        """Locks the folder of an earlier run to add files to it: of its record only the list of files changes.

        Raises:
            OutputError: if a living process writes the folder, or it cannot be written or holds no run.
        """
        run = cls(path, command="", model="")
        run._lock.acquire()
        try:
            record = read_run(path)
            if record is None:
                raise OutputError(f"{path} holds no run of headlens.", "Name another folder with --out.")
            _remove_leftovers(path)
            run._record = {"files": [], **record}
            before = len(run.files)
            try:
                yield run
            finally:
                if len(run.files) > before:
                    run._write()
        finally:
            run._lock.release()

    @property
    def files(self) -> list[Path]:
        """Paths of the files written so far, `run.json` apart."""
        return [self.path / name for name in self._record["files"]]

    def start(self, info: Mapping[str, Any]) -> None:
        """Writes `run.json` with status `running`.

        Args:
            info: what the caller records: `arguments` as resolved, revision and weight hash of the model, corpus
                hash and counts, seeds, device, dtype.

        Raises:
            ResumeError: if a resumed run began with other arguments, or with another number of processes.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if "started" in self._record:
            check_same_conditions(resume_conditions(self._record), resume_conditions(plain_value(info)))
            self._record["resumed"] = [*self._record.get("resumed", []), now]
        else:
            self._record["started"] = now
        # A resumed run keeps the command line that it began with: that, and not --resume, repeats the run.
        facts = environment() | {k: self._record[k] for k in ("command_line",) if k in self._record}
        self._record.update({**facts, **info, "directory": Path.cwd(), "status": "running"})
        self._write()

    def depend_on(self, parts: Mapping[str, str]) -> None:
        """Records what the results come from beside the options, and refuses to go on with anything else.

        Args:
            parts: hashes by words fit for a message ("the corpus" -> its hash).

        Raises:
            ResumeError: if the run that is resumed began with another part.
        """
        before = self._record.setdefault("depends_on", {})
        check_unchanged({name: before.get(name, value) for name, value in parts.items()}, parts)
        if not parts.items() <= before.items():
            before.update(parts)
            self._write()

    def know(self, model: SharedKeys) -> None:
        """Remembers which heads of a model of the run share keys, for the column of its tables."""
        self._models.append(model)

    def table(self, name: str, frame: pd.DataFrame) -> Path:
        """Writes a table to `<name>.csv` in the run folder, lists file and rows in the record and returns its path.

        A table about heads that share keys gets the column `kv_group`, see `add_kv_groups`.
        """
        add_kv_groups(frame, self._models)
        path = self._add(write_csv(frame, self._place(f"{name}.csv")))
        self._record.setdefault("rows", {})[path.name] = len(frame)
        return path

    def json(self, name: str, data: Mapping[str, Any]) -> Path:
        """Writes a mapping to `<name>.json` in the run folder, lists the file in the record and returns its path."""
        return self._add(write_json(data, self._place(f"{name}.json")))

    def figure(self, name: str, figure: Figure | None, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
        """Writes `figures/<name>.png` and so on; None stands for nothing to draw, and gives no files."""
        if figure is None:
            return []
        return [self._add(p) for p in write_figure(figure, self._place(name, FIGURES), formats)]

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """Gives a temporary path for a file of another kind; it becomes `<name>` when the block ends well."""
        target = self._place(name)
        with atomic_path(target) as temporary:
            yield temporary
        self._add(target)

    def finish(self, info: Mapping[str, Any] | None = None, status: Status = "finished") -> None:
        """Writes the last `run.json` with `info`, wall time and peak memory, and unlocks the folder."""
        self._record.update(info or {})
        if others := loaded_extensions():
            self._record["extensions"] = others
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        seconds = time.monotonic() - self._start
        self._record.update(ended=ended, wall_time_s=seconds, peak_memory_bytes=peak_memory(), status=status)
        try:
            self._write()
            if status == "finished":
                shutil.rmtree(self.path / self.KEPT, ignore_errors=True)
                shutil.rmtree(self.path / self.OVERWRITTEN, ignore_errors=True)
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is None:
            if self._record["status"] == "running":
                self.finish()
            return
        # The error that ended the run matters more than one with its record (a full disk makes both).
        with contextlib.suppress(OutputError):
            if self._restore_overwritten():
                self._lock.release()
                problem.add_note(f"The earlier run in {self.path} is as it was.")
                return
            if self._created and not self._keeps_something():
                self._remove_empty()
                return
            stopped = isinstance(problem, (KeyboardInterrupt, Interrupted))
            self.finish(status="interrupted" if stopped else "failed")
        # What is not finite would be so again: other options are needed, which a resumed run cannot have.
        if self._keeps_something() and not isinstance(problem, ResumeError | NotFiniteError):
            command = shlex.join(["headlens", self._command, "--resume", str(self.path)])
            problem.add_note(f"Finished work is kept. Resume with: {command}")

    def _keeps_something(self) -> bool:
        return bool(self._record["files"]) or any(self.path.glob(f"{self.KEPT}/[!.]*"))

    def _remove_empty(self) -> None:
        """Removes the folders that a run made which failed before it wrote anything."""
        with output_errors(self.path):
            (self.path / RUN_FILE).unlink(missing_ok=True)
            shutil.rmtree(self.path / self.KEPT, ignore_errors=True)
            self._lock.release()
            with contextlib.suppress(OSError):  # somebody else may have put something there
                for folder in self._created:
                    folder.rmdir()

    def _continue(self) -> None:
        """Takes up the record of the run that is resumed."""
        record = read_run(self.path) or {}
        if record.get("status") == "finished":
            raise _nothing_left(self.path)
        continued = ("started", "resumed", "arguments", "processes", "command_line", "depends_on", "rows")
        self._record.update({k: record[k] for k in continued if k in record})
        with output_errors(self.path):
            (self.path / PAGE).unlink(missing_ok=True)  # the page of the interrupted run
        self._record["files"] = [n for n in record.get("files", []) if (self.path / n).is_file()]

    def _place(self, name: str, below: str = "") -> Path:
        self._lock.check()
        if not name or Path(name).name != name:
            raise ValueError(f"{name!r} is not a plain file name")
        return self.path / below / name

    def set_aside(self, *patterns: str) -> None:
        """Moves what belongs to a run that is overwritten away, see `OVERWRITTEN`; without one nothing is done.

        Args:
            patterns: of files and folders below this one, for `Path.glob`.

        Raises:
            OutputError: if they cannot be moved.
        """
        if self._overwrites:
            self._set_aside([place for pattern in patterns for place in self.path.glob(pattern)])

    def _set_aside(self, places: Iterable[Path]) -> None:
        root = self.path.resolve()
        with output_errors(self.path):
            for place in map(Path.resolve, places):
                # A run.json may come from anywhere: never follow it out of the folder.
                if place.is_relative_to(root):
                    _move(place, root, root / self.OVERWRITTEN)

    def _restore_overwritten(self) -> bool:
        """Puts the run that was to be overwritten back where this one has nothing to show; True if there was one."""
        aside = self.path / self.OVERWRITTEN
        if not aside.is_dir() or self._keeps_something():
            shutil.rmtree(aside, ignore_errors=True)
            return False
        with output_errors(self.path):
            _move(aside, aside, self.path)
        return True

    def _add(self, path: Path) -> Path:
        shutil.rmtree(self.path / self.OVERWRITTEN, ignore_errors=True)
        name = path.relative_to(self.path).as_posix()
        if name not in self._record["files"]:
            self._record["files"].append(name)
        return path

    def _write(self) -> None:
        self._lock.check()
        write_json(self._record, self.path / RUN_FILE)


def default_name(command: str, model: str, moment: datetime | None = None) -> Path:
    """Returns `runs/<command>-<model>-<YYYYmmdd-HHMMSS>`, local time; of a model's path only the last part."""
    is_path = model.startswith((".", "/", "~", "\\")) or Path(model).is_absolute()
    name = short_model_name(model) if is_path else model
    safe = re.sub(r"[^\w.-]+", "-", name.replace("/", "--"), flags=re.ASCII).strip("-.") or "model"
    stamp = (moment or datetime.now().astimezone()).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{command}-{safe[:80]}-{stamp}"


def _made_folder(path: Path, *, is_new: bool) -> tuple[Path, list[Path]]:
    """Makes a folder unless it is there, or a new one, with a number behind its name if need be.

    Returns:
        The folder, and all the folders that were made, the innermost first.
    """
    with output_errors(path):
        for number in range(1, 1000):
            # Two runs may start within one second.
            folder = path if number == 1 else path.with_name(f"{path.name}-{number}")
            created = [one for one in (folder, *folder.parents) if not one.exists()]
            try:
                folder.mkdir(parents=True, exist_ok=not is_new)
            except FileExistsError:
                if not is_new:  # a file is there
                    raise
            else:
                return folder, created
    raise OutputError(f"{path} and 998 folders named after it exist.", "Name another folder with --out.")


def check_resumable(folder: Path, command: str) -> None:
    """Checks that a folder holds a run of a command that can be resumed, before anything is touched.

    Raises:
        OutputError: if there is no such run, or it has finished. What one that was killed after its end still kept to
            be resumed is removed.
    """
    if _run_of(folder, command).get("status") == "finished":
        shutil.rmtree(folder / RunFolder.KEPT, ignore_errors=True)
        raise _nothing_left(folder)


def _run_of(folder: Path, command: str) -> dict[str, Any]:
    """Returns the record of a run of a command; OutputError where there is none."""
    record = read_run(folder)
    if record is None:
        raise OutputError(f"{folder} holds no run of headlens: it has no readable {RUN_FILE}.", "Start one with --out.")
    if record.get("command") != command:
        other = record.get("command", "another command")
        raise OutputError(f"{folder} holds a run of {other}, not of {command}.", f"headlens {other} --resume {folder}")
    return record


def _nothing_left(folder: Path) -> OutputError:
    return OutputError(f"{folder} holds a finished run: there is nothing left to do.", "Look at its results.")


def _remove_leftovers(folder: Path) -> None:
    """Removes what a killed process had half written, or no longer needed; the lock says that nobody else writes."""
    if (read_run(folder) or {}).get("status") == "finished":  # killed before it had removed what is kept to resume
        shutil.rmtree(folder / RunFolder.KEPT, ignore_errors=True)
    for path in list(folder.rglob(TEMPORARY)):
        with contextlib.suppress(OSError):
            path.unlink()


def _files_to_replace(folder: Path, *, overwrite: bool) -> list[Path]:
    """The files of the run that a folder holds, if it is to be overwritten; otherwise the folder must hold no run."""
    known, salvaged = read_run(folder), salvaged_files(folder)
    record = known or {}
    command = record.get("command", "headlens")
    if record and not is_of_headlens(record):
        message = f"{folder} holds a {RUN_FILE} that headlens did not write."
        advice = "Name another folder with --out."
    elif overwrite:
        names = salvaged if known is None else record.get("files", [])
        listed = [folder / name for name in (*names, RUN_FILE)]
        return [*filter(Path.is_file, listed), folder / RunFolder.KEPT]
    elif record.get("status") == "finished":
        message = f"{folder} holds a finished run of {command}."
        advice = "Name another folder with --out, or give --overwrite to replace it."
    elif not record and (any(folder.glob("*.csv")) or any(folder.glob(f"{FIGURES}/*"))):
        message = f"{folder} holds tables or figures that headlens cannot attribute to a run."
        advice = "Name another folder with --out, or give --overwrite to write next to them."
    elif any(folder.glob(f"{RunFolder.KEPT}/*")) or record.get("files"):
        message = f"{folder} holds a run of {command} that was interrupted."
        again = shlex.join(["headlens", command, "--resume", str(folder)])
        advice = f"Resume it: {again}; or replace it with --overwrite."
    else:
        return []
    raise OutputError(message, advice)


def _move(place: Path, origin: Path, target: Path) -> None:
    """Moves a file, or the files of a folder, from below one folder to the same places below another."""
    for file in [path for path in (place, *place.rglob("*")) if path.is_file()]:
        moved = target / file.relative_to(origin)
        moved.parent.mkdir(parents=True, exist_ok=True)
        file.replace(moved)
    if place.is_dir():
        shutil.rmtree(place)
