"""Tables: TSV, CSV and JSON lines with a column of sentences, and maybe one of translations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from headlens.corpora.cell_text import list_names, text_cell
from headlens.corpora.sentence import Example, Sentence
from headlens.corpora.table_readers import Row, comma_rows, json_rows, tab_rows
from headlens.corpora.text import full_examples, plain_sentence
from headlens.corpora.text_files import file_stem
from headlens.errors import CorpusError, counted

SEPARATORS = {".tsv": "\t", ".csv": ","}
JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class TableCorpus:
    """A UTF-8 table (`.tsv`, `.csv`) or one JSON object per line (`.jsonl`); also `.gz`.

    Tabs separate without quoting, as in the files of GLUE; commas with quoting, where a cell may span lines.
    The first row names the columns. If it does not name those asked for and they are numbers, the table has no
    header and columns count from 1: parallel text as SOURCE<tab>TARGET has the columns `1` and `2`.

    Args:
        path: the file.
        column: the column of sentences; in JSON also a path (`translation.en`).
        target_column: the column of translations.
    """

    path: str | Path
    column: str
    target_column: str | None = None

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return file_stem(self.path)

    def __iter__(self) -> Iterator[Example]:
        """Read from the start; rows with a blank or null cell are left out (pairs so lost are logged).

        Raises:
            CorpusError: with file and line: an unknown column, a row of the wrong length, broken JSON.
        """
        return full_examples(self._pairs(), self.name)

    def _pairs(self) -> Iterator[tuple[Sentence, Sentence | None]]:
        for line, row in self._rows():
            target = None if self.target_column is None else self._sentence(row, self.target_column, line)
            yield self._sentence(row, self.column, line), target

    def _sentence(self, row: Mapping[str, Any], column: str, line: int) -> Sentence:
        return plain_sentence(text_cell(row, column, self.path, line), str(line))

    def _rows(self) -> Iterator[Row]:
        kind = Path(str(self.path).removesuffix(".gz")).suffix.lower()
        if kind in JSON_LINES:
            return json_rows(self.path)
        if kind not in SEPARATORS:
            advice = f"Name it {', '.join([*SEPARATORS, *JSON_LINES])}, according to what it is."
            raise CorpusError(f"a table of unknown kind {kind!r}.", advice, path=self.path)
        return self._named_rows(tab_rows(self.path) if kind == ".tsv" else comma_rows(self.path))

    def _named_rows(self, rows: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
        first = next(rows, None)
        if first is None:
            return
        names, has_header = self._header(first[1])
        self._check_columns(names, first[0])
        for line, cells in rows if has_header else chain([first], rows):
            if len(cells) != len(names):
                message = f"{counted(len(cells), 'column')} where the first row has {len(names)}."
                raise CorpusError(message, "Mend the line.", path=self.path, line=line)
            yield line, dict(zip(names, cells, strict=True))

    def _header(self, first: Sequence[str]) -> tuple[Sequence[str], bool]:
        """Names of the columns, and whether the first row gives them."""
        wanted = [c for c in (self.column, self.target_column) if c is not None]
        if all(c in first for c in wanted) or not all(c.isdecimal() for c in wanted):
            return first, True
        return [str(number) for number in range(1, len(first) + 1)], False

    def _check_columns(self, names: Sequence[str], line: int) -> None:
        for wanted in (self.column, self.target_column):
            if wanted is not None and wanted not in names:
                advice = f"Columns: {list_names(names)}. Without a header, name them 1, 2, …"
                raise CorpusError(f"there is no column {wanted!r}.", advice, path=self.path, line=line)
            if wanted is not None and names.count(wanted) > 1:
                advice = "Give the columns names of their own."
                raise CorpusError(
                    f"{names.count(wanted)} columns are called {wanted!r}.", advice, path=self.path, line=line
                )
