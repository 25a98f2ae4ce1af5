"""Tables, which write themselves to the page, the console and Markdown: cells as text, and their sort keys."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from headlens.pages.formatting import (
    DIFFERENCE,
    MOST_DIGITS,
    difference_text,
    digits_of,
    escaped,
    markdown_lines,
    number_text,
)
from headlens.visible_text import visible_text

MOST_CELLS = 20_000  # of one table: about 0.8 MB of HTML
NARROW = 6  # columns that are seen at once
OPEN_ROWS = 400  # longer tables are shown when they are asked for
# `<-8` and `>8` stand before and behind the offsets
_ORDERED = re.compile(r"([<>]?)([-+]?\d+(?:\.\d+)?)")
_END = re.compile(r"_(ci_)?(low|high)$")  # of an interval


class Interval(NamedTuple):
    """A number with its confidence interval and what it is compared with, as places on a line from 0 to 1."""

    low: float
    value: float
    high: float
    baseline: float


@dataclass(frozen=True)
class Cell:
    """The text of a cell; `key` is the number that it is sorted by where that is not the text.

    `numbers` are the lower end, the value and the upper end of an interval: the value is written as its ends are.
    """

    text: str
    key: str = ""
    interval: Interval | None = None
    numbers: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Column:
    """Header of a table column: its name, and whether its cells hold numbers or sort as numbers do."""

    name: str
    numeric: bool = False


@dataclass(frozen=True)
class PageTable:
    """A table; the page writes it as HTML, in `templates/report.html`.

    Args:
        title: its heading.
        columns: heads.
        rows: cells, one for each column.
        about: what it shows, in a sentence or two.
        remark: what it does not show.
        is_open: whether it can be seen before it is asked for.
        same: names and cells of columns that were left out because they are the same in every row.
        name: what the table is, where its title says what was found, too: its file is named after it.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    about: str = ""
    remark: str = ""
    is_open: bool = True
    same: tuple[tuple[str, Cell], ...] = ()
    name: str = ""

    def narrowed(self) -> PageTable:
        """Returns the table without the columns that are the same in every row, which go to `same`, where it is wide.

        Nobody has to scroll past them to the columns that tell rows apart. Cells with pictures stay.
        """
        columns = list(zip(*self.rows, strict=True))
        alike = {n for n, cells in enumerate(columns) if len({*cells}) == 1 and cells[0].text and not cells[0].interval}
        if len(self.rows) < 2 or len(columns) <= NARROW or len(alike) == len(columns):
            return self
        return replace(self.without(alike), same=tuple((self.columns[n].name, columns[n][0]) for n in alike))

    def without(self, places: Collection[int]) -> PageTable:
        """Returns the table without the columns at some places."""
        kept = [n for n in range(len(self.columns)) if n not in places]
        rows = tuple(tuple(row[n] for n in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[n] for n in kept), rows=rows)

    def console(self) -> Table:
        """Returns the table for the terminal, in which nothing is read as markup or as a command."""
        layout: dict[str, Any] = {"box": box.SIMPLE_HEAD, "title_justify": "left"}
        table = Table(title=Text(visible_text(self.title, "")), pad_edge=False, padding=(0, 1, 0, 0), **layout)
        for column in self.columns:
            table.add_column(Text(visible_text(column.name, "")), justify="right" if column.numeric else "left")
        for row in self.rows:
            table.add_row(*(Text(visible_text(cell.text, "")) for cell in row))
        return table

    def markdown(self) -> str:
        """Returns the lines of the table in Markdown, in which names and cells are plain text."""
        names, marks = zip(*((escaped(c.name), "---:" if c.numeric else "---") for c in self.columns), strict=True)
        return "\n".join(markdown_lines([names, marks, *([escaped(cell.text) for cell in row] for row in self.rows)]))


def difference_cell(row: Mapping[Any, Any], prefix: str = "", *, digits: int = 3) -> Cell:
    """Returns the cell of a paired difference, its interval and p-value, sorted by the difference; empty for NaN.

    Args:
        row: with the columns `DIFFERENCE` and `p_holm`, as far as they are known.
        prefix: of the names of these columns, but not of `p_holm`.
        digits: as for `difference_text`.
    """
    value, *more = (float(row.get(f"{prefix}{name}", math.nan)) for name in DIFFERENCE)
    p_holm = float(row.get("p_holm", math.nan))
    text = difference_text(value, *more, p_holm=p_holm, digits=digits)
    return Cell("") if math.isnan(value) else Cell(text, repr(value))


def summary_table(title: str, rows: Sequence[Mapping[str, object]] | pd.DataFrame) -> Table:
    """Returns a short table for the terminal, with one column per key of the first row that is not empty throughout.

    Numbers stand right, floats with three decimals or as many as the range of their column asks for. Nothing in a cell
    is read as markup, so `[CLS]` or a model called `[bold]` appears as it is. Missing values are empty cells.
    """
    values = _filled(rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows)
    heads = (
        Column(str(name), all(_is_missing(v) or _is_number(v) for v in column_values))
        for name, column_values in values.items()
    )
    cells = zip(*([Cell(text) for text in _texts(column_values)] for column_values in values.values()), strict=True)
    return PageTable(title, tuple(heads), tuple(cells)).console()


def page_table(
    title: str,
    records: Sequence[Mapping[str, Any]],
    about: str = "",
    compared: Sequence[str] = (),
    name: str = "",
) -> PageTable:
    """Returns a short table of a page, from records that have the same keys; a value may be a `Cell`.

    Columns that are empty throughout are left out. Cells of numbers have as many decimals as the range of their column
    asks for, or that of all columns that are `compared` with each other.
    """
    values = _filled(records)
    together = _same_digits([cell for column in compared for cell in values.get(column, ())])
    for column in compared:
        if column in values:
            values[column], together = together[: len(records)], together[len(records) :]
    return replace(_table(title, values, about=about), name=name)


def csv_table(frame: pd.DataFrame, title: str, file: str, by: str = "", most_cells: int = MOST_CELLS) -> PageTable:
    """Returns a table of a run for a page, as much of it as the page can hold.

    Args:
        frame: the table.
        title: heading.
        file: name of the CSV file that holds all of it.
        by: the column whose smallest values are kept where not all rows fit; empty for the first rows.
        most_cells: how many fit.
    """
    filled = frame.dropna(axis="columns", how="all")
    shown = filled[_beside([*filled])]
    most = max(1, most_cells // max(1, len(shown.columns)))
    remarks = []
    if len(frame) > most:
        ordered = shown.sort_values(by, kind="stable") if by in shown else shown
        which = f"with the smallest {by}" if by in shown else "at the beginning of the table"
        remarks.append(f"Only {most:,} rows are shown, those {which}; all {len(frame):,} are in {file}.")
        shown = ordered.iloc[:most]
    if empty := [str(name) for name in frame.columns if name not in shown]:
        remarks.append(f"Empty columns are left out: {', '.join(empty)}.")
    return _table(title, {str(name): shown[name].tolist() for name in shown}, remark=" ".join(remarks))


def _table(title: str, values: Mapping[str, Sequence[Any]], about: str = "", remark: str = "") -> PageTable:
    """Returns the table of some columns of values."""
    columns = [_column(name, column) for name, column in values.items()]
    rows = tuple(map(_beside_interval, zip(*(cells for _, cells in columns), strict=True)))
    return PageTable(title, tuple(head for head, _ in columns), rows, about, remark, len(rows) <= OPEN_ROWS)


def _beside_interval(row: Sequence[Cell]) -> tuple[Cell, ...]:
    """Returns a row in which a value has the decimals of its interval: else it could be rounded out of it."""
    cells = list(row)
    for place, (low, value, high) in [(n, cell.numbers) for n, cell in enumerate(row) if cell.numbers is not None]:
        forms = {number_text(value, digits): digits for digits in range(3, MOST_DIGITS + 1)}
        values = [n for n, cell in enumerate(row) if cell.key == repr(value) and cell.text in forms]
        digits = max([digits_of((low, value, high)), *(forms[cells[n].text] for n in values)])
        for n in values:
            cells[n] = replace(cells[n], text=number_text(value, digits))
        # Words may stand before the interval.
        old, new = (_interval_text(low, high, d) for d in (digits_of((low, value, high)), digits))
        cells[place] = replace(cells[place], text=cells[place].text.replace(old, new))
    return tuple(cells)


def _interval_text(low: float, high: float, digits: int) -> str:
    # The fewest decimals are those of numbers that may be large, too.
    least = digits == digits_of([])
    return " to ".join(number_text(end, None if least else digits) for end in (low, high))


def _filled(records: Sequence[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """Returns the columns that are not empty throughout; all columns where all are."""
    values = {name: [record.get(name) for record in records] for name in (records[0] if records else ())}
    texts = {
        name: [v.text if isinstance(v, Cell) else cell_text(v) for v in column_values]
        for name, column_values in values.items()
    }
    return {name: column_values for name, column_values in values.items() if any(texts[name])} or values


def _beside(names: Sequence[str]) -> list[str]:
    """Returns names of columns with the ends of intervals (`x_ci_low`, `x_low`) right behind their values (`x`)."""
    places = {name: place for place, name in enumerate(names)}

    def place(name: str) -> tuple[int, bool]:
        value = _END.sub("", name)
        return places.get(value, places[name]), value != name and value in places

    return sorted(names, key=place)


def _texts(column: Sequence[object]) -> list[str]:
    """Formats the values of a column of a short table."""
    digits = digits_of([float(v) for v in column if isinstance(v, Real) and not isinstance(v, Integral)])
    return [cell_text(value, digits) for value in column]


def cell_text(value: object, digits: int = 3) -> str:
    """Formats a value for a cell: floats with some decimals, booleans as yes or no, missing values empty."""
    if _is_missing(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{float(value):.{digits}f}"
    return str(value)


def number_cell(value: float) -> Cell:
    """Returns a cell with a number, rounded, that is sorted by all its digits; empty for NaN."""
    return Cell("") if math.isnan(value) else Cell(number_text(value), repr(float(value)).replace("inf", "Infinity"))


def interval_cell(numbers: tuple[float, float, float, float], ends: tuple[float, float] | None = None) -> Cell:
    """Returns a cell with an interval in words, and as a picture where it lies between the ends of the picture.

    Its decimals follow its width (`digits_of`), and so do those of its value where that is in the same row of a table.

    Args:
        numbers: its lower end, the value, its upper end, what the value is compared with.
        ends: of the picture; None for no picture.
    """
    low, value, high, _ = map(float, numbers)
    if math.isnan(low) or math.isnan(high):
        return Cell("")
    places = [(number - ends[0]) / (ends[1] - ends[0]) for number in numbers] if ends else [math.nan]
    picture = Interval(*places) if all(0 <= place <= 1 for place in places) else None
    return Cell(_interval_text(low, high, digits_of((low, value, high))), repr(low), picture, (low, value, high))


def picture_ends(numbers: npt.ArrayLike) -> tuple[float, float]:
    """Returns the smallest and the largest of the numbers of pictures of intervals, as far as they are finite."""
    values = np.asarray(numbers, np.float64)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    return low, high if high > low else low + 1.0


def _column(name: str, values: Sequence[Any]) -> tuple[Column, list[Cell]]:
    """Returns the header and the cells of a column, by what its values are: cells, numbers, offsets or words."""
    if any(isinstance(value, Cell) for value in values):
        return Column(name, numeric=all(cell.key or not cell.text for cell in values)), _same_digits(values)
    present = [value for value in values if not _is_missing(value)]
    if present and all(map(_is_number, present)):
        integers = all(math.isfinite(v) and v == int(v) for v in present)
        as_cell = (lambda value: Cell(str(int(value)))) if integers else number_cell
        cells = [Cell("") if _is_missing(value) else as_cell(value) for value in values]
        return Column(name, numeric=True), cells if integers else _same_digits(cells)
    words = [cell_text(value) for value in values]
    matches = [_ORDERED.fullmatch(word) for word in words]
    if present and all(match or not word for match, word in zip(matches, words, strict=True)):
        # `<-8` sorts half a step before -8, `>8` half a step behind 8.
        steps = {"<": -0.5, ">": 0.5}
        keys = [repr(float(match[2]) + steps[match[1]]) if match and match[1] else "" for match in matches]
        return Column(name, numeric=True), list(map(Cell, words, keys))
    return Column(name), list(map(Cell, words))


def _same_digits(cells: Sequence[Cell]) -> list[Cell]:
    """Returns cells of numbers, as `number_cell` makes them, with as many decimals as their range asks for."""
    numbers = [float(cell.key) if cell.key else math.nan for cell in cells]
    if any(cell.text != number_cell(number).text for cell, number in zip(cells, numbers, strict=True)):
        return list(cells)  # of another form
    digits = digits_of(numbers)
    if digits == digits_of([]):
        return list(cells)
    return [replace(c, text=number_text(n, digits)) if c.text else c for c, n in zip(cells, numbers, strict=True)]


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, Real) and math.isnan(value))
