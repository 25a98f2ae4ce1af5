"""Lists of heads that a user names: in a table of headlens, or one after the other in a text."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from headlens.errors import OptionError
from headlens.heads import KEY_COLUMNS, Head

REMOVED = "removed"
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no", "")
Row = dict[str, str]


def read_heads(path: Path, where: Sequence[str] = ()) -> list[Head]:
    """The heads that a file says are removed.

    Args:
        path: a table with a column `removed` that lists heads (`pruning.csv`) or says yes or no of the head that the
            columns stack, layer and head name; or a plain list of heads, with `#` before remarks.
        where: of a table, which rows count: `COLUMN=VALUE`, all of them.

    Raises:
        OptionError: if it cannot be read, names no head, or has rows that name different heads.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
        raise OptionError(f"--from: {path} {reason}.", "Give a pruning.csv, or a list of heads.") from error
    columns = next(csv.reader(lines[:1]), [])
    if REMOVED in columns:
        heads = _of_table(path, list(csv.DictReader(lines)), where)
    elif where:
        raise OptionError(f"--where: {path} has no column {REMOVED!r}.", "Leave --where out for a plain list.")
    else:
        heads = _of_list(path, lines)
    if not heads:
        raise OptionError(f"--from: {path} names no head.", "Write one on each line, such as encoder.3.1.")
    return list(dict.fromkeys(heads))


def _of_list(path: Path, lines: Sequence[str]) -> list[Head]:
    named = ((number, re.split(r"[\s,;]+", line.partition("#")[0])) for number, line in enumerate(lines, 1))
    return [_head(path, number, name) for number, names in named for name in names if name]


def _of_table(path: Path, rows: Sequence[Row], where: Sequence[str]) -> list[Head]:
    numbered = [(number, row) for number, row in enumerate(rows, 2) if all(_holds(path, row, w) for w in where)]
    if not numbered:
        raise OptionError(f"--from: {path} has no row{' with ' + ', '.join(where) if where else 's'}.", "Look at it.")
    if set(KEY_COLUMNS) <= set(rows[0]):
        return [
            _head(path, number, ".".join(row[k] or "" for k in KEY_COLUMNS))
            for number, row in numbered
            if _is_removed(path, number, row)
        ]
    lists = [[_head(path, number, name) for name in (row[REMOVED] or "").split()] for number, row in numbered]
    if len({frozenset(heads) for heads in lists}) > 1:
        raise _ambiguous(path, [row for _, row in numbered])
    return lists[0]


def _holds(path: Path, row: Row, condition: str) -> bool:
    column, equals, value = (part.strip() for part in condition.partition("="))
    if not equals or column not in row:
        raise OptionError(
            f"--where {condition}: {path} has no column {column!r}."
            if equals
            else f"--where {condition!r} is no choice.",
            f"Write COLUMN=VALUE; columns: {', '.join(row)}.",
        )
    try:
        return float(row[column]) == float(value)
    except (TypeError, ValueError):
        return row[column] == value


def _is_removed(path: Path, number: int, row: Row) -> bool:
    answer = (row[REMOVED] or "").strip().lower()
    if answer not in (*_YES, *_NO):
        raise OptionError(f"--from: {path}:{number}: removed is {answer!r}.", "Write True or False.")
    return answer in _YES


def _head(path: Path, number: int, name: str) -> Head:
    try:
        return Head.parse(name)
    except OptionError as error:
        raise OptionError(f"--from: {path}:{number}: {error.message}", error.advice) from error


def _ambiguous(path: Path, rows: Sequence[Row]) -> OptionError:
    telling = ("model", "task", "strategy", "seed", "n_pruned")
    several = [c for c in telling if c in rows[0] and len({r[c] for r in rows}) > 1]
    example = ",".join(f"{c}={rows[-1][c]}" for c in several) or "COLUMN=VALUE"
    return OptionError(
        f"--from: {path} has {len(rows)} rows that name different heads.", f"Choose one, such as --where {example}."
    )
