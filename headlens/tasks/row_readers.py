"""Rows that a task's examples are made of, from files and data sets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from headlens.corpora.chat import ChatTemplate
from headlens.corpora.sources import HubCorpus
from headlens.corpora.table import (
    AS_JSON,
    json_array,
    json_rows,
    list_names,
    refused_bytes,
    separated_rows,
    tab_rows,
    text_cell,
    unquoted,
)
from headlens.corpora.text import NamedFile, distinct_names, file_kind, file_stem, open_text
from headlens.errors import CorpusError, MissingColumnError, counted
from headlens.nested_text import looks_nested, nested_value

TABS = (".tsv", ".txt")
COMMAS = (".csv",)
LINES = (".jsonl", ".ndjson")
JSON = (".json",)
TABLES = (*TABS, *COMMAS, *LINES, *JSON)
_SIDES = ("1", "2")  # columns of translations without a header
ONE_ANNOTATOR = ("label1", "gold_label")  # last columns of GLUE's SNLI
_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?")  # de, deu, de-DE, zh_Hant


@dataclass(frozen=True, slots=True)
class TaskRow:
    """Cells of a row by column, and where the row stands.

    Args:
        cells: cells of the row by column.
        place: file or data set.
        line: line in the file; None in data sets, whose rows have no lines.
        number: number of the row, from 1.
        chat: how conversations are written as text.
    """

    cells: Mapping[str, Any]
    place: str
    line: int | None
    number: int
    chat: ChatTemplate | None = None

    def text(self, column: str) -> str:
        """Returns the text of a column as it stands there, also white space around it; empty where the cell is null.

        Raises:
            CorpusError: no such column, or something other than text in it, also where that is written as text.
        """
        return text_cell(self.cells, column, self.place, self.line, self.chat)

    def texts(self, column: str, number: int) -> list[str]:
        """Returns the texts of a list in a column; none but empty ones where the cell is null.

        Args:
            column: the column.
            number: how many texts there have to be.

        Raises:
            CorpusError: no such column, or no list of so many texts in it; also as in `text`.
        """
        cell = self.nested(column)
        if cell is None or cell == "":
            return [""] * number
        if not isinstance(cell, list) or len(cell) != number:
            held = counted(len(cell), "element") if isinstance(cell, list) else type(cell).__name__
            raise self.error(f"{column!r} holds {held}, not a list of {number} texts.", 'Write ["…", "…"].')
        return [replace(self, cells={column: text}).text(column) for text in cell]

    def value(self, column: str) -> Any:
        """Returns the cell of a column as it is.

        Raises:
            CorpusError: no such column.
        """
        if column not in self.cells:
            raise self.without(column)
        return self.cells[column]

    def nested(self, column: str) -> Any:
        """Returns the cell of a column; a list or a mapping that is written as JSON, be it quoted, as what it is.

        Raises:
            CorpusError: no such column, or what looks like a list or a mapping cannot be read.
        """
        cell = self.value(column)
        if not isinstance(cell, str) or not looks_nested(text := unquoted(cell.strip())):
            return cell
        try:
            return nested_value(text)
        except ValueError as error:
            raise self.error(f"{column!r} looks like a list or a mapping, but is not JSON.", AS_JSON) from error

    def without(self, column: str) -> CorpusError:
        """Builds the error that there is no such column."""
        return self.error(f"there is no column {column!r}.", f"Columns: {list_names(self.cells)}.", MissingColumnError)

    def error(self, message: str, advice: str, kind: type[CorpusError] = CorpusError) -> CorpusError:
        """Builds an error that names file and line, or the number of a row without a line."""
        where = "" if self.line is not None else f"row {self.number}: "
        return kind(f"{where}{message}", advice, path=self.place, line=self.line)


@dataclass(frozen=True)
class FileRows(NamedFile):
    """A UTF-8 file with tabs (`.tsv`, `.txt`), commas (`.csv`), JSON lines (`.jsonl`) or JSON; also `.gz`.

    Tabs separate as in `tab_rows`; a `.csv` may have tabs or semicolons, see `separated_rows`. A file of either
    whose first row is no header has the columns `headerless`. Further cells of its rows are left out where the original
    files have such, and behind a pair between tabs.

    Args:
        path: the file.
        headerless: columns of a file without a header.
        expected: columns one of which a header would have; without these the first row is data.
        numbered: columns named by number, from 1; a file whose first row has not all of them has no header.
        quoted: columns of files whose cells stand in quotation marks where pandas puts them, also between tabs.
    """

    headerless: tuple[str, ...] = ()
    expected: frozenset[str] = frozenset()
    numbered: frozenset[str] = frozenset()
    quoted: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[TaskRow | CorpusError]:
        """Reads the rows from the start; yields an error for a row of the wrong length, or a line of broken JSON.

        Raises:
            CorpusError: with file and line: not UTF-8, broken CSV, a broken file of JSON.
        """
        for number, (line, cells) in enumerate(refused_bytes(self._rows(), self.path), 1):
            yield cells if isinstance(cells, CorpusError) else TaskRow(cells, str(self.path), line, number)

    def _rows(self) -> Iterator[tuple[int | None, Mapping[str, Any] | CorpusError]]:
        if (kind := file_kind(self.path)) in TABS:
            return self._named(tab_rows(self.path, self.quoted))
        if kind in COMMAS:
            # Tasks that are in files without a header, too, say how many columns these have; all others have labels.
            return self._named(separated_rows(self.path, self.expected, len(self.headerless) or 2))
        if kind in LINES:
            return json_rows(self.path)
        if kind in JSON:
            return json_array(self.path)
        advice = f"Name it {', '.join(TABLES)}, according to its format."
        raise CorpusError(f"a table of unknown type {kind!r}.", advice, path=self.path)

    def _named(self, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, Mapping[str, Any] | CorpusError]]:
        if (first := next(rows, None)) is None:
            return
        names, bare = self._names(first[1])
        if bare and not self.numbered:
            self._check_languages(*first)
        if repeated := sorted({name for name in names if names.count(name) > 1 and name in self.expected}):
            message = f"{names.count(repeated[0])} columns are called {repeated[0]!r}."
            raise CorpusError(message, "Give the columns names of their own.", path=self.path, line=first[0])
        if tuple(names[-2:]) == ONE_ANNOTATOR:
            rows = ((line, without_others(cells, len(names))) for line, cells in rows)
        known = len(self.headerless)
        has_more = bare and (known > 2 or (known == 2 and file_kind(self.path) in TABS))
        for line, cells in chain([first], rows) if bare else rows:
            if len(cells) < len(names) or (len(cells) > len(names) and not has_more):
                message = f"{counted(len(cells), 'column')} where there should be {len(names)}."
                advice = f"Correct the line{', or name the columns in the first row' if bare else ''}."
                if len(first[1]) == 1 and tuple(names) == _SIDES:
                    advice = "Name the translations with --target FILE, or write them behind a tab in the same line."
                yield line, CorpusError(message, advice, path=self.path, line=line)
            else:
                yield line, dict(zip(names, cells, strict=False))

    def _names(self, first: Sequence[str]) -> tuple[Sequence[str], bool]:
        """Returns the names of the columns, and whether the first row is data."""
        if self.numbered and not self.numbered <= set(first):
            return [str(number) for number in range(1, len(first) + 1)], True
        bare = bool(self.headerless) and not self.expected & set(first)
        return self.headerless if bare else first, bare

    def _check_languages(self, line: int, cells: Sequence[str]) -> None:
        """Refuses a first row such as `de`, `en`: it names languages, and would be scored as a translation."""
        if len(self.headerless) == 2 == len(cells) and all(map(_LANGUAGE.fullmatch, cells)):
            source, target = cells
            advice = (
                f"Name the columns with --columns source={source},target={target}, or, if that is a pair, with "
                "--columns source=1,target=2."
            )
            raise CorpusError(f"{source!r} and {target!r} look like a header row.", advice, path=self.path, line=line)


def without_others(cells: list[str], columns: int) -> list[str]:
    """Returns a row of GLUE's SNLI without labels for which its header has no columns.

    Of the pairs in its training part, some have the labels of five annotators under a header for that of one. Those are
    told by their gold label, the last cell: the label of three or more of the five, or `-` (Bowman et al. 2015).

    Args:
        cells: the row.
        columns: number of columns in the header, of which the last two are for labels.
    """
    votes, gold = cells[columns - 2 : -1], cells[-1]
    is_of_five = len(votes) == 5 and (gold == "-" or votes.count(gold) >= 3)
    return [*cells[: columns - 1], gold] if is_of_five else cells


@dataclass(frozen=True)
class HubRows:
    """A data set of the Hugging Face hub, a local folder of data files or a single one, by `datasets`.

    Args:
        dataset: name with a configuration after a colon, or a folder or file, as in `HubCorpus`.
        split: part of the data set.
        offline: never ask the hub.
    """

    dataset: str
    split: str
    offline: bool = False

    @property
    def name(self) -> str:
        """Name, configuration and split of the data set, joined by colons; of a file, its name without its ending."""
        return self._corpus.name

    def class_names(self, column: str) -> tuple[str, ...]:
        """Returns the names that the data set gives to the numbers of a column, as `HubCorpus.class_names` does."""
        return self._corpus.class_names(column)

    @cached_property
    def _corpus(self) -> HubCorpus:
        return HubCorpus(self.dataset, "", self.split, offline=self.offline)

    def __iter__(self) -> Iterator[TaskRow]:
        """Reads the rows from the start; errors as in `HubCorpus`."""
        corpus = self._corpus
        return (TaskRow(cells, corpus.place, None, number) for number, cells in enumerate(corpus.rows(), 1))


@dataclass(frozen=True)
class LineRows:
    """Text files side by side, line by line: the column of a file is its place, from 1.

    Args:
        paths: paths of the files, also `.gz`, all of the same length.
    """

    paths: tuple[str | Path, ...]

    @property
    def name(self) -> str:
        """Names of all files, without their endings, joined by plus signs."""
        return "+".join(distinct_names([file_stem(path) for path in self.paths], self.paths))

    def __iter__(self) -> Iterator[TaskRow]:
        """Reads the rows from the start.

        Raises:
            CorpusError: if one file ends before the others; also as in `open_text`.
        """
        for number, lines in enumerate(zip_longest(*map(open_text, self.paths)), 1):
            if None in lines:
                advice = "Line N of one file must belong to line N of the others."
                short = self.paths[lines.index(None)]
                raise CorpusError(f"ends before line {number}, unlike {self.name}.", advice, path=short, line=number)
            cells = {str(column): line.text for column, line in enumerate(lines, 1)}
            yield TaskRow(cells, str(self.paths[0]), number, number)


# Rows that can be read any number of times; what is wrong with a single one is yielded, not raised.
RowSource = FileRows | HubRows | LineRows


def file_of(rows: RowSource) -> str | None:
    """Returns the path of the single file that rows come from; None for others."""
    path = rows.path if isinstance(rows, FileRows) else rows.dataset if isinstance(rows, HubRows) else ""
    return str(path) if Path(path).is_file() else None
