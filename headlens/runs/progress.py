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
    """Shows nothing."""

    def status(self, text: str) -> AbstractContextManager[None]:
        """Nothing."""
        del text
        return nullcontext()

    def progress(self, text: str, total: int | None) -> AbstractContextManager[Advance]:
        """Nothing."""
        del text, total
        return nullcontext(lambda _: None)

    def warn(self, text: str) -> None:
        """Nothing: warnings are among the notes of the result."""
        del text
