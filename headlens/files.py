"""Atomic writing of CSV and JSON: a file is complete or not there."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import enum
import errno
import json
import math
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd

from headlens.errors import HeadlensError, OutputError, counted, error_chain

# Pattern of the names of files that are not complete yet.
TEMPORARY = ".*.tmp*"
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
_NO_FOLDER = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY}

# Text that spreadsheets would run; numbers they only read. An apostrophe before it, which they hide, keeps it text, and
# one more before text that begins with apostrophes itself, so that reading finds every text as it was.
_RUN = re.compile(r"'*[=+\-@\t\r\n](?s:.)")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

# pandas reads floats exactly by default since 3.1, and warns when it is asked to
_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2])
_EXACT: dict[str, Any] = {} if _PANDAS >= (3, 1) else {"float_precision": "round_trip"}


@contextlib.contextmanager
def output_errors(path: str | Path) -> Iterator[None]:
    """Turns errors of the file system into an `OutputError` that names `path` and says what to do.

    Raises:
        OutputError: for every `OSError` of the block, also in the words of a library written in Rust.
    """
    try:
        yield
    except Exception as error:
        problem = system_error(error)
        if problem is None:
            raise
        reason = problem.strerror or str(problem)
        raise OutputError(f"Cannot write {path}: {reason}.", _advice(problem.errno)) from error


def system_error(error: Exception) -> OSError | None:
    """Returns the message of the file system; None for an error of another kind.

    safetensors and tokenizers hide the number in their text: `No space left on device (os error 28)`.
    """
    if isinstance(error, OSError):
        return error
    match = None if isinstance(error, HeadlensError) else _SYSTEM_ERROR.search(str(error))
    return None if match is None else OSError(int(match[1]), os.strerror(int(match[1])))


def full_disk(error: Exception) -> str | None:
    """Returns the system's message on a full disk, where that caused an error; else None."""
    causes = (e for e in error_chain(error) if isinstance(e, OSError) and e.errno in NO_SPACE)
    return next((e.strerror for e in causes), None)


def _advice(number: int | None) -> str:
    if number in NO_SPACE:
        return "Free some space, or name a folder on another disk with --out."
    if number in _NOT_ALLOWED:
        return "Use --out to name a folder that you may write to."
    if number in _NO_FOLDER:
        return "There is a file where a folder is needed, or the reverse; name another folder with --out."
    return "Name another folder with --out."


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`; when the block succeeds, the file there becomes `path`.

    A reader sees the old file or the new one, never half of one. Missing folders are made. When the block
    raises, the temporary file is removed and the old file stays. The temporary name keeps the suffix, so
    that writers which guess the format from it still do.

    Raises:
        OutputError: if the folder cannot be written or the disk is full.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.tmp{target.suffix}")
    with output_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with temporary.open("r+b") as file:
                # Without this a power cut after the rename may leave an empty file under the final name.
                os.fsync(file.fileno())
            os.replace(temporary, target)  # noqa: PTH105 - named for what it does: an atomic replace
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


def write_csv(frame: pd.DataFrame, path: str | Path) -> Path:
    """Writes a table as CSV that reads back exactly.

    Floats are written with the digits that identify them (narrow floats are widened first), missing values
    as empty cells, infinities as `inf` and `-inf`, booleans as `true` and `false`; text that a spreadsheet would run
    as a formula has an apostrophe before it (`'=A1`); lines end in a line feed, the text is UTF-8, the index is not
    written.

    Raises:
        OutputError: if the folder cannot be written or the disk is full.
    """
    cells = pd.DataFrame({_csv_cell(name): _csv_column(column) for name, column in frame.items()})
    with (
        atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        # Carriage returns within a cell are quoted only where lines end in one, too.
        lines: Any = _LineFeeds(file)
        cells.to_csv(lines, index=False, lineterminator="\r\n")
    return Path(path)


class _LineFeeds:
    """A text file whose lines are given with CRLF at their ends, and end in a line feed."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, line: str) -> int:
        return self.file.write(line.removesuffix("\r\n") + "\n")


def _csv_column(column: pd.Series) -> pd.Series:
    if pd.api.types.is_float_dtype(column.dtype):
        return column.astype("float64")
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        return column
    return pd.Series(list(map(_csv_cell, column)), index=column.index, dtype=object)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    is_run = isinstance(value, str) and _RUN.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_run else value


def plain_cell(text: Any) -> Any:
    """Returns the text that `write_csv` was given for what stands in a cell; what is no text is left."""
    return text[1:] if isinstance(text, str) and text.startswith("'") and _RUN.match(text) else text


def read_csv(path: str | Path, words: Collection[str] = ()) -> pd.DataFrame:
    """Reads a table that `write_csv` wrote: floats to the last bit, only empty cells missing.

    Words such as `NA` or `null` stay text: they may be tokens or names.

    Args:
        path: the file.
        words: names of columns that are read as text whatever they hold.

    Raises:
        ValueError: if it is no table, or was cut: a row has more or fewer cells than the first, the last line no end.
    """
    for _ in csv_rows(path):
        pass
    types = dict.fromkeys((*words, *map(_csv_cell, words)), "str")  # by the names in the file, too
    # not in pieces: a column whose type differs between them would be guessed
    frame: pd.DataFrame = pd.read_csv(
        path, keep_default_na=False, na_values=[""], dtype=types, low_memory=False, encoding="utf-8", **_EXACT
    )
    frame.columns = frame.columns.map(plain_cell)
    for name, column in frame.items():
        if not pd.api.types.is_numeric_dtype(column.dtype) and column.astype(str).str.startswith("'").any():
            frame[name] = column.map(plain_cell)
    return frame


def csv_rows(path: str | Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number of the line at which every row of a table of ours begins, and its cells by column.

    Raises:
        ValueError: as in `read_csv`; pandas fills rows that were cut with empty cells, and the `csv` module with None.
    """
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        reader, names, start = csv.reader(_whole_lines(file), strict=True), list[str](), 1
        try:
            for cells in reader:
                if names and cells and len(cells) != len(names):
                    what = f"{counted(len(cells), 'cell')} where the first line has {len(names)}"
                    raise ValueError(f"line {start} has {what}")
                if names and cells:
                    yield start, dict(zip(map(plain_cell, names), map(plain_cell, cells), strict=True))
                names, start = names or cells, reader.line_num + 1
                if len(set(names)) < len(names):
                    raise ValueError("two columns have the same name")
        except csv.Error as error:
            raise ValueError(f"line {start}: {error}") from error


def _whole_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines of a text, all of which must have an end: the last number could have had more digits."""
    for line in lines:
        if not line.endswith(("\n", "\r")):
            raise ValueError(
                "its last line has no line break, so the file may be truncated; if it is complete, add a line break "
                "at the end"
            )
        yield line


def write_json(data: Mapping[str, Any], path: str | Path) -> Path:
    """Writes indented JSON; paths, enums, dataclasses, sets, numpy values and torch names become plain values.

    A number that is not finite becomes `null`: standard JSON knows no other word for it.

    Raises:
        OutputError: if the folder cannot be written or the disk is full.
        TypeError: if a value has no plain form.
    """
    text = json.dumps(plain_value(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    return Path(path)


def plain_value(value: Any) -> Any:
    """Converts a value to the types of JSON: dict, list, str, int, finite float, bool, None.

    Raises:
        TypeError: if it has no plain form.
    """
    if isinstance(value, enum.Enum):
        return plain_value(value.value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.generic | np.ndarray):
        return plain_value(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain_value(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return _plain_collection(value)


def _plain_collection(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): plain_value(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain_value(v) for v in value), key=repr)
    if isinstance(value, list | tuple):
        return [plain_value(v) for v in value]
    # torch.device, torch.dtype: told apart by name, so that writing JSON does not import torch
    if isinstance(value, os.PathLike) or type(value).__module__ == "torch":
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be represented in JSON")
