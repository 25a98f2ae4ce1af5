"""How far our numbers agree with the published ones, in words: cell by cell, and over the rows of a column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.reproduce.paper_cells import ENDS
from headlens.analyses.reproduce.paper_tables import ComparedColumn, ComparedTable
from headlens.errors import counted

AGREEMENT_COLUMNS = [
    *("table", "column", "published", "cells", "agreeing", "pairs", "same_order", "signs", "same_sign", "agreement")
]
NOTHING_TO_COMPARE = "not compared: not run here"


def cell_agreement(cell: Mapping[str, Any], digits: int) -> str:
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
        return "the same" if str(published) == str(ours) else "not the same"
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
    cells: list[Any] = compared.to_dict("records")
    words = [cell_agreement(cell, digits[str(cell["column"])]) for cell in cells]
    return compared.assign(agreement=words)


def column_agreement(table: ComparedTable, compared: pd.DataFrame) -> pd.DataFrame:
    """Returns columns `AGREEMENT_COLUMNS`, a row for each column of a paper's table that has published numbers.

    Pairs are rows that differ in print; `same_order` of them stand in the same order with us. Signs are those of the
    differences from the table's baseline row and from the column that a column is `against`, as far as they are not
    0 in print. `agreeing` of the `cells` that both have are the same, or have the published number in our interval.

    Args:
        table: whose cells are compared.
        compared: the result of `with_agreement`.
    """
    rows = [_column_row(table, column, compared) for column in table.columns]
    return pd.DataFrame([row for row in rows if row["published"]], columns=AGREEMENT_COLUMNS)


def _column_row(table: ComparedTable, column: ComparedColumn, compared: pd.DataFrame) -> dict[str, Any]:
    cells = compared[compared["column"] == column.name].set_index("row")
    words = cells.loc[cells["agreement"] != "", "agreement"]
    agreeing = int(words.isin(["the same", "the same as printed", "within our interval"]).sum())
    numbers = _numbers(compared, column.name)
    orders = [same for a, b in combinations(numbers, 2) for same in _same_sign(numbers[a], numbers[b])]
    signs = [
        same
        for label, pair in numbers.items()
        if table.baseline and label != table.baseline and table.baseline in numbers
        for same in _same_sign(pair, numbers[table.baseline])
    ]
    others = _numbers(compared, column.against)
    signs += [same for label in numbers if label in others for same in _same_sign(numbers[label], others[label])]
    row = {
        "table": table.title,
        "column": column.name,
        "published": int(cells["published"].notna().sum()),
        "cells": len(words),
        "agreeing": agreeing,
        "pairs": len(orders),
        "same_order": sum(orders),
        "signs": len(signs),
        "same_sign": sum(signs),
    }
    return row | {"agreement": _words(table, column, row)}


def _numbers(compared: pd.DataFrame, name: str) -> dict[str, tuple[float, float]]:
    """Returns the published number and ours of every row that has both, by its label."""
    cells = compared[compared["column"] == name].to_dict("records")
    both = [(cell["row"], cell["published"], cell["ours"]) for cell in cells]
    return {
        str(label): (float(published), float(ours))
        for label, published, ours in both
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
