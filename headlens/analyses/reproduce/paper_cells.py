"""The rows of a run's table that a cell of a paper's table is about, their number, and how far it agrees, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.errors import counted
from headlens.files import read_csv
from headlens.nested_text import conform, parse_json
from headlens.pages.formatting import NOTHING
from headlens.statistics.intervals import mean_interval
from headlens.tables.reproduce_tables import COLUMN_AGREEMENT

if TYPE_CHECKING:
    from headlens.analyses.reproduce.paper_tables import ComparedColumn, ComparedTable

ENDS = ("ci_low", "ci_high")
_NAMED = re.compile(r"\{([^{}]*)\}")
NOTHING_TO_COMPARE = "not compared: not run here"


def measured_number(rows: pd.DataFrame, column: ComparedColumn) -> dict[str, Any]:
    """Returns our number of a cell and the ends of its interval, as far as there are any."""
    if column.pick == "count":
        return {"ours": float(len(rows))}
    if "{" in column.value:
        # Counts stand without decimals.
        texts = {str(k): published_cell_text(v, 0) if isinstance(v, float) else str(v) for k, v in rows.iloc[0].items()}
        # Names alone: a recipe is somebody's file, and Python's formats can ask for any width and attribute.
        ours = _NAMED.sub(lambda name: texts[name[1]], column.value)
        return {"ours": ours.replace(f"/{NOTHING}", "")}
    values = rows[column.value].astype(float)
    if column.pick == "mean":
        return {"ours": float(values.mean()) * column.scale}
    if column.pick == "seeds" and len(rows) > 1:
        if rows["seed"].duplicated().any():
            raise ValueError(f"several rows of a seed would be one {column.name!r}")
        ends = mean_interval(values) if column.interval else (float(values.mean()), math.nan, math.nan)
        return {name: end * column.scale for name, end in zip(("ours", *ENDS), ends, strict=True)}
    places = {"largest": values.argmax, "smallest": values.argmin}
    chosen = rows.iloc[int(places[column.pick]()) if column.pick in places else 0]
    sources = {"ours": column.value} | ({end: end for end in ENDS} if column.interval else {})
    return {
        name: float(chosen[source]) * column.scale
        for name, source in sources.items()
        if source in chosen and not pd.isna(chosen[source])
    }


def mean_of(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of independent numbers of ours, with its interval if each has one.

    Variances of independent numbers add up, so half the width is the root of the sum of squares of theirs, divided by
    how many there are.
    """
    values = [number["ours"] for number in numbers]
    mean = fmean(values)
    ends = {}
    for end, sign in zip(ENDS, (-1, 1), strict=True):
        halves = [number.get(end, math.nan) - value for number, value in zip(numbers, values, strict=True)]
        ends[end] = mean + sign * math.hypot(*halves) / len(numbers)
    return {"ours": mean, **ends}


def read_frame(path: Path) -> pd.DataFrame:
    """Reads a table of a run; of a JSON file one row, of run.json a row for each model, with all arguments."""
    if not path.is_file():
        return pd.DataFrame()
    if path.suffix != ".json":
        return read_csv(path)
    content = conform(parse_json(path.read_text(encoding="utf-8")), dict[str, Any], path.name)
    shared, models = content.get("arguments", content), content.get("models") or [{}]
    rows = [{**conform(shared, dict[str, Any]), **conform(model, dict[str, Any])} for model in models]
    texts = [{k: ", ".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    return pd.DataFrame(texts)


def matching(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Returns the rows of a table that have the cells of `where`, see `ComparedColumn`."""
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
            frame = frame[cells.astype(str).str.fullmatch(_expression(str(value)), case=False)]
    return frame


def _expression(text: str) -> str:
    """Returns a regular expression: `*` stands for anything, `{NAME}` at the beginning for the folder of a step."""
    folder, name, rest = "", _NAMED.match(text), text
    if name:
        folder, rest = rf"(?:.*[\\/])?{re.escape(name[1])}", text[name.end() :]
    return folder + ".*".join(map(re.escape, rest.split("*")))


def published_cell_text(cell: Any, digits: int) -> str:
    """Returns a cell for readers, numbers with so many decimals."""
    if pd.isna(cell):
        return NOTHING
    return cell if isinstance(cell, str) else f"{float(cell):.{digits}f}"


def cell_agreement(cell: Mapping[Any, Any], digits: int) -> str:
    """Returns how a number of ours stands to the published one, in words; empty where one of them is missing.

    A published number is anything that rounds to it: it lies within our interval if some number that does is there.

    Args:
        cell: of a comparison: `published`, `ours`, `ci_low`, `ci_high`.
        digits: decimals of the published number.
    """
    published, ours = cell["published"], cell["ours"]
    if pd.isna(published) or pd.isna(ours):
        return ""
    if isinstance(published, str) or isinstance(ours, str):
        # Beside other numbers a count of the paper's is a float: it is the text 5, not 5.0.
        words = {cell if isinstance(cell, str) else f"{cell:.15g}" for cell in (published, ours)}
        return "the same" if len(words) == 1 else "not the same"
    half = 0.5 * 10.0**-digits
    low, high = (cell[end] for end in ENDS)
    if pd.isna(low) or pd.isna(high):
        # Numbers of tables carry rounding of their own, of which 1e-9 is enough.
        if abs(ours - published) <= half + 1e-9:
            return "the same as printed"
        return f"ours differs by {ours - published:+.{digits}f} (no interval)"
    if published + half < low:
        return "the paper's is below our interval"
    return "the paper's is above our interval" if published - half > high else "within our interval"


def with_agreement(table: ComparedTable, compared: pd.DataFrame) -> pd.DataFrame:
    """Returns a comparison with `cell_agreement` in its column `agreement`."""
    digits = {column.name: column.digits for column in table.columns}
    words = [cell_agreement(cell, digits[cell["column"]]) for cell in compared.to_dict("records")]
    return compared.assign(agreement=words)


def column_agreement(table: ComparedTable, compared: pd.DataFrame) -> pd.DataFrame:
    """Returns rows of agreement.csv, one for each column of a paper's table that has published numbers.

    Pairs are rows that differ in print; `same_order` of them stand in the same order with us. Signs are those of the
    differences from the table's baseline row and from the column that a column is `against`, as far as they are not
    0 in print. `agreeing` of the `cells` that both have are the same, or have the published number in our interval.

    Args:
        table: whose cells are compared.
        compared: the result of `with_agreement`.
    """
    rows = [_column_row(table, column, compared) for column in table.columns]
    return COLUMN_AGREEMENT.frame(row for row in rows if row["published"])


def _column_row(table: ComparedTable, column: ComparedColumn, compared: pd.DataFrame) -> dict[str, Any]:
    cells = compared[compared["column"] == column.name].set_index("row")
    words = cells.loc[cells["agreement"] != "", "agreement"]
    agreeing = int(words.isin(["the same", "the same as printed", "within our interval"]).sum())
    numbers, others = (_numbers(compared, name) for name in (column.name, column.against))
    orders = [same for pair in combinations(numbers.values(), 2) for same in _same_sign(*pair)]
    baseline = numbers.get(table.baseline) if table.baseline else None
    pairs = [(pair, baseline) for label, pair in numbers.items() if baseline and label != table.baseline]
    pairs += [(pair, others[label]) for label, pair in numbers.items() if label in others]
    signs = [same for pair in pairs for same in _same_sign(*pair)]
    row: dict[str, Any] = {"table": table.title, "column": column.name}
    row |= {"published": int(cells["published"].notna().sum()), "cells": len(words), "agreeing": agreeing}
    row |= {"pairs": len(orders), "same_order": sum(orders), "signs": len(signs), "same_sign": sum(signs)}
    return row | {"agreement": _words(table, column, row)}


def _numbers(compared: pd.DataFrame, name: str) -> dict[str, tuple[float, float]]:
    """Returns the published number and ours of every row that has both, by its label."""
    cells = compared.loc[compared["column"] == name, ["row", "published", "ours"]]
    return {
        str(label): (float(published), float(ours))
        for label, published, ours in cells.itertuples(index=False)
        if not (isinstance(published, str) or isinstance(ours, str) or pd.isna(published) or pd.isna(ours))
    }


def _same_sign(one: tuple[float, float], other: tuple[float, float]) -> Iterator[bool]:
    """Yields whether two differences have the same sign, published and ours; nothing where the published one is 0."""
    published, ours = (np.sign(round(a - b, 9)) for a, b in zip(one, other, strict=True))
    if published:
        yield bool(published == ours)


def _words(table: ComparedTable, column: ComparedColumn, row: Mapping[str, Any]) -> str:
    if not row["cells"]:
        return NOTHING_TO_COMPARE
    parts = [f"{row['agreeing']} of {counted(row['cells'], 'cell')} agree"]
    if row["cells"] < row["published"]:
        parts.append(f"{row['published'] - row['cells']} not run here")
    if row["pairs"]:
        share = f" in {row['same_order']} of {counted(row['pairs'], 'pair')} of rows"
        parts.append("same order" if row["same_order"] == row["pairs"] else f"same order{share}")
    if row["signs"]:
        against = " and ".join(filter(None, [table.baseline, column.against]))
        share = "" if row["same_sign"] == row["signs"] else f" in {row['same_sign']} of {counted(row['signs'], 'row')}"
        parts.append(f"same sign of differences from {against}{share}")
    return "; ".join(parts)
