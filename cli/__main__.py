"""`headlens` and `python -m headlens_cli`: the command line in a process of its own."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from headlens.errors import Interrupted

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def main() -> NoReturn:
    """Run the command line and end the process; signals are told from before its imports until it is gone."""
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # the wish of nohup
            signal.signal(number, _interrupt)
    code: object = 1
    try:
        from .app import main as run  # takes a second

        run()
    except SystemExit as end:
        code = end.code
    except Interrupted as interrupt:  # before the command line could report it, or while it reported another one
        with contextlib.suppress(OSError):
            sys.stderr.write("Interrupted.\n")
        code = 128 + interrupt.signal
    finally:
        # The outcome is reported already; a signal to a process that ends anyway would give another exit code.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    # Not by sys.exit: where a thread is in torch when Python is taken apart, C++ aborts the process.
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise Interrupted(number)


if __name__ == "__main__":
    main()
