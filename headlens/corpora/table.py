"""Tables (tabs, commas, JSON): their rows, the text in their cells, and corpora of one or two of their columns."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from headlens.corpora.chat import ChatTemplate, are_messages
from headlens.corpora.sentence import CheckedCorpus, Example, Sentence
from headlens.corpora.text import NamedFile, check_length, file_kind, full_examples, open_text, plain_sentence
from headlens.errors import CorpusError, MissingColumnError, counted
from headlens.nested_text import holds_texts, looks_nested, nested_value, parse_json

# Parts of the messages of the csv module, and what they mean.
CSV_FAULTS = {
    "unexpected end of data": "a quotation mark that is never closed",
    "expected after": "text after a closing quotation mark",
    "field larger": "a cell of more than 131,072 characters, or a quotation mark that is not closed",
    "new-line character": "a carriage return outside of quotes",
}
Row = tuple[int, Mapping[str, Any] | CorpusError]
MOST_NAMES, MOST_CHARACTERS, MOST_LEVELS = 30, 40, 8
_QUOTED_NAME = re.compile(r'"\w+"')
_BYTES = re.compile(r"""(?:(?:np|numpy)\.bytes_\()?b(?P<mark>['"]).*(?P=mark)\)?""", re.DOTALL)
_LOOKED_AT, _NEARLY_ALL = 50, 0.9
_MISSING = object()  # cell of a column that a row does not have; None is a cell that is null
_SHOWN = object()  # cell within a cell that holds a list or mapping, but not as JSON
AS_JSON = (
    "Write rows as JSON lines: frame.to_json('data.jsonl', orient='records', lines=True); "
    "or such cells as JSON: frame[column] = frame[column].map(json.dumps)."
)
TABLES = (".tsv", ".csv", ".jsonl", ".ndjson")


@dataclass(frozen=True)
class TableCorpus(NamedFile, CheckedCorpus):
    """A UTF-8 table (`.tsv`, `.csv`) or one JSON object per line (`.jsonl`); also `.gz`.

    Tabs separate as in `tab_rows`; commas with quoting, where a cell may span lines. A `.csv` may have tabs or
    semicolons, see `separated_rows`. The first row names the columns. If it does not name those asked
    for and they are numbers, the table has no header and columns count from 1: parallel text as SOURCE<tab>TARGET has
    the columns `1` and `2`.

    Args:
        path: the file.
        column: the column of sentences; in JSON also a path (`translation.en`).
        target_column: the column of translations.
        chat: how conversations are written as text.
    """

    column: str
    target_column: str | None = None
    chat: ChatTemplate | None = None

    def readings(self) -> Iterator[Example | CorpusError]:
        """Reads the rows from the start; rows with a blank or null cell are left out (pairs so lost are logged).

        What is wrong with a row is its length or its JSON, with file and line.

        Raises:
            CorpusError: with file and line, for an unknown column.
        """
        return cell_examples(self._rows(), self.column, self.target_column, self.path, self.name, self.chat)

    def _rows(self) -> Iterator[Row]:
        return refused_bytes(self._written_rows(), self.path)

    def _written_rows(self) -> Iterator[Row]:
        kind = file_kind(self.path)
        if kind not in TABLES:
            advice = f"Name it {', '.join(TABLES)}, according to its format."
            raise CorpusError(f"a table of unknown type {kind!r}.", advice, path=self.path)
        columns = [column for column in (self.column, self.target_column) if column is not None]
        if kind == ".tsv":
            return self._named_rows(tab_rows(self.path), columns)
        if kind == ".csv":
            return self._named_rows(separated_rows(self.path, {*columns}, len(columns)), columns)
        return json_rows(self.path)

    def _named_rows(self, rows: Iterator[tuple[int, list[str]]], columns: Sequence[str]) -> Iterator[Row]:
        first = next(rows, None)
        if first is None:
            return
        names = first[1]
        if not set(columns) <= set(names) and all(map(str.isdecimal, columns)):  # the first row is no header
            names = [str(number) for number in range(1, len(names) + 1)]
            rows = chain([first], rows)
        for column in columns:
            if (copies := names.count(column)) == 1:
                continue
            message, advice = f"{copies} columns are called {column!r}.", "Give the columns names of their own."
            if not copies:
                message = f"there is no column {column!r}."
                advice = f"Columns: {list_names(names)}. Without a header, name them 1, 2, …"
            raise CorpusError(message, advice, path=self.path, line=first[0])
        for line, cells in rows:
            if len(cells) != len(names):
                message = f"{counted(len(cells), 'column')} where the first row has {len(names)}."
                yield line, CorpusError(message, "Correct the line.", path=self.path, line=line)
            else:
                yield line, dict(zip(names, cells, strict=True))


def column_names(path: str | Path) -> str:
    """Lists the columns of a table for an error message: the cells of its first row, or the names in its JSON.

    Raises:
        CorpusError: for what is wrong with the first row.
    """
    kind = file_kind(path)
    if kind in (".tsv", ".csv"):
        rows = tab_rows(path) if kind == ".tsv" else separated_rows(path, set(), 2)
        names: Iterable[str] = next((cells for _, cells in rows), [])
    else:
        names = next((_names(row) for _, row in json_rows(path) if not isinstance(row, CorpusError)), ())
    return list_names(names)


def tab_rows(path: str | Path, quoted: AbstractSet[str] = frozenset()) -> Iterator[tuple[int, list[str]]]:
    """Yields lines and their cells between tabs; blank lines are skipped.

    Quotation marks are text, as in the files of GLUE, but where only a writer of CSV (pandas) can have put them: around
    a cell within which they are doubled, and around all cells of a file whose first row has all its names in them.

    Args:
        path: the file.
        quoted: columns of files in which every cell that stands in quotation marks has them from a writer.

    Raises:
        CorpusError: as in `open_text`, and where all cells are quoted as in `comma_rows`.
    """
    with closing(open_text(path)) as lines:
        first = next((line for line in lines if line.text.strip()), None)
        if first is not None and all(map(_QUOTED_NAME.fullmatch, first.text.split("\t"))):
            yield from comma_rows(path, "\t")
        elif first is not None:
            every = not quoted.isdisjoint(first.text.split("\t"))
            for line in chain([first], lines):
                if line.text.strip():
                    yield line.number, [unquoted(c) if every or '""' in c[1:-1] else c for c in line.text.split("\t")]


def separated_rows(path: str | Path, names: AbstractSet[str], least: int) -> Iterator[tuple[int, list[str]]]:
    """Yields lines and cells of a `.csv`, whose first line tells what separates them: tabs, commas or semicolons.

    Those do that part off a column that is known. Where none do, and there are at least two columns, tabs do if there
    are any, and semicolons if there are too few commas. Tabs separate as in `tab_rows`.

    Args:
        path: the file.
        names: columns, some of which a header would have.
        least: number of columns that the table has at least; the text of a table of one may have any of the three.

    Raises:
        CorpusError: if it could be commas or semicolons; also as in `comma_rows`.
    """
    first = next(open_text(path), None)
    text = "" if first is None or not first.text.strip() else first.text
    cells = {mark: _cells(text, mark) for mark in ",\t;"}
    mark = next((mark for mark in cells if names & {*cells[mark]}), "")
    if not mark and least > 1:
        if len(cells["\t"]) == 1 and len(cells[","]) == len(cells[";"]) == least:
            advice = "Name the columns in the first row."
            raise CorpusError("commas or semicolons may separate its columns.", advice, path=path, line=1)
        in_semicolons = len(cells[","]) < least <= len(cells[";"])
        mark = "\t" if len(cells["\t"]) > 1 else ";" if in_semicolons else ","
    return tab_rows(path) if mark == "\t" else comma_rows(path, mark or ",")


def unquoted(cell: str) -> str:
    """Returns a cell without the quotation marks around it, doubled ones inside made single; others as they are."""
    inner = cell[1:-1]
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return inner.replace('""', '"') if is_quoted and '"' not in inner.replace('""', "") else cell


def _cells(text: str, separator: str) -> list[str]:
    """Returns the cells of a line, or none where one of them is too long."""
    try:
        return next(csv.reader([text], delimiter=separator), [])
    except csv.Error:
        return []


def comma_rows(path: str | Path, separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yields the line each row begins at and its cells between commas; a quoted cell may go on over several lines.

    Args:
        path: the file.
        separator: a character in place of commas.

    Raises:
        CorpusError: with the line: quotation marks that do not fit together; also as in `open_text`.
    """
    with closing(open_text(path)) as file:  # an error that is kept would keep the file open
        reader = csv.reader((f"{line.text}\n" for line in file), delimiter=separator, strict=True)
        start = 1
        try:
            for row in reader:
                if row:
                    yield start, row
                start = reader.line_num + 1
        except csv.Error as error:
            reason = next((meaning for part, meaning in CSV_FAULTS.items() if part in str(error)), str(error))
            advice = "Correct the row that begins here; a quotation mark inside a quoted cell is written twice."
            raise CorpusError(f"broken CSV: {reason}.", advice, path=path, line=start) from error


def json_rows(path: str | Path) -> Iterator[Row]:
    """Yields lines and the JSON object on each, or what is wrong with it; blank lines are skipped.

    Raises:
        CorpusError: as in `open_text`.
    """
    with closing(open_text(path)) as lines:
        for line in lines:
            if line.text.strip():
                try:
                    row = _parse_json(line.text, path, line.number)
                    if not isinstance(row, dict):
                        raise CorpusError("not a JSON object.", "Write {…} on every line.", path=path, line=line.number)
                    yield line.number, row
                except CorpusError as error:
                    yield line.number, error


def json_array(path: str | Path) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """Yields the objects of a JSON array with the lines they begin at, or of the array `data` in an object, without.

    Raises:
        CorpusError: with the line: broken JSON, or something other than an array of objects.
    """
    text = "\n".join(line.text for line in open_text(path))
    content = _parse_json(text, path)
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise CorpusError("not an array of objects.", "Write [{…}, {…}], or one object per line as .jsonl.", path=path)
    starts: Sequence[int | None] = [None] * len(rows) if isinstance(content, dict) else _starts(text)
    for number, (line, row) in enumerate(zip(starts, rows, strict=True)):
        if not isinstance(row, dict):
            raise CorpusError(f"element {number + 1} is not a JSON object.", "Write {…}.", path=path, line=line)
        yield line, row


def _parse_json(text: str, path: str | Path, line: int | None = None) -> Any:
    """Parses the JSON of a line of a file or, without `line`, of a whole file.

    Raises:
        CorpusError: with the line: broken JSON.
    """
    try:
        return parse_json(text)
    except ValueError as error:  # also numbers of thousands of digits, and text nested without end
        place = getattr(error, "lineno", None) if line is None else line
        reason = getattr(error, "msg", str(error))
        raise CorpusError(f"broken JSON: {reason}.", "Correct the line.", path=path, line=place) from error


def _starts(text: str) -> list[int]:
    """Finds the lines at which the elements of an array begin, by decoding them once more, one by one."""
    decoder, lines, line, last, place = json.JSONDecoder(), list[int](), 1, 0, text.index("[") + 1
    # Between elements there are white space and commas.
    while text[place := next(i for i in count(place) if text[i] not in " \t\r\n,")] != "]":
        line += text.count("\n", last, place)
        lines.append(line)
        last = place
        _, place = decoder.raw_decode(text, place)
    return lines


def text_cell(
    row: Mapping[str, Any],
    column: str,
    path: str | Path,
    line: int | None = None,
    chat: ChatTemplate | None = None,
) -> str:
    """Returns the text of a column; empty where the cell is null.

    Args:
        row: cells by column; a cell may hold a row itself, also one that is written as JSON (`nested_value`).
        column: a name, or a path of names: `translation.de` is "Hallo" in {"translation": {"de": "Hallo"}}.
        path: file or data set, for errors.
        line: line in the file, for errors.
        chat: how conversations are written as text; None where there are none.

    Raises:
        CorpusError: no such column, or something other than text in it, also where that is written as text.
    """
    cell = _cell(row, column)
    if cell is None:
        return ""
    if chat is not None and are_messages(cell):
        return chat.text(cell, path, line)
    if cell is _MISSING:
        message, advice = f"there is no column {column!r}.", f"Columns: {list_names(_names(row))}."
    elif cell is _SHOWN:
        outer = column.partition(".")[0]
        message, advice = f"{outer!r} looks like a list or a mapping, but is not JSON.", AS_JSON
    elif not isinstance(cell, str):
        message = f"{column!r} holds {type(cell).__name__}, not text."
        advice = f"Choose a column of text: {list_names(_names(row))}."
        if are_messages(cell):
            message = f"{column!r} holds a conversation, not text."
            advice = "Name the model whose chat template writes it: --data-args chat=MODEL."
    elif any("\ud800" <= character <= "\udfff" for character in cell):
        message = f"{column!r} contains half a character (a lone surrogate)."
        advice = "Escapes such as \\ud83d come in pairs; write the character itself."
    elif holds_texts(cell):
        message = f"{column!r} holds a list or mapping written out as text."
        advice = "Choose a column of text; a part of a mapping is named like this: translation.de."
    else:
        check_length(cell, path, line)
        return cell
    raise (MissingColumnError if cell is _MISSING else CorpusError)(message, advice, path=path, line=line)


def refused_bytes(rows: Iterator[tuple[Any, Any]], path: str | Path) -> Iterator[tuple[Any, Any]]:
    """Yields rows; refuses a table with a column of texts that were written as Python shows bytes (`b'A dog.'`).

    Those are columns of which nearly all texts in the first rows, and at least two, are written so: a single text may
    begin with these letters.

    Args:
        rows: line and cells of every row, or what is wrong with it.
        path: file or data set, for errors.

    Raises:
        CorpusError: naming the column, and how it is written as text.
    """
    first: list[tuple[Any, Any]] = []
    broken: Exception | None = None
    try:
        first.extend(islice(rows, _LOOKED_AT))
    except Exception as error:  # what can be read comes first, as without looking ahead
        broken = error
    texts: dict[str, list[str]] = {}
    for _, cells in first:
        for column, cell in cells.items() if isinstance(cells, Mapping) else ():
            if isinstance(cell, str) and cell:
                texts.setdefault(str(column), []).append(cell)
    for column, column_texts in texts.items():
        if sum(_BYTES.fullmatch(cell) is not None for cell in column_texts) >= max(2, _NEARLY_ALL * len(column_texts)):
            raise CorpusError(
                f"{column!r} holds bytes as Python shows them (b'…'), not text.",
                f"Before the table is written: frame[{column!r}] = frame[{column!r}].str.decode('utf-8').",
                path=path,
            )
    yield from chain(first, rows)
    if broken is not None:
        raise broken


def has_cell(row: Mapping[str, Any], column: str) -> bool:
    """Whether a row has a column, or a cell at the end of a path such as `translation.de`."""
    return _cell(row, column) is not _MISSING


def _cell(row: Mapping[str, Any], column: str) -> Any:
    """Returns a cell, or why it has none; a column whose own name has dots goes before a path."""
    cell: Any = row
    for name in [column] if column in row else column.split("."):
        if isinstance(cell, str) and looks_nested(cell):
            try:
                cell = nested_value(cell)
            except ValueError:
                return _SHOWN
        if not isinstance(cell, Mapping) or name not in cell:
            return _MISSING
        cell = cell[name]
    return cell


def cell_examples(
    rows: Iterable[Row],
    column: str,
    target_column: str | None,
    path: str | Path,
    name: str,
    chat: ChatTemplate | None = None,
) -> Iterator[Example | CorpusError]:
    """Makes examples of the text in a column of sentences and, if named, a column of translations.

    Yields what is wrong with a row without such text.

    Args:
        rows: number, which becomes the id of the sentences, and cells of every row.
        column: the column of sentences.
        target_column: the column of translations.
        path: file or data set, for errors.
        name: name of the corpus, for the log of `full_examples`.
        chat: how conversations in the column of sentences are written as text.
    """

    def sentence(cells: Mapping[str, Any], cell: str, number: int) -> Sentence:
        text = text_cell(cells, cell, path, number, chat)
        return plain_sentence(text, str(number)) if chat is None else chat.sentence(text, str(number))

    def examples() -> Iterator[Example | CorpusError]:
        for number, cells in rows:
            if isinstance(cells, CorpusError):
                yield cells
                continue
            try:
                target = None if target_column is None else sentence(cells, target_column, number)
                yield Example(sentence(cells, column, number), target)
            except CorpusError as error:
                yield error

    return full_examples(examples(), name)


def list_names(names: Iterable[str]) -> str:
    """Lists names of columns for an error message: long names are cut, and so is a long list."""
    names = iter(names)
    labels = [_label(name) for name in islice(names, MOST_NAMES)]
    return ", ".join(labels) + (", …" if next(names, None) is not None else "") if labels else "none"


def _label(name: str) -> str:
    """Returns a name of a column for an error message, where a blank one must be seen."""
    if not name.strip():
        return "(one without a name)"
    return name if len(name) <= MOST_CHARACTERS else f"{name[:MOST_CHARACTERS]}…"


def _names(row: Mapping[str, Any], level: int = 1) -> Iterator[str]:
    """Yields the names of columns; where cells are rows themselves, the paths to their cells."""
    for name, value in row.items():
        if isinstance(value, Mapping) and level < MOST_LEVELS:
            yield from (f"{name}.{inner}" for inner in _names(value, level + 1))
        else:
            yield str(name)
