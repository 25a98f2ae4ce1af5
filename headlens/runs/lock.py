"""One process at a time writes a run folder.

The library filelock would not do: it locks the first byte of the file, which on Windows keeps others from reading the
process number there, and it leaves the file behind.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from headlens.errors import OutputError
from headlens.files import output_errors

LOCK_NAME = ".headlens.lock"

if sys.platform == "win32":
    import msvcrt

    def _claim(descriptor: int) -> None:
        # A byte past the end, so that others can still read the process number at the start.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _claim(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FolderLock:
    """A lock file holding the writer's process number.

    The claim itself is the operating system's, so it ends with the process, however that ends: a file left
    behind by a dead process is taken over, and a process number used again by another program does no harm.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_NAME
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock and writes the number of this process into its file.

        Raises:
            OutputError: if a living process holds it, or the folder cannot be written.
        """
        with output_errors(self.path):
            while not self._claimed(descriptor := os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)):
                os.close(descriptor)
            self._descriptor = descriptor
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Releases the lock and removes its file; nothing happens without a lock."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            if self._is_ours(self._descriptor):
                self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = None

    def check(self) -> None:
        """Checks that the lock's file is still there, and with it the folder that this process took.

        Raises:
            OutputError: if somebody removed or moved it.
        """
        if self._descriptor is not None and not self._is_ours(self._descriptor):
            raise OutputError(
                f"{self.path.parent} was removed or moved while this run wrote there.",
                "Start again, and do not touch the folder until the run has ended.",
            )

    def _is_ours(self, descriptor: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        return False

    def _claimed(self, descriptor: int) -> bool:
        """Whether a descriptor holds the lock now; not so if its file is gone, and has to be opened again."""
        try:
            _claim(descriptor)
        except (BlockingIOError, PermissionError) as problem:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise OutputError(
                f"{self.path.parent} is being written to by another headlens process ({owner}).",
                "Wait until it has finished, or name another folder with --out.",
            ) from problem
        except OSError:
            return True  # a file system without locks: better to run unguarded than not at all
        # The former owner may have removed the file between our open and our claim: then nobody else sees this lock.
        return self._is_ours(descriptor)
