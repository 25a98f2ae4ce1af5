"""A table of a paper, with the numbers of our runs beside the published ones."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from headlens.errors import read_errors
from headlens.files import read_csv
from headlens.nested_text import conform
from headlens.pages.formatting import NOTHING, escaped
from headlens.pages.page_tables import Cell, Column, PageTable

_NAMED = re.compile(r"\{([^{}]*)\}")
COMPARISON_COLUMNS = ["table", "row", "column", "published", "ours", "ci_low", "ci_high"]


@dataclass(frozen=True)
class ComparedColumn:
    """A column of a paper's table, and where the numbers of our run for it are.

    Args:
        name: as the table has it.
        value: a column of the file of the table, or a text of several, such as `{heads_encoder}/{heads_cross}`.
        where: cells of the rows of the file that count, by column; an empty text for an empty cell.
        pick: of several rows the `first`, the one with the `largest` value, or the `mean` of their values.
        scale: what our numbers are multiplied by, such as 100 where the paper has percents.
        digits: decimals.
        interval: whether the file's interval is one of this value.
    """

    name: str
    value: str
    where: Mapping[str, Any] = field(default_factory=dict)
    pick: Literal["first", "largest", "mean"] = "first"
    scale: float = 1.0
    digits: int = 1
    interval: bool = True


@dataclass(frozen=True)
class ComparedRow:
    """A row of a paper's table.

    Args:
        label: name of the row.
        where: cells of the rows of the file that are about it, by column.
        published: the paper's cells, by column; without those that are not known.
    """

    label: str
    where: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparedTable:
    """A table of a paper.

    Args:
        title: what it shows, and where in the paper it is.
        step: the run that has our numbers.
        file: of that run.
        columns, rows: its cells.
    """

    title: str
    step: str
    file: str
    columns: tuple[ComparedColumn, ...]
    rows: tuple[ComparedRow, ...]

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> ComparedTable:
        """Reads a table from a recipe; a ValueError says what is wrong with it."""
        table: ComparedTable = conform(spec, cls, "a table")
        return table

    def compared(self, folder: Path) -> pd.DataFrame:
        """Returns columns `COMPARISON_COLUMNS`, a row for each cell of the paper's table.

        Args:
            folder: of the run; what it does not have stays empty.
        """
        path = folder / self.file
        with read_errors(path, f"does not have what {self.title!r} asks for", "Mend the table of the recipe."):
            frame = read_csv(path) if path.is_file() else pd.DataFrame()
            cells = [self._cell(frame, row, column) for row in self.rows for column in self.columns]
        return pd.DataFrame(cells, columns=COMPARISON_COLUMNS)

    def _cell(self, frame: pd.DataFrame, row: ComparedRow, column: ComparedColumn) -> dict[str, Any]:
        published = row.published.get(column.name)
        cell = {"table": self.title, "row": row.label, "column": column.name, "published": published}
        cell |= dict.fromkeys(("ours", "ci_low", "ci_high"))
        rows = _matching(frame, {**row.where, **column.where})
        if rows.empty:
            return cell
        if "{" in column.value:
            # Counts stand without decimals.
            texts = {str(k): _text(v, 0) if isinstance(v, float) else str(v) for k, v in rows.iloc[0].items()}
            # Names alone: a recipe is somebody's file, and Python's formats can ask for any width and attribute.
            ours = _NAMED.sub(lambda name: texts[name[1]], column.value)
            return cell | {"ours": ours.replace(f"/{NOTHING}", "")}
        values = rows[column.value].astype(float)
        if column.pick == "mean":
            return cell | {"ours": float(values.mean()) * column.scale}
        chosen = rows.iloc[int(values.argmax()) if column.pick == "largest" else 0]
        sources = {"ours": column.value} | ({"ci_low": "ci_low", "ci_high": "ci_high"} if column.interval else {})
        return cell | {
            name: float(chosen[source]) * column.scale
            for name, source in sources.items()
            if source in chosen and not pd.isna(chosen[source])
        }

    def lines(self, compared: pd.DataFrame, ours: str = "ours") -> list[dict[str, str]]:
        """Returns the table for readers: published cells beside ours, a mapping for each row.

        Args:
            compared: the result of `compared`.
            ours: the word for our numbers in the names of columns.
        """
        by_row: dict[str, dict[str, str]] = {row.label: {"": row.label} for row in self.rows}
        digits = {column.name: column.digits for column in self.columns}
        for cell in compared.to_dict("records"):
            line, name = by_row[str(cell["row"])], str(cell["column"])
            line[f"{name}, paper"] = _text(cell["published"], digits[name])
            ends = [_text(cell[end], digits[name]) for end in ("ci_low", "ci_high")]
            interval = "" if NOTHING in ends else f" [{', '.join(ends)}]"
            line[f"{name}, {ours}"] = _text(cell["ours"], digits[name]) + interval
        # Rows and columns without any number are left out.
        lines = [line for line in by_row.values() if set(line.values()) - {line[""], NOTHING}]
        kept = {name for name in (lines[0] if lines else {}) if any(line[name] != NOTHING for line in lines)}
        kept |= {f"{name}, {ours}" for name in digits if f"{name}, paper" in kept}
        return [{name: text for name, text in line.items() if name in kept} for line in lines]


def comparison_markdown(tables: Sequence[tuple[str, Sequence[Mapping[str, str]]]]) -> str:
    """Writes tables of `ComparedTable.lines` under their titles, for `comparison.md`."""
    parts = []
    for title, lines in tables:
        columns = tuple(Column(name, numeric=number > 0) for number, name in enumerate(lines[0]))
        rows = tuple(tuple(Cell(line[column.name]) for column in columns) for line in lines)
        parts.append(f"## {escaped(title)}\n\n{PageTable(title, columns, rows).markdown()}\n")
    return "\n".join(parts)


def _matching(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Returns the rows of a table that have the cells of `where`."""
    for name, value in where.items():
        if name not in frame:
            return frame.iloc[:0]
        cells = frame[name]
        if value == "":
            frame = frame[cells.isna()]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            close = pd.to_numeric(cells, errors="coerce").map(lambda cell, v=value: math.isclose(cell, v, rel_tol=1e-9))
            frame = frame[close.astype(bool)]
        else:
            frame = frame[cells.astype(str).str.casefold() == str(value).casefold()]
    return frame


def _text(cell: Any, digits: int) -> str:
    if pd.isna(cell):
        return NOTHING
    return cell if isinstance(cell, str) else f"{float(cell):.{digits}f}"
