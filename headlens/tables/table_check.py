"""Tables read back are checked against their schema, with an error that names file, line and column."""

from __future__ import annotations

import contextlib
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from headlens.errors import InputError
from headlens.files import csv_rows
from headlens.heads import MOST_HEADS
from headlens.tables.every_table import WORDS
from headlens.tables.table_schema import TableColumn, TableSchema

MEND = "Run the command again, or leave this run out."


def check_table(schema: TableSchema, frame: pd.DataFrame, path: Path) -> None:
    """Checks the columns and cells of a table.

    Raises:
        InputError: if a column is missing or has a cell that cannot be meant, or a row is there twice; names the
            file, column and row.
    """
    groups = {column.optional for column in schema.columns if column.name in frame}
    required = [c for c in schema.columns if not c.optional or (c.optional is not True and c.optional in groups)]
    if missing := [column.name for column in required if column.name not in frame]:
        raise InputError(f"{path}: no column {', '.join(missing)}.", MEND)
    for column in schema.columns:
        if column.name in frame:
            _check_column(column, frame, path)
    for name in frame.columns.difference([*schema.names, *WORDS], sort=False):
        _check_undeclared(name, frame, path)
    identity = [name for name in schema.identity if name in frame]
    twice = np.flatnonzero(frame.duplicated(identity)) if identity else np.array([])
    if twice.size:
        row = int(twice[0])
        what = ", ".join(str(frame[name].iloc[row]) for name in identity)
        raise InputError(f"{path}:{_line(path, row)}: a row for {what} appears twice.", MEND)


def _check_column(column: TableColumn, frame: pd.DataFrame, path: Path) -> None:
    name, cells = column.name, frame[column.name]
    if column.kind == "word":
        if column.filled:
            _refuse(frame, name, cells.isna(), "a word", path)
        if column.words:
            wrong = ~cells.isin(column.words) & (cells.notna() if column.optional else True)
            _refuse(frame, name, wrong, f"one of {', '.join(column.words)}", path)
    elif column.kind == "truth":
        _refuse(frame, name, cells.notna() & ~_is_truth(cells), "True or False", path)
    else:
        values = pd.to_numeric(cells, errors="coerce")
        wrong, expected = (values.isna() & cells.notna()) | np.isinf(values), "a finite number"
        if column.kind == "index":
            wrong |= ~values.between(0, MOST_HEADS) | (values % 1 != 0)
            expected = f"a whole number from 0 to {MOST_HEADS}"
        elif column.kind == "count":
            wrong |= (values < 0) | (values % 1 != 0) & values.notna()
            expected = "a whole number of at least 0"
        elif column.kind == "share":
            wrong |= ~values.between(0, 1) & values.notna()
            expected = "a number from 0 to 1"
        _refuse(frame, name, wrong, expected, path)


def _check_undeclared(name: str, frame: pd.DataFrame, path: Path) -> None:
    """A column of words that somebody added is none of ours; numbers among words are damage."""
    cells = frame[name]
    if pd.api.types.is_numeric_dtype(cells.dtype):
        _refuse(frame, name, np.isinf(cells), "a finite number", path)
    else:
        like = _is_truth(cells) | pd.to_numeric(cells, errors="coerce").notna() | cells.isin(["True", "False"])
        _refuse(frame, name, cells.notna() & ~like & bool(like.any()), "a number or truth value", path)


def _is_truth(cells: pd.Series) -> pd.Series[bool]:
    return cells.map(lambda cell: isinstance(cell, bool))


def _refuse(frame: pd.DataFrame, name: str, wrong: pd.Series[bool], expected: str, path: Path) -> None:
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        cell = frame[name].iloc[row]
        content = "is empty" if pd.isna(cell) else f"holds {str(cell)[:60]!r}"
        raise InputError(f"{path}:{_line(path, row)}: column {name} {content}; expected {expected}.", MEND)


def _line(path: Path, row: int) -> int:
    """Returns the line of a file where a row of its table begins; the first line has the names of the columns."""
    with contextlib.suppress(OSError, ValueError):
        return next(islice((line for line, _ in csv_rows(path)), row, None), row + 2)
    return row + 2
