"""How a recipe says what it is doing; the command line shows it, Python code may ignore it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Advance = Callable[[int], None]


class Reporter(Protocol):
    """Something that shows progress."""

    def status(self, text: str) -> AbstractContextManager[None]:
        """Work of unknown length begins; it ends with the block."""

    def progress(self, text: str, total: int | None) -> AbstractContextManager[Advance]:
        """Work of `total` steps begins; the block gets a function to call with the steps done."""

    def warn(self, text: str) -> None:
        """Something the user should know before the run ends."""


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
