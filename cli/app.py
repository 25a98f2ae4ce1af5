"""The Typer app: commands wired together, and what becomes of errors."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from headlens.errors import HeadlensError, InputError, Interrupted, OutputError
from headlens.visible_text import visible_text

from .command import COMMANDS, program_parameters, rank, takes

_DEBUG = "Run again with --debug for the traceback."
# What shells say of a program whose reader has left, as in `headlens models | head -1`: 128 + SIGPIPE, like the codes
# of the signals below. The run itself is complete by then: it goes on when nobody reads what it shows.
_READER_LEFT = 141
# What a newcomer is shown first; the others follow by the alphabet.
_FIRST = ("classify",)


@contextlib.contextmanager
def _visible_errors() -> Iterator[None]:
    """Errors of Typer quote the command line and files with options as they are."""
    try:
        yield
    except TyperException as error:
        message = visible_text(error.format_message())
        error.format_message = lambda: message  # type: ignore[method-assign]
        raise


class _Commands(TyperGroup):
    """The commands, each built when it is needed; nothing that their errors quote reaches the terminal raw."""

    lists = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command; where commands are listed one without options, which takes a tenth of the time."""
        if cmd_name in COMMANDS and not self.lists:
            self.commands[cmd_name] = _built(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        listing = copy.copy(self)
        listing.lists = True
        super(_Commands, listing).format_help(ctx, formatter)

    @_visible_errors()
    def make_context(self, *given: Any, **more: Any) -> Any:
        return super().make_context(*given, **more)

    @_visible_errors()
    def invoke(self, ctx: Any) -> Any:
        return super().invoke(ctx)


app = typer.Typer(
    name="headlens",
    cls=_Commands,
    help="What every attention head of a transformer does, and what a model loses without it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Every file of this folder is imported: a command is there when its file is.
for _file in iter_modules([str(Path(__file__).parent)]):
    if not _file.name.startswith("_") and _file.name != "app":
        import_module(f".{_file.name}", __package__)
for _name in sorted(COMMANDS, key=lambda name: (name not in _FIRST, name)):
    app.command(_name, help=COMMANDS[_name].help, rich_help_panel=COMMANDS[_name].panel)(lambda: None)


@cache
def _built(name: str) -> Any:
    return COMMANDS[name].build()


def _version(given: bool) -> None:
    if given:
        from headlens import __version__

        typer.echo(visible_text(f"headlens {__version__}"))
        raise typer.Exit


def options(**given: Any) -> None:
    """What every attention head of a transformer does, and what a model loses without it."""


_VERSION = typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
_SHOWS_VERSION = inspect.Parameter(
    "version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, _VERSION]
)
app.callback()(takes(options, [*program_parameters(), _SHOWS_VERSION]))


def main() -> None:
    """Run the command line, which ends with SystemExit; `__main__` makes a process of it."""
    # Spinning threads on shared cores cost 8 ms per small operation; this must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: names from files may hold half a character
    sys.stdout, sys.stderr = _Stream.of(sys.stdout), _Stream.of(sys.stderr)
    # Nothing raw is let through of what Python and other packages write by themselves: logs and warnings.
    logging.setLogRecordFactory(_VisibleRecord)
    warnings.formatwarning = lambda *words, **more: visible_text(_warning_text(*words, **more))
    try:
        _run()
    except BaseException as error:
        _leave(error)


class _Stream:
    """Standard output or standard error; after it could not be written once, everything else for it is dropped.

    A run goes on without what it would have shown, and Python does not try again on its way out, and end with 120.

    Args:
        stream: what Python made of it.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.problem: OSError | None = None

    @classmethod
    def of(cls, stream: Any) -> Any:
        """Returns the guarded stream; one that leads nowhere for a stream that was closed (`>&-`)."""
        if isinstance(stream, cls):
            return stream
        # The new stream takes the descriptor that is free, so that no file of ours does: libraries may print there.
        return cls(Path(os.devnull).open("w") if stream is None else stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._guarded():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._guarded():
            self._stream.flush()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.problem = self.problem or error
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


class _VisibleRecord(logging.LogRecord):
    """A record of a log, whose message shows the names in it and obeys none."""

    def getMessage(self) -> str:  # noqa: N802 - its name in `logging`
        return visible_text(super().getMessage())


_warning_text = warnings.formatwarning


def _show_traceback(*raised: Any) -> None:
    sys.stderr.write(visible_text("".join(traceback.format_exception(*raised))))


def _run() -> None:
    try:
        app()
    except SystemExit as end:
        # Reports here what could not be written, instead of leaving that to Python at exit.
        sys.stdout.flush()
        problem: Any = getattr(sys.stdout, "problem", None)
        if problem is None or end.code:
            raise
    if isinstance(problem, BrokenPipeError):
        raise problem
    advice = "Redirect it elsewhere. The files in the run folder are complete."
    raise OutputError(f"Cannot write to standard output: {problem.strerror or problem}.", advice)


def _leave(error: BaseException) -> NoReturn:
    """End the process with the message and the exit code that an exception stands for."""
    if isinstance(error, BrokenPipeError):
        sys.exit(_READER_LEFT)
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, Interrupted):
        # 130 for Ctrl-C, 143 for SIGTERM: what shells say of a process that a signal ended.
        _end("Interrupted.", error, 128 + error.signal)
    if not isinstance(error, Exception) or "--debug" in sys.argv:
        sys.excepthook = _show_traceback  # Typer sets its own, which writes everything as it is
        raise error
    if isinstance(error, HeadlensError):
        _end(f"Error: {error}", error, 2 if isinstance(error, InputError) else 1)
    _end(f"Unexpected {type(error).__name__}: {error}\n{_DEBUG}", error, 1)


def _end(message: str, error: BaseException, code: int) -> NoReturn:
    if rank():
        # Of several processes the first speaks for all: the others give it time to, until torchrun ends them.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(5)
        message = f"[process {rank()}] {message}"
    sys.stdout.flush()
    lines = [message, *getattr(error, "__notes__", [])]
    colour = None if "NO_COLOR" in os.environ else "red" if code < 128 else None
    typer.secho(visible_text("\n".join(lines)), err=True, fg=colour)
    sys.exit(code)
