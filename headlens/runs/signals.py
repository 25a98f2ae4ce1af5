"""Signals that ask a process to stop wait until the work at hand is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any, Self

# Ctrl-C, the polite kill of schedulers, and the end of the terminal.
SIGNALS = tuple(s for name in ("SIGINT", "SIGTERM", "SIGHUP") if (s := getattr(signal, name, None)) is not None)


@contextmanager
def _handled(handler: Any) -> Iterator[None]:
    """Inside `with`, signals have this handler; outside of the main thread, where Python allows none, no other."""
    is_main = threading.current_thread() is threading.main_thread()
    # One that Python did not set cannot be put back; to ignore a signal is the wish of nohup.
    ours = [s for s in SIGNALS if is_main and signal.getsignal(s) not in (None, signal.SIG_IGN)]
    before = {s: signal.signal(s, handler) for s in ours}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def default_signals() -> AbstractContextManager[None]:
    """Inside `with`, signals end the process as the system does it: for waits in which Python's handlers never run."""
    return _handled(signal.SIG_DFL)


class DeferredSignals(ExitStack):
    """Inside `with`, a signal to stop is noted; `obey` acts on it where that does no harm.

    A second signal acts at once. Outside of the main thread, where Python allows no handlers, nothing changes.
    """

    noted: int | None = None

    def __enter__(self) -> Self:
        self.enter_context(_handled(self._note))
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        if problem[0] is None:
            self.obey()

    def obey(self) -> None:
        """Raises the noted signal again, if there is one, for the handler of before this block."""
        if self.noted is not None:
            number, self.noted = self.noted, None
            self.close()
            signal.raise_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        again, self.noted = self.noted is not None, number
        if again:
            self.obey()
