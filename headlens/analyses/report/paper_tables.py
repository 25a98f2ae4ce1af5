"""A table of a paper with our numbers beside the published ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from headlens.files import read_csv
from headlens.pages.formatting import escaped, markdown_lines

COMPARISON_COLUMNS = ["table", "row", "column", "published", "ours", "ci_low", "ci_high"]
_NOTHING = "–"


@dataclass(frozen=True)
class ComparedColumn:
    """A column of a paper's table, and where our numbers for it are.

    Args:
        name: as the table has it.
        value: a column of the file of the table, or a text of several, such as `{heads_encoder}/{heads_cross}`.
        where: rows of the file that count: their cells, by column; an empty text for an empty cell.
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
        label: what it is called.
        where: rows of the file that are about it.
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
        """From a recipe; what is missing or unknown in it raises a TypeError or KeyError."""
        columns = tuple(ComparedColumn(**own) for own in spec["columns"])
        rows = tuple(ComparedRow(**own) for own in spec["rows"])
        return cls(spec["title"], spec["step"], spec["file"], columns, rows)

    def compared(self, folder: Path) -> pd.DataFrame:
        """Columns `COMPARISON_COLUMNS`, a row for each cell of the paper's table.

        Args:
            folder: of the run; what it does not have stays empty.
        """
        path = folder / self.file
        found = read_csv(path) if path.is_file() else pd.DataFrame()
        cells = [self._cell(found, row, column) for row in self.rows for column in self.columns]
        return pd.DataFrame(cells, columns=COMPARISON_COLUMNS)

    def _cell(self, found: pd.DataFrame, row: ComparedRow, column: ComparedColumn) -> dict[str, Any]:
        own: dict[str, Any] = {"table": self.title, "row": row.label, "column": column.name}
        own |= {"published": row.published.get(column.name)}
        own |= dict.fromkeys(("ours", "ci_low", "ci_high"))
        rows = _matching(found, {**row.where, **column.where})
        if rows.empty:
            return own
        if "{" in column.value:
            return own | {"ours": column.value.format_map(_counts(rows.iloc[0])).replace(f"/{_NOTHING}", "")}
        values = rows[column.value].astype(float)
        if column.pick == "mean":
            return own | {"ours": float(values.mean()) * column.scale}
        chosen = rows.iloc[int(values.argmax()) if column.pick == "largest" else 0]
        sources = {"ours": column.value} | ({"ci_low": "ci_low", "ci_high": "ci_high"} if column.interval else {})
        return own | {
            name: float(chosen[source]) * column.scale
            for name, source in sources.items()
            if source in chosen and not pd.isna(chosen[source])
        }

    def lines(self, compared: pd.DataFrame, ours: str = "ours") -> list[dict[str, str]]:
        """The table as it is read: published cells beside ours, a mapping for each row.

        Args:
            compared: what `compared` gave.
            ours: what our numbers are called.
        """
        found: dict[str, dict[str, str]] = {row.label: {"": row.label} for row in self.rows}
        digits = {column.name: column.digits for column in self.columns}
        for cell in compared.to_dict("records"):
            own, name = found[str(cell["row"])], str(cell["column"])
            own[f"{name}, paper"] = _text(cell["published"], digits[name])
            own[f"{name}, {ours}"] = _text(cell["ours"], digits[name]) + _interval(cell, digits[name])
        # Rows and columns about which nobody says anything are left out.
        lines = [line for line in found.values() if set(line.values()) - {line[""], _NOTHING}]
        said = [name for name in (lines[0] if lines else {}) if any(line[name] != _NOTHING for line in lines)]
        ours_of = {f"{name}, paper": f"{name}, {ours}" for name in digits}
        kept = set(said) | {own for paper, own in ours_of.items() if paper in said}
        return [{name: text for name, text in line.items() if name in kept} for line in lines]


def comparison_markdown(tables: Sequence[tuple[str, Sequence[Mapping[str, str]]]]) -> str:
    """Tables under their titles, for `comparison.md`."""
    parts = []
    for title, lines in tables:
        names = list(lines[0])
        marks = ["---"] + ["---:"] * (len(names) - 1)
        rows = [names, marks, *([escaped(line[name]) for name in names] for line in lines)]
        parts.append(f"## {escaped(title)}\n\n" + "\n".join(markdown_lines(rows)) + "\n")
    return "\n".join(parts)


def _matching(found: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    for name, value in where.items():
        if name not in found:
            return found.iloc[:0]
        cells = found[name]
        if value == "":
            found = found[cells.isna()]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            near = pd.to_numeric(cells, errors="coerce").map(lambda cell, v=value: math.isclose(cell, v, rel_tol=1e-9))
            found = found[near.astype(bool)]
        else:
            found = found[cells.astype(str).str.casefold() == str(value).casefold()]
    return found


def _counts(row: pd.Series) -> dict[str, str]:
    """Cells as text; counts without decimals."""
    return {
        str(name): _NOTHING if pd.isna(cell) else f"{cell:.0f}" if isinstance(cell, float) else str(cell)
        for name, cell in row.items()
    }


def _text(cell: Any, digits: int) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return _NOTHING
    return cell if isinstance(cell, str) else f"{float(cell):.{digits}f}"


def _interval(cell: Mapping[Any, Any], digits: int) -> str:
    low, high = cell["ci_low"], cell["ci_high"]
    if low is None or high is None or pd.isna(low) or pd.isna(high):
        return ""
    return f" [{float(low):.{digits}f}, {float(high):.{digits}f}]"
