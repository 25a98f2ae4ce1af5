"""The Typer app: commands wired together, and what becomes of errors."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import FrameType
from typing import Annotated, NoReturn

import typer

from . import models
from .command import COMMANDS
from .lists import ListsOnce
from .process_rank import rank

_DEBUG = "Run again with --debug for the traceback."
# What shells say of a program whose reader has left, as in `headlens models | head -1`: 128 + SIGPIPE, like the codes
# of the signals below. The run itself is complete by then: its folder is written before anything is printed.
_READER_LEFT = 141
# What a newcomer is shown first; the others follow by the alphabet.
_FIRST = ("classify",)

app = typer.Typer(
    name="headlens",
    help="What every attention head of a transformer does, and what it is worth.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Every file of this folder is imported: a command is there when its file is.
for _file in iter_modules([str(Path(__file__).parent)]):
    if not _file.name.startswith("_") and _file.name != "app":
        import_module(f".{_file.name}", __package__)
for _command in sorted(COMMANDS.values(), key=lambda own: (own.name not in _FIRST, own.name)):
    app.command(_command.name, cls=ListsOnce, rich_help_panel=_command.panel)(_command.function)
app.add_typer(models.app, name="models", rich_help_panel="Models")


def _version(given: bool) -> None:
    if given:
        from headlens import __version__

        typer.echo(f"headlens {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """What every attention head of a transformer does, and what it is worth."""
    ctx.obj = {"debug": debug, "version": version}


def main() -> None:
    """Run the command line; the process ends here."""
    # Spinning threads on shared cores cost 8 ms per small operation; this must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: names from files may hold half a character
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) != signal.SIG_IGN:
            signal.signal(getattr(signal, name), _interrupt)
    try:
        _run()
    except BaseException as error:
        _leave(error)


def _run() -> None:
    try:
        app()
    except SystemExit:
        # What cannot be written is told by us, and not by Python on its way out.
        if sys.stdout is not None:
            sys.stdout.flush()
        raise


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    from headlens.errors import Interrupted

    del frame
    raise Interrupted(number)


def _leave(error: BaseException) -> NoReturn:
    """End the process with the message and the exit code that an exception stands for."""
    from headlens.errors import HeadlensError, InputError, Interrupted

    if _reader_left(error):
        _drop_output()
        sys.exit(_READER_LEFT)
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, Interrupted):
        # 130 for Ctrl-C, 143 for SIGTERM: what shells say of a process that a signal ended.
        _end("Interrupted.", error, 128 + error.signal)
    if not isinstance(error, Exception) or "--debug" in sys.argv:
        raise error
    if isinstance(error, HeadlensError):
        _end(f"Error: {error}", error, 2 if isinstance(error, InputError) else 1)
    _end(f"Unexpected {type(error).__name__}: {error}\n{_DEBUG}", error, 1)


def _drop_output() -> None:
    """Forget what cannot be written: Python tries once more on its way out, and ends with 120 and words of its own."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_left(error: BaseException) -> bool:
    """Whether nobody reads our output any more; Rich and Typer both turn that into a SystemExit of 1."""
    cause = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(cause, BrokenPipeError)


def _end(message: str, error: BaseException, code: int) -> NoReturn:
    if rank():
        # Of several processes the first speaks for all: the others give it time to, until torchrun ends them.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(5)
        message = f"[process {rank()}] {message}"
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _drop_output()
    lines = [message, *getattr(error, "__notes__", [])]
    typer.secho("\n".join(lines), err=True, fg=None if "NO_COLOR" in os.environ else "red" if code < 128 else None)
    sys.exit(code)
