"""How a recipe says what it is doing; the command line shows it, Python code may ignore it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Advance = Callable[[int], None]


class Reporter(Protocol):
    """Protocol of what shows the user how far a recipe has come."""

    def status(self, text: str) -> AbstractContextManager[None]:
        """Shows work of unknown length while the block runs."""

    def progress(self, text: str, total: int | None) -> AbstractContextManager[Advance]:
        """Shows work of `total` steps; the block gets a function to call with the number of further steps done."""

    def warn(self, text: str) -> None:
        """Shows a warning before the run ends."""


class SilentReporter:
    """Reporter that ignores status texts, progress and warnings."""

    def status(self, text: str) -> AbstractContextManager[None]:
        """Ignores the status text and returns an empty context."""
        del text
        return nullcontext()

    def progress(self, text: str, total: int | None) -> AbstractContextManager[Advance]:
        """Ignores the progress text and the total; the block gets a function that does nothing with the steps."""
        del text, total
        return nullcontext(lambda _: None)

    def warn(self, text: str) -> None:
        """Ignores the warning, since warnings are also among the notes of the result."""
        del text
