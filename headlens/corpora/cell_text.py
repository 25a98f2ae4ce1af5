"""The text in one cell of a row, whether from a table, from JSON or from a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from headlens.errors import CorpusError

MOST_NAMES, MOST_CHARACTERS, MOST_LEVELS = 30, 40, 8


def text_cell(row: Mapping[str, Any], column: str, path: str | Path, line: int | None = None) -> str:
    """The text of a column; empty where the cell is null.

    Args:
        row: cells by column; a cell may hold a row itself.
        column: a name, or a path of names: `translation.de` is "Hallo" in {"translation": {"de": "Hallo"}}.
        path: file or data set, for errors.
        line: line in the file, for errors.

    Raises:
        CorpusError: no such column, or something other than text in it.
    """
    value: Any = row
    for name in [column] if column in row else column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            advice = f"Columns: {list_names(_names(row))}."
            raise CorpusError(f"there is no column {column!r}.", advice, path=path, line=line)
        value = value[name]
    if value is None:
        return ""
    if not isinstance(value, str):
        advice = f"Choose a column of text: {list_names(_names(row))}."
        raise CorpusError(f"{column!r} holds {type(value).__name__}, not text.", advice, path=path, line=line)
    if any("\ud800" <= character <= "\udfff" for character in value):
        advice = "Escapes such as \\ud83d come in pairs; write the character itself."
        raise CorpusError(f"{column!r} holds half a character (a lone surrogate).", advice, path=path, line=line)
    return value


def list_names(names: Iterable[str]) -> str:
    """Names of columns as errors show them: a blank one is told, long ones are cut, and so is a long list."""
    names = iter(names)
    shown = [_shown(name) for name in islice(names, MOST_NAMES)]
    return ", ".join(shown) + (", …" if next(names, None) is not None else "") if shown else "none"


def _shown(name: str) -> str:
    if not name.strip():
        return "(one without a name)"
    return name if len(name) <= MOST_CHARACTERS else f"{name[:MOST_CHARACTERS]}…"


def _names(row: Mapping[str, Any], level: int = 1) -> Iterator[str]:
    for name, value in row.items():
        if isinstance(value, Mapping) and level < MOST_LEVELS:
            yield from (f"{name}.{inner}" for inner in _names(value, level + 1))
        else:
            yield str(name)
