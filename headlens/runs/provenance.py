"""What a run was made with: versions, commit, memory."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from headlens import __version__

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
