"""Rows and sentences that cannot be read: refused one by one, or left out and counted, as far as that is sound."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headlens.errors import CorpusError, counted

T = TypeVar("T")
# What may be left out of a source: a share of its rows; of a small one so many, but no larger share than that, or one.
_SHARE, _FEW, _LARGEST_SHARE = 0.01, 10, 0.25
SHOWN = 3  # rows that a note shows


def sound(rows: Iterable[T | CorpusError]) -> Iterator[T]:
    """Yields rows, and raises the error that stands in the place of the first that cannot be read."""
    try:
        for row in rows:
            if isinstance(row, CorpusError):
                raise row
            yield row
    finally:
        if isinstance(rows, Generator):  # an error that is kept would keep the file open
            rows.close()


def broken_note(broken: int, rows: int, first: Iterable[str]) -> str:
    """Returns what to know about rows that were left out, of all rows; `first` of them, with their places."""
    more = " …" if broken > SHOWN else ""
    return f"Left out by --skip-broken: {broken} of {counted(rows, 'row')}. {' '.join(first)}{more}"


@dataclass
class BrokenRows:
    """The rows of a source that cannot be read.

    Args:
        name: of the source.
        path: of its file; None for others.
        skip: whether they are left out.
        number: how many there are.
        first: places of the first of them, with what is wrong.
    """

    name: str
    path: str | Path | None
    skip: bool
    number: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, error: CorpusError) -> None:
        """Counts a row.

        Raises:
            CorpusError: the error with what can be done, if it is not to be left out.
        """
        if not self.skip:
            told = CorpusError(error.message, f"{error.advice} Or leave such rows out with --skip-broken.")
            told.path, told.line = error.path, error.line
            raise told from error
        self.number += 1
        if len(self.first) < SHOWN:
            name = self.name if self.path is None else Path(self.path).name
            self.first.append(f"{name}{error.message.removeprefix(str(error.path))}")

    def check(self, rows: int) -> None:
        """Refuses a source of which too much is broken.

        Args:
            rows: how many were read, with these.

        Raises:
            CorpusError: with their number and the first of them.
        """
        most = max(_SHARE * rows, min(_FEW, _LARGEST_SHARE * rows), 1)
        if self.number and (self.number == rows or self.number > most):
            message = f"{self.number} of {counted(rows, 'row')} cannot be read. The first: {self.first[0]}"
            advice = (
                f"--skip-broken leaves out {_SHARE:.0%} of the rows (in small files up to {_FEW}), but no more than "
                f"{_LARGEST_SHARE:.0%} of them: correct the file."
            )
            raise CorpusError(message, advice, path=self.path or self.name)
