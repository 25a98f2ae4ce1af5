"""How far our numbers agree with the published ones of a paper's table: by cell, by column, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.reproduce.paper_cells import ENDS, ComparedColumn
from headlens.analyses.reproduce.paper_tables import ComparedTable
from headlens.errors import counted
from headlens.tables.reproduce_tables import COLUMN_AGREEMENT

NOTHING_TO_COMPARE = "not compared: not run here"


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
