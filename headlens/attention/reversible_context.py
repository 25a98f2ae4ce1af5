"""What changes a model inside `with`, and leaves nothing of it afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Self


class ReversibleContext(ABC):
    """A context manager that undoes its changes, also after an error, and is open once at a time.

    Classes of it make their changes in `_change`.
    """

    _undo: ExitStack | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is inside its `with` block."""
        return self._undo is not None

    @abstractmethod
    def _change(self, undo: ExitStack) -> None:
        """Makes the changes, each with its undoing on the stack, so that those before one that fails are undone."""

    def __enter__(self) -> Self:
        if self.is_open:
            raise RuntimeError(f"this {type(self).__name__} is already open")
        with ExitStack() as undo:
            self._change(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        if self._undo is not None:
            undo, self._undo = self._undo, None
            undo.close()
