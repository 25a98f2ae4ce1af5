"""From cells to labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from headlens.corpora.cell_text import list_names
from headlens.tasks.row_readers import TaskRow

UNLABELLED = ("", "-", "-1", "hidden")


@dataclass(frozen=True)
class ClassLabels:
    """Classes by name or by number.

    Args:
        names: in the order of their numbers.
        aliases: other names, each for the number of a class.
    """

    names: tuple[str, ...]
    aliases: dict[str, int] = field(default_factory=dict)

    def read(self, row: TaskRow, column: str) -> float | None:
        """The number of a class; None where the cell says that nobody knows (`UNLABELLED`).

        Raises:
            CorpusError: with the line: no such class.
        """
        cell = row.value(column)
        key = _written(cell)
        if key in UNLABELLED:
            return None
        known = {name.lower(): number for number, name in enumerate(self.names)} | self.aliases
        found = known.get(key, int(key) if key.isascii() and key.isdecimal() and len(key) < 6 else -1)
        if not 0 <= found < len(self.names):
            numbers = ", ".join(f"{number} ({name})" for number, name in enumerate(self.names))
            raise row.error(f"{column!r} has the unknown label {_short(cell)}.", f"Labels: {numbers}.")
        return float(found)


@dataclass(frozen=True)
class ScoreLabels:
    """Numbers within a range.

    Args:
        low, high: ends of the range, included.
    """

    low: float = 0.0
    high: float = 5.0

    def read(self, row: TaskRow, column: str) -> float | None:
        """The number; None where the cell is empty.

        Raises:
            CorpusError: with the line: no number, or one out of range.
        """
        cell = row.value(column)
        key = _written(cell)
        if key in UNLABELLED:
            return None
        try:
            number = float(key)
        except ValueError:
            number = math.nan
        if not self.low <= number <= self.high:
            advice = f"Scores are numbers from {self.low:g} to {self.high:g}."
            raise row.error(f"{column!r} has the unknown score {_short(cell)}.", advice)
        return number


def _written(cell: Any) -> str:
    """A cell as files write it; a float that is a whole number as one, as pandas makes of columns with gaps."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, bool):
        return str(int(cell))
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip().lower()


def _short(cell: Any) -> str:
    return repr(list_names([cell])) if isinstance(cell, str) else list_names([str(cell)])
