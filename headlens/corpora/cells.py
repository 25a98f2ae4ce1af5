"""The text in one cell of a row, whether from a table, from JSON or from a data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headlens.errors import CorpusError


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
            advice = f"Columns: {', '.join(_names(row))}."
            raise CorpusError(f"there is no column {column!r}.", advice, path=path, line=line)
        value = value[name]
    if value is None:
        return ""
    if not isinstance(value, str):
        advice = f"Choose a column of text: {', '.join(_names(row))}."
        raise CorpusError(f"{column!r} holds {type(value).__name__}, not text.", advice, path=path, line=line)
    if any("\ud800" <= character <= "\udfff" for character in value):
        advice = "Escapes such as \\ud83d come in pairs; write the character itself."
        raise CorpusError(f"{column!r} holds half a character (a lone surrogate).", advice, path=path, line=line)
    return value


def _names(row: Mapping[str, Any]) -> list[str]:
    names = []
    for name, value in row.items():
        names += [f"{name}.{inner}" for inner in _names(value)] if isinstance(value, Mapping) else [str(name)]
    return names
