"""The record of a run: what it was made with, read as anybody may have edited it, and compared with a later run."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, get_args, get_origin

from headlens import __version__
from headlens.errors import ResumeError
from headlens.files import output_errors
from headlens.nested_text import fits, parse_json

# Packages whose version can change a number.
PACKAGES = (
    "torch", "transformers", "numpy", "pandas", "scipy", "statsmodels", "scikit-learn", "matplotlib", "tokenizers",
    "sentencepiece", "entmax", "spacy", "stanza", "wordfreq", "datasets",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Returns the versions of Python, headlens and `PACKAGES`; absent packages are left out."""
    installed = {"python": platform.python_version(), "headlens": __version__}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def git_commit(source: Path = Path(__file__)) -> str | None:
    """Returns the commit of the checkout that `source` belongs to, with `-dirty` behind it when files were changed.

    None when headlens is installed rather than checked out. A file that merely lies inside somebody's
    repository (a virtual environment there) does not count: it must be tracked.
    """
    if _git(source, "ls-files", "--error-unmatch", source.name) is None:
        return None
    return _git(source, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(source: Path, *arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(source.parent), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603 - fixed words
    except (subprocess.SubprocessError, OSError):
        return None
    return process.stdout.strip() or None


def peak_memory() -> int | None:
    """Returns the largest resident memory of this process so far, in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would count the process that started this one, too: Linux keeps that peak across exec.
        peak_line = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(encoding="utf-8"), re.MULTILINE)
        if peak_line:
            return int(peak_line[1]) * 1024
    import resource  # noqa: PLC0415 - does not exist on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def command_line(arguments: Sequence[str]) -> str | None:
    """Returns the command as it was typed, quoted for a shell; None where another program called headlens.

    Args:
        arguments: command-line arguments of the process, the program first.
    """
    # What `python -m` was told; the folder of the package has another name where it is installed from a checkout.
    module = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
    is_headlens = Path(arguments[0]).stem == "headlens" or module == "headlens_cli.__main__"
    return shlex.join(["headlens", *arguments[1:]]) if is_headlens else None


def environment() -> dict[str, Any]:
    """Returns what `run.json` records about the machine and the programs."""
    typed = command_line(sys.argv)
    return {
        **({} if typed is None else {"command_line": typed}),
        "versions": versions(),
        "platform": platform.platform(),
        "git_commit": git_commit(),
    }


RUN_FILE = "run.json"
# Types of what is read again of a record; what is null or missing is not known.
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("command", "model", "model_name", "status", "started", "command_line"), str),
    **dict.fromkeys(("files", "resumed", "notes"), list[str]),
    **dict.fromkeys(("arguments", "mask", "corpus"), dict[str, Any]),
    "rows": dict[str, int],
    "depends_on": dict[str, str],
    "models": list[dict[str, Any]],
    "processes": int,
}
# The list of files in the text of a record that was damaged further on.
_OWN_FILES = re.compile(r'\s*\{\s*"command": .*?"files": \[([^\]]*)', re.DOTALL)


def read_run(folder: str | Path) -> dict[str, Any] | None:
    """Reads the content of a folder's `run.json`; None if there is none, or none that can be read."""
    try:
        return read_record(Path(folder))
    except (OSError, ValueError):
        return None


def read_record(folder: Path) -> dict[str, Any]:
    """Reads the content of a folder's `run.json`, which anybody may have edited.

    What is of another type than headlens writes is left out, as are files outside of the folder: it is not known.

    Raises:
        OSError: if it cannot be had.
        ValueError: if it is no JSON object.
    """
    record = parse_json((folder / RUN_FILE).read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise ValueError("it does not hold a JSON object")
    known: dict[str, Any] = {}
    for name, value in record.items():
        kind = _KINDS.get(name, object)
        if get_origin(kind) is list and isinstance(value, list):
            known[name] = [item for item in value if fits(item, get_args(kind)[0])]
        elif kind is object or fits(value, kind):
            known[name] = value
    if known.get("files"):
        known["files"] = [name for name in known["files"] if _is_inside(name)]
    return known


def is_of_headlens(record: Mapping[str, Any]) -> bool:
    """Whether a record holds anything that headlens writes."""
    return bool(record.keys() & _KINDS.keys())


def salvaged_files(folder: Path) -> list[str]:
    """Returns the names of the files in a folder's record, also where it is no JSON any more, as after a cut."""
    with output_errors(folder):
        path = folder / RUN_FILE
        listed = _OWN_FILES.match(path.read_text(encoding="utf-8", errors="replace") if path.exists() else "")
    return [name for name in re.findall(r'"([^"\\\n]+)"', listed[1] if listed else "") if _is_inside(name)]


def _is_inside(name: str) -> bool:
    """Whether a name may be that of a file in a run folder, as far as the file system can have it."""
    parts = Path(name).parts
    longest = max((len(part.encode("utf-8", "surrogatepass")) for part in parts), default=256)
    return longest < 256 and len(parts) < 10 and not re.search("[\0\ud800-\udfff]", name) and not {"/", ".."} & {*parts}


def resume_conditions(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what has to be the same when a run is resumed."""
    mask = record.get("mask")
    mask_hash = {"content of the mask": mask.get("sha256")} if isinstance(mask, Mapping) else {}
    return {**record.get("arguments", {}), **mask_hash, "processes": record.get("processes", 1)}


def check_same_conditions(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compares what a run began with and what resumes it, both as `resume_conditions` gives them.

    Raises:
        ResumeError: if an option, the mask or the number of processes differs.
    """
    count, count_now = before.get("processes"), now.get("processes")
    if count != count_now:
        torchrun = f"torchrun --nproc-per-node {count} -m headlens_cli … --resume …"
        advice = "Leave torchrun out." if count == 1 else torchrun
        started, there_are = ("process" if count == 1 else "processes"), ("is" if count_now == 1 else "are")
        raise ResumeError(f"The run was started with {count} {started}, but now there {there_are} {count_now}.", advice)
    if differing := changes(before, now):
        raise ResumeError(
            f"The run was started with different options: {differing}.",
            "--resume reads the options from the folder; leave them out.",
        )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns in words for a message what differs between options; empty for nothing."""
    differing = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return ", ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in differing)


def check_unchanged(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Compares what a run began with and what it has now, by names such as "the corpus".

    Raises:
        ResumeError: if something differs.
    """
    differing = [name for name, value in now.items() if before.get(name) != value]
    if differing:
        raise ResumeError(
            f"{' and '.join(differing)} changed since the run was interrupted.",
            "Resume with the original files and settings, or start again with --overwrite.",
        )
