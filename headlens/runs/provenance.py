"""What a run was made with: versions, commit, memory."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from headlens import __version__

PACKAGES = (
    "torch",
    "transformers",
    "numpy",
    "pandas",
    "scipy",
    "statsmodels",
    "scikit-learn",
    "matplotlib",
    "tokenizers",
    "sentencepiece",
    "entmax",
    "spacy",
    "stanza",
    "wordfreq",
    "datasets",
)


def versions() -> dict[str, str]:
    """Python's version and those of the packages that can change a number; absent packages are left out."""
    found = {"python": platform.python_version(), "headlens": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit(source: Path = Path(__file__)) -> str | None:
    """The commit of the checkout that `source` belongs to, with `-dirty` behind it when files were changed.

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
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603 - fixed words
    except (subprocess.SubprocessError, OSError):
        return None
    return done.stdout.strip() or None


def peak_memory() -> int | None:
    """Largest resident memory of this process so far, in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would count the process that started this one, too: Linux keeps that peak across exec
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    import resource  # noqa: PLC0415 - does not exist on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def command_line(arguments: Sequence[str]) -> str | None:
    """What was typed, for a shell; None where headlens was called from a program of somebody's own.

    Args:
        arguments: of the process, the program first.
    """
    program = Path(arguments[0])
    ours = program.stem == "headlens" or program.parent.name == "headlens_cli"
    return shlex.join(["headlens", *arguments[1:]]) if ours else None


def environment() -> dict[str, Any]:
    """What `run.json` says about the machine and the programs."""
    return {
        "command_line": command_line(sys.argv),
        "versions": versions(),
        "platform": platform.platform(),
        "git_commit": git_commit(),
    }
