"""Tables: TSV, CSV and JSON lines with a column of sentences, and maybe one of translations."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlens.corpora.files import open_text, short_name
from headlens.corpora.sentence import Example
from headlens.corpora.text import plain_sentence
from headlens.errors import CorpusError

SEPARATORS = {".tsv": "\t", ".csv": ","}
JSON_LINES = (".jsonl", ".ndjson")
Row = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True)
class TableCorpus:
    """A UTF-8 table with a header (`.tsv`, `.csv`) or one JSON object per line (`.jsonl`); also `.gz`.

    Tabs separate without quoting, as in the files of GLUE; commas with quoting, where a cell may span lines.

    Args:
        path: the file.
        column: the column of sentences.
        target_column: the column of translations.
    """

    path: str | Path
    column: str
    target_column: str | None = None

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return short_name(self.path)

    def __iter__(self) -> Iterator[Example]:
        """Read from the start; rows whose sentence is blank are left out.

        Raises:
            CorpusError: with file and line: an unknown column, a row of the wrong length, broken JSON.
        """
        for line, row in self._rows():
            source = plain_sentence(self._cell(row, self.column, line), str(line))
            if self.target_column is None:
                if source.words:
                    yield Example(source)
                continue
            target = plain_sentence(self._cell(row, self.target_column, line), str(line))
            if source.words and target.words:
                yield Example(source, target)

    def _rows(self) -> Iterator[Row]:
        kind = Path(str(self.path).removesuffix(".gz")).suffix.lower()
        return self._json_rows() if kind in JSON_LINES else self._separated_rows(SEPARATORS[kind])

    def _separated_rows(self, separator: str) -> Iterator[Row]:
        lines = (f"{line.text}\n" for line in open_text(self.path))
        if separator == "\t":
            reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)
        else:
            reader = csv.reader(lines, delimiter=separator, strict=True)
        header: list[str] | None = None
        try:
            for row in reader:
                if header is None:
                    header = row
                    self._check_columns(header, 1)
                elif row:
                    yield reader.line_num, self._pair(header, row, reader.line_num)
        except csv.Error as error:
            raise CorpusError(
                f"not a table: {error}.", "Mend the line.", path=self.path, line=reader.line_num
            ) from error

    def _pair(self, header: list[str], row: list[str], line: int) -> Mapping[str, Any]:
        if len(row) != len(header):
            raise CorpusError(
                f"{len(row)} columns where the header has {len(header)}.", "Mend the line.", path=self.path, line=line
            )
        return dict(zip(header, row, strict=True))

    def _json_rows(self) -> Iterator[Row]:
        for number, text in open_text(self.path):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (json.JSONDecodeError, RecursionError) as error:
                reason = getattr(error, "msg", "nested too deeply")
                raise CorpusError(f"not JSON: {reason}.", "Mend the line.", path=self.path, line=number) from error
            if not isinstance(row, dict):
                raise CorpusError("not a JSON object.", "Write {…} on every line.", path=self.path, line=number)
            self._check_columns(list(row), number)
            yield number, row

    def _check_columns(self, names: list[str], line: int) -> None:
        for wanted in (self.column, self.target_column):
            if wanted is not None and wanted not in names:
                raise CorpusError(
                    f"there is no column {wanted!r}.", f"Columns: {', '.join(names)}.", path=self.path, line=line
                )

    def _cell(self, row: Mapping[str, Any], column: str, line: int) -> str:
        value = row[column]
        if not isinstance(value, str):
            raise CorpusError(f"{column!r} holds {value!r}, not text.", "Mend the line.", path=self.path, line=line)
        return value
