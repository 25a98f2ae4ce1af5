"""What an interrupted run needs to go on: kept in a file, as often as costs next to nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headlens.errors import ResumeError, read_errors
from headlens.files import atomic_path, output_errors
from headlens.metrics.accumulator import Array
from headlens.nested_text import parse_json
from headlens.runs.run_record import check_unchanged

_RECORD = "record"
IDENTITY = "identity"


class Checkpointable(Protocol):
    """Protocol of a partial result that can be serialised to bytes and restored from them."""

    def dump(self, identity: Mapping[str, str] | None = None) -> bytes:
        """Serialises the result as `packed` does, with the identity in its record."""

    def take(self, content: bytes) -> None:
        """Restores the result that `dump` serialised."""


def packed(record: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Serialises a record that JSON can hold, and arrays by name, as the content of an .npz file."""
    content = BytesIO()
    np.savez(content, **{_RECORD: np.frombuffer(json.dumps(record).encode(), np.uint8)}, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Returns the record and the arrays by name that `packed` stored in the content of an .npz file."""
    with np.load(BytesIO(content), allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files}
    return parse_json(arrays.pop(_RECORD).tobytes()), arrays


class Checkpoint:
    """A file that keeps a partial result for --resume.

    Args:
        path: the file.
        identity: what the result depends on, in words fit for a message ("the corpus" -> its hash).
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path = path
        self.identity = dict(identity)
        self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to save: every second, less often if saving takes more than a fiftieth of the time."""
        return time.monotonic() >= self._next

    def save(self, result: Checkpointable) -> None:
        """Replaces the whole file by the present state of the result.

        Raises:
            OutputError: if the folder cannot be written or the disk is full.
        """
        start = time.monotonic()
        with output_errors(self.path):
            self.path.parent.mkdir(exist_ok=True)  # but not the folder of the run, which somebody removed
        with atomic_path(self.path) as temporary:
            temporary.write_bytes(result.dump(self.identity))
        end = time.monotonic()
        self._next = end + max(1.0, 50 * (end - start))

    def restore(self, result: Checkpointable) -> None:
        """Restores a result from the file, if there is one.

        Raises:
            ResumeError: if the file holds a result that depends on something else, or cannot be read.
        """
        if not self.path.exists():
            return
        with read_errors(self.path, "cannot be read", "Start again with --overwrite.", ResumeError):
            content = self.path.read_bytes()
            check_unchanged(unpacked(content)[0][IDENTITY], self.identity)
            result.take(content)
