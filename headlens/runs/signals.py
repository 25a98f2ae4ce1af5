"""Signals that ask a process to stop wait until the work at hand is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

# Ctrl-C, the polite kill of schedulers, and the end of the terminal.
SIGNALS = tuple(s for name in ("SIGINT", "SIGTERM", "SIGHUP") if (s := getattr(signal, name, None)) is not None)


class DeferredSignals:
    """Inside `with`, a signal to stop is noted; `obey` acts on it where that does no harm.

    A second signal acts at once. Outside of the main thread, where Python allows no handlers, nothing changes.
    """

    def __init__(self) -> None:
        self.noted: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._note) for s in SIGNALS if _python_knows(s)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        if kind is None and self.noted is not None:
            self.obey()

    def obey(self) -> None:
        """Raises the noted signal again, if there is one, for the handler of before this block."""
        if self.noted is not None:
            number, self.noted = self.noted, None
            self._restore()
            signal.raise_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        again = self.noted is not None
        self.noted = number
        if again:
            self.obey()

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def default_signals() -> Iterator[None]:
    """Inside `with`, signals end the process as the system does it: for waits in which Python's handlers never run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, signal.SIG_DFL) for s in SIGNALS if _python_knows(s)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _python_knows(number: int) -> bool:
    """Whether the present handler can be put back, and is not "ignore" (nohup's wish)."""
    return signal.getsignal(number) not in (None, signal.SIG_IGN)
