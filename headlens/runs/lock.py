"""One process at a time writes a run folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

from headlens.errors import OutputError
from headlens.files import output_errors

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
