"""Everything headlens raises on purpose.

HeadlensError
├── InputError                 the user can correct it; the command line exits with 2 and shows no traceback
│   ├── ModelError             a model that cannot be had, loaded or looked into
│   │   ├── UnsupportedModelError  its attention cannot be reached, or not be changed as it was asked for
│   │   ├── NotFiniteError     it gives NaN or infinity, as it would again if the run were resumed
│   │   │   └── DivergedError  a training whose loss or weights are no longer finite
│   │   └── NoHeadsError       it has lost all the heads that were to be looked at
│   ├── CorpusError            a text, treebank or table that cannot be read; carries file and line
│   │   └── AlignmentError     words and subwords cannot be brought together
│   ├── ParserError            a dependency parser that is not installed or does not parse
│   ├── ExtensionError         what somebody wrote for headlens (a metric, a strategy) cannot be used
│   ├── OptionError            an option with a value that cannot be meant
│   └── OutputError            a folder that cannot be written, or that holds somebody's results
│       └── ResumeError            an interrupted run that cannot be gone on with, or not like this
└── SelfCheckError             headlens found itself wrong (a site not reached, a mask ignored); exit 1

Interrupted is no error: the command line raises it when a signal asks the process to stop, as Python raises
KeyboardInterrupt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from headlens.visible_text import visible_text

_ENDLESS = re.compile(r"\S{600,}")
_LONGEST = 1400  # of a message, of which both ends are kept: what it is about, and what is wrong


def counted(number: int, noun: str) -> str:
    """A number with its noun, as messages tell it: `1 sentence`, `2 sentences`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Asks whether the closest of the known names was meant by a wrong one; `otherwise` where none is close."""
    close = get_close_matches(name, [*known], n=1)
    return f"Did you mean {close[0]}?" if close else otherwise


def listed(names: Iterable[str], most: int = 3) -> str:
    """Returns the first of some names for a sentence, with an ellipsis where there are more."""
    named = list(names)
    return f"{', '.join(named[:most])}{' …' if len(named) > most else ''}"


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, the one that it came from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def of_readable_length(text: str) -> str:
    """A message in which words of 600 characters and more are cut to their first 100, and so is its own middle."""
    text = _ENDLESS.sub(lambda word: f"{word[0][:100]}…", text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


class HeadlensError(Exception):
    """Base class of all errors that headlens raises on purpose.

    `advice` says what to do next; it is part of the message, on a line of its own. What has thousands of characters,
    as damaged files and options do, is cut in both.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        message, advice = (of_readable_length(visible_text(text)) for text in (message, advice))
        super().__init__(f"{message}\n{advice}" if advice else message)
        self.message = message
        self.advice = advice


class InputError(HeadlensError):
    """Something the user gave is wrong and the user can correct it."""


class ModelError(InputError):
    """A model that cannot be found, loaded or looked into."""


class UnsupportedModelError(ModelError):
    """A model whose attention headlens cannot reach, or not change in the way that was asked for."""


class NotFiniteError(ModelError):
    """A model that gives NaN or infinity; a run that is resumed would give them again."""


class DivergedError(NotFiniteError):
    """A training whose loss or weights are no longer finite."""


class NoHeadsError(ModelError):
    """A model that has lost all heads of the stacks through which its input goes."""


class CorpusError(InputError):
    """A corpus that cannot be read.

    `path` and `line` (1-based) tell where; both may be None when the corpus is no file.
    """

    def __init__(
        self, message: str, advice: str = "", *, path: str | Path | None = None, line: int | None = None
    ) -> None:
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(f"{where}{message}", advice)
        self.path = path
        self.line = line


class MissingColumnError(CorpusError):
    """A row without a column that is asked for."""


class AlignmentError(CorpusError):
    """Words and subwords of a sentence cannot be brought together."""


class ParserError(InputError):
    """A dependency parser that is not installed, or that gives no trees."""


class ExtensionError(InputError):
    """An extension from another package, such as a metric, that cannot be loaded or does not do its part."""


class OptionError(InputError):
    """An option whose value cannot be meant."""


class OutputError(InputError):
    """A folder that cannot be written, or that already holds results."""


class ResumeError(OutputError):
    """A run that cannot be resumed, or not with what it was asked for now."""


class SelfCheckError(HeadlensError):
    """Headlens caught itself giving a wrong result; never the user's fault."""


class Interrupted(BaseException):
    """A signal asked the process to stop; like KeyboardInterrupt nothing but the outermost code should catch it."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@contextmanager
def read_errors(path: str | Path, what: str, advice: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """Turns whatever a damaged or foreign file makes its reader raise into one error; errors of headlens stay.

    Readers of tensors, pickles and archives raise everything from KeyError to MemoryError, by where the damage is.

    Args:
        path: the file.
        what: what is wrong with it, such as `cannot be read as graphs`.
        advice: what to do.
        kind: class of the error.

    Raises:
        InputError: of this kind, for every exception of the block.
    """
    try:
        yield
    except HeadlensError:
        raise
    except Exception as error:
        raise kind(f"{path} {what}: {reason_of(error)}.", advice) from error


def reason_of(error: BaseException) -> str:
    """Returns what an exception says, in one line of at most 200 characters without a full stop."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split())[:200].rstrip(".") or type(error).__name__
