"""Files that are read while somebody may change them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from headlens.errors import InputError

# States of the files that the present run has read, by path; outside of a run every reading stands for itself.
_FIRST_STATES: ContextVar[dict[Path, dict[str, tuple[int, int]]] | None] = ContextVar("first_states", default=None)


@contextlib.contextmanager
def one_state_of_files() -> Iterator[None]:
    """Inside `with`, a file that is read several times has to stay what it was the first time, see `unchanged`."""
    token = _FIRST_STATES.set({})
    try:
        yield
    finally:
        _FIRST_STATES.reset(token)


@contextlib.contextmanager
def unchanged(path: str | Path) -> Iterator[None]:
    """Checks that nobody changes a file, or a file of a folder, while the block reads it.

    Sizes and times of change are compared: before and after the block, and inside `one_state_of_files` with those of
    the first time that the file was read there.

    Raises:
        InputError: if they differ.
    """
    place = Path(path)
    before = _state(place)
    states = _FIRST_STATES.get()
    first = before if states is None else states.setdefault(place.absolute(), before)
    _check_state(place, first, before)
    yield
    _check_state(place, first, _state(place))


def _state(path: Path) -> dict[str, tuple[int, int]]:
    files = path.iterdir() if path.is_dir() else (path,)
    stats = {file.name: file.stat() for file in files if file.is_file()}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def _check_state(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        where = path / changed[0] if path.is_dir() else path
        raise InputError(f"{where} changed while it was read.", "Start again when nothing writes there any more.")


def file_hashes(files: Mapping[str, str | Path | None]) -> dict[str, str]:
    """Returns the SHA-256 of the content of files by name; of values that are no files there is none."""
    hashes = {}
    for name, path in files.items():
        if path is not None and Path(path).is_file():
            with unchanged(path), Path(path).open("rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes
