"""Tables of a page: cells as text, and what they are sorted by."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headlens.pages.console import cell_text
from headlens.runs.reading import RecordedRun

MOST_CELLS = 20_000  # of one table: about 0.8 MB of HTML
OPEN_ROWS = 400  # longer tables are shown when they are asked for
# `<-8` and `>8` stand before and behind the offsets
_ORDERED = re.compile(r"([<>]?)([-+]?\d+(?:\.\d+)?)")


class Interval(NamedTuple):
    """A number with its confidence interval and what it is compared with, as places on a line from 0 to 1."""

    low: float
    value: float
    high: float
    baseline: float


@dataclass(frozen=True)
class Cell:
    """What stands in a cell; `key` is what it is sorted by where that is not the text."""

    text: str
    key: str = ""
    interval: Interval | None = None


@dataclass(frozen=True)
class Column:
    """Header of a table column: its name, and whether its cells hold numbers or sort as numbers do."""

    name: str
    numeric: bool = False


@dataclass(frozen=True)
class PageTable:
    """A table of a page.

    Args:
        title: its heading.
        columns: heads.
        rows: cells, one for each column.
        about: what it shows, in a sentence or two.
        remark: what it does not show.
        is_open: whether it can be seen before it is asked for.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    about: str = ""
    remark: str = ""
    is_open: bool = True


def tables_of(runs: Sequence[RecordedRun], name: str) -> list[tuple[RecordedRun, pd.DataFrame]]:
    """The table of that name of every run in which it has rows."""
    return [(run, run.tables[name]) for run in runs if name in run.tables and len(run.tables[name])]


def run_label(run: RecordedRun, runs: Sequence[RecordedRun]) -> dict[str, Any]:
    """The first cell of a row: the label of its run, where there are several."""
    return {"run": run.label} if len(runs) > 1 else {}


def page_table(title: str, records: Sequence[Mapping[str, Any]], about: str = "") -> PageTable:
    """A short table from records that have the same keys; a value may be a `Cell`."""
    names = list(records[0]) if records else []
    made = [_column(name, [record[name] for record in records]) for name in names]
    rows = tuple(zip(*(cells for _, cells in made), strict=True))
    return PageTable(title, tuple(column for column, _ in made), rows, about, is_open=len(rows) <= OPEN_ROWS)


def csv_table(frame: pd.DataFrame, title: str, file: str, by: str = "", most_cells: int = MOST_CELLS) -> PageTable:
    """A table of a run, as much of it as a page can hold.

    Args:
        frame: the table.
        title: heading.
        file: name of the CSV file that holds all of it.
        by: the column whose smallest values are kept where not all rows fit; empty for the first rows.
        most_cells: how many fit.
    """
    kept = frame.dropna(axis="columns", how="all")
    most = max(1, most_cells // max(1, len(kept.columns)))
    remarks = []
    if len(frame) > most:
        ordered = kept.sort_values(by, kind="stable") if by in kept else kept
        which = f"with the smallest {by}" if by in kept else "at its beginning"
        remarks.append(f"Only the {most:,} rows {which}; all {len(frame):,} are in {file}.")
        kept = ordered.iloc[:most]
    if empty := [str(name) for name in frame.columns if name not in kept]:
        remarks.append(f"Empty columns are left out: {', '.join(empty)}.")
    made = [_column(str(name), kept[name].tolist()) for name in kept]
    rows = tuple(zip(*(cells for _, cells in made), strict=True))
    columns = tuple(column for column, _ in made)
    return PageTable(title, columns, rows, remark=" ".join(remarks), is_open=len(rows) <= OPEN_ROWS)


def number_text(value: float) -> str:
    """A number with three decimals, or in powers of ten where those would not show it."""
    if 0 < abs(value) < 0.0005:
        return f"{value:.1e}"
    return f"{value + 0.0:.3f}" if abs(value) < 10_000 else f"{value:.4g}"


def interval_cell(numbers: tuple[float, float, float, float], ends: tuple[float, float]) -> Cell:
    """An interval in words, and as a picture that runs from one end to the other where it lies between them.

    Args:
        numbers: its lower end, the value, its upper end, what the value is compared with.
        ends: of the picture.
    """
    low, _, high, _ = numbers
    if math.isnan(low) or math.isnan(high):
        return Cell("")
    places = [(number - ends[0]) / (ends[1] - ends[0]) for number in numbers]
    shown = Interval(*places) if all(0 <= place <= 1 for place in places) else None
    return Cell(f"{number_text(low)} to {number_text(high)}", repr(low), shown)


def _column(name: str, values: Sequence[Any]) -> tuple[Column, list[Cell]]:
    if any(isinstance(value, Cell) for value in values):
        return Column(name, numeric=all(_is_key(c) for c in values)), list(values)
    present = [value for value in values if not _is_missing(value)]
    if present and all(isinstance(v, int | float | np.number) and not isinstance(v, bool | np.bool_) for v in present):
        whole = all(math.isfinite(v) and v == int(v) for v in present)
        return Column(name, numeric=True), [_number(value, whole=whole) for value in values]
    words = [cell_text(value) for value in values]
    keys = [_ORDERED.fullmatch(word) for word in words]
    if present and all(key or not word for key, word in zip(keys, words, strict=True)):
        return Column(name, numeric=True), [_ordered(w, k) for w, k in zip(words, keys, strict=True)]
    return Column(name), [Cell(word) for word in words]


def _is_key(cell: Cell) -> bool:
    return not cell.text or bool(cell.key)


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _number(value: Any, *, whole: bool) -> Cell:
    if _is_missing(value):
        return Cell("")
    if whole:
        return Cell(str(int(value)))
    if math.isinf(value):
        return Cell(str(value), "Infinity" if value > 0 else "-Infinity")
    return Cell(number_text(value), repr(float(value)))


def _ordered(word: str, key: re.Match[str] | None) -> Cell:
    if key is None or not key[1]:
        return Cell(word)
    return Cell(word, repr(float(key[2]) + (-0.5 if key[1] == "<" else 0.5)))
