"""Rows of table files with the lines they begin at: tabs, commas, JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headlens.corpora.text_files import open_text
from headlens.errors import CorpusError

# What the csv module says, and what it means.
CSV_FAULTS = {
    "unexpected end of data": "a quotation mark that is never closed",
    "expected after": "text after a closing quotation mark",
    "field larger": "a cell of more than 131,072 characters, or a quotation mark that is not closed",
    "new-line character": "a carriage return outside of quotes",
}
Row = tuple[int, Mapping[str, Any]]


def tab_rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Cells between tabs, nothing quoted, and their line; blank lines are skipped. Errors as in `open_text`."""
    return ((line.number, line.text.split("\t")) for line in open_text(path) if line.text.strip())


def comma_rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Cells between commas and the line each row begins at; a quoted cell may go on over several.

    Raises:
        CorpusError: with the line: quotation marks that do not fit together; also as in `open_text`.
    """
    reader = csv.reader((f"{line.text}\n" for line in open_text(path)), strict=True)
    start = 1
    try:
        for row in reader:
            if row:
                yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        reason = next((plain for sign, plain in CSV_FAULTS.items() if sign in str(error)), str(error))
        advice = "Mend the row that begins here; a quotation mark inside a quoted cell is written twice."
        raise CorpusError(f"broken CSV: {reason}.", advice, path=path, line=start) from error


def json_rows(path: str | Path) -> Iterator[Row]:
    """One JSON object per line, with its line.

    Raises:
        CorpusError: with the line: broken JSON, or something other than an object; also as in `open_text`.
    """
    for number, text in open_text(path):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except RecursionError as error:
            raise CorpusError("broken JSON: nested too deeply.", "Mend the line.", path=path, line=number) from error
        except ValueError as error:  # also numbers of thousands of digits
            reason = getattr(error, "msg", str(error))
            raise CorpusError(f"broken JSON: {reason}.", "Mend the line.", path=path, line=number) from error
        if not isinstance(row, dict):
            raise CorpusError("not a JSON object.", "Write {…} on every line.", path=path, line=number)
        yield number, row
