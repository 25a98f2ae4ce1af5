"""Where the state of a training run is kept, so that no kill costs more than the last minutes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headlens.files import output_errors
from headlens.runs.processes import ALONE, Processes
from headlens.runs.signals import DeferredSignals

EVERY = 60.0  # seconds; more where saving takes more than a twentieth of that


class CheckpointFolder:
    """A folder per state: the newest that is whole counts, older ones go.

    Args:
        path: folder that holds the states.
        signals: notes signals to stop.
        processes: that train together; the first decides when to save.
        every: seconds between states; None for `EVERY`.
    """

    def __init__(
        self, path: Path, signals: DeferredSignals, processes: Processes = ALONE, *, every: float | None = None
    ) -> None:
        self.path, self.signals, self.processes = path, signals, processes
        self._every = EVERY if every is None else every
        self._next = time.monotonic() + self._every

    @property
    def found(self) -> Path | None:
        """Path of the newest state that was written completely; None while there is none."""
        return max(self.path.glob("state-*"), default=None)

    def due(self) -> bool:
        """Whether it is time to save, or a signal waits; the same in all processes."""
        waiting = any(self.processes.gather(self.signals.noted is not None))
        return self.processes.share(waiting or time.monotonic() >= self._next)

    @contextmanager
    def saving(self) -> Iterator[Path]:
        """A folder that becomes the newest state when the block ends well.

        Raises:
            OutputError: if it cannot be written.
        """
        begun = time.monotonic()
        last = self.found
        number = 0 if last is None else int(last.name.removeprefix("state-")) + 1
        fresh = self.path / ".fresh"
        with output_errors(self.path):
            if self.processes.first:
                shutil.rmtree(fresh, ignore_errors=True)
                fresh.mkdir(parents=True)
            self.processes.gather(None)
            yield fresh
            self.processes.gather(None)
            if self.processes.first:
                fresh.rename(self.path / f"state-{number:09}")
                if last is not None:
                    shutil.rmtree(last)
            self.processes.gather(None)
        took = time.monotonic() - begun
        self._next = time.monotonic() + max(self._every, 20 * took)

    def obey(self) -> None:
        """Act on a signal that waits, in all processes if one got it."""
        self.signals.obey()
