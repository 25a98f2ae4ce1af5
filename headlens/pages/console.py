"""Short tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

Rows = Sequence[Mapping[str, object]]


def summary_table(title: str, rows: Rows | pd.DataFrame) -> Table:
    """A table with one column per key of the first row; numbers stand right, floats with three decimals.

    Nothing in a cell is read as markup, so `[CLS]` or a model called `[bold]` appears as it is. Missing
    values are empty cells.
    """
    records: Rows = _records(rows) if isinstance(rows, pd.DataFrame) else rows
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for name in list(records[0]) if records else []:
        numeric = all(_is_number(r.get(name)) or _is_missing(r.get(name)) for r in records)
        table.add_column(Text(name), justify="right" if numeric else "left")
    for record in records:
        table.add_row(*[Text(cell_text(record.get(name))) for name in records[0]])
    return table


def cell_text(value: object) -> str:
    """How a value stands in a table: floats with three decimals, booleans yes or no, missing ones empty."""
    if _is_missing(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{float(value):.3f}"
    return str(value)


def _records(frame: pd.DataFrame) -> Rows:
    return [{str(k): v for k, v in record.items()} for record in frame.to_dict("records")]


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, Real) and math.isnan(value))
