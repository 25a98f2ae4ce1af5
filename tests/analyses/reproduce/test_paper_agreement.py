"""Agreement in words: in the interval, in the same order, with the same sign."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headlens.analyses.reproduce.paper_agreement import cell_agreement, column_agreement, with_agreement
from headlens.analyses.reproduce.paper_tables import ComparedTable
from headlens.files import write_csv
from headlens.tables.reproduce_tables import COLUMN_AGREEMENT


@pytest.mark.parametrize(
    ("published", "ours", "low", "high", "words"),
    [
        (29.6, 29.5, 29.1, 29.9, "within our interval"),
        (29.0, 29.5, 29.1, 29.9, "the paper's is below our interval"),
        (30.0, 29.5, 29.1, 29.9, "the paper's is above our interval"),
        (29.0, 29.5, 29.04, 29.9, "within our interval"),  # 29.04 is printed as 29.0
        (70.4, 70.36, None, None, "the same as printed"),
        (70.4, 70.2, None, None, "ours differs by -0.2 (no interval)"),
        ("48/48", "48/48", None, None, "the same"),
        ("48/48", "47/48", None, None, "not the same"),
        (5.0, "5", None, None, "the same"),  # a count in a column of floats
        ("1234567", 1234567.0, None, None, "the same"),
        (0.1, "0.1", None, None, "the same"),
        (5.5, "5", None, None, "not the same"),
        (None, 1.0, None, None, ""),
        (1.0, None, None, None, ""),
    ],
)
def test_words_of_a_cell(published: Any, ours: Any, low: Any, high: Any, words: str) -> None:
    cell = {"published": published, "ours": ours, "ci_low": low, "ci_high": high}
    assert cell_agreement(cell, 1) == words


def compared(tmp_path: Path, ours: list[float], **changes: Any) -> pd.DataFrame:
    """Agreement of a table of three rows and the columns `with` and `without`, printed as 3, 2, 1 and 4, 2, 2."""
    (tmp_path / "step").mkdir()
    write_csv(pd.DataFrame({"name": ["a", "b", "c"] * 2, "with": [3.0, 2.0, 1.0] * 2, "without": ours * 2}), tmp_path / "step/x.csv")  # fmt: skip # noqa: E501
    columns = [{"name": n, "value": n} for n in ("with", "without")]
    columns[1]["against"] = "with"
    rows = [
        {"label": n, "where": {"name": n}, "published": {"with": w, "without": o}}
        for n, w, o in (("a", 3, 4), ("b", 2, 2), ("c", 1, 2))
    ]
    spec = {"title": "T", "step": "step", "file": "x.csv", "columns": columns, "rows": rows, "baseline": "a", **changes}
    table = ComparedTable.of(spec)
    return column_agreement(table, with_agreement(table, table.compared(tmp_path)))


def test_order_and_signs_of_a_column(tmp_path: Path) -> None:
    found = compared(tmp_path, [5.0, 1.0, 6.0])
    assert list(found.columns) == COLUMN_AGREEMENT.names
    first, second = found.to_dict("records")
    assert first["agreement"] == "3 of 3 cells agree; same order; same sign of differences from a"
    # 4, 2, 2: two pairs differ in print, of which a > b holds and a > c does not; b is no more than `with` in print.
    assert (second["pairs"], second["same_order"]) == (2, 1)
    # From a: b less, as printed; c more, not. From `with`: a more, as printed; c more, as printed; b is 0 in print.
    assert (second["signs"], second["same_sign"]) == (4, 3)
    assert second["agreement"] == (
        "0 of 3 cells agree; same order in 1 of 2 pairs of rows; "
        "same sign of differences from a and with in 3 of 4 rows"
    )


def test_what_was_not_run_is_told(tmp_path: Path) -> None:
    found = compared(tmp_path, [math.nan, 2.0, 2.0], baseline="")
    assert found["agreement"].tolist()[1] == "2 of 2 cells agree; 1 not run here; same sign of differences from with"
    table = ComparedTable.of(
        {"title": "T", "columns": [{"name": "x", "needs": "a GPU"}], "rows": [{"label": "a", "published": {"x": 1}}]}
    )
    (row,) = column_agreement(table, with_agreement(table, table.compared(tmp_path))).to_dict("records")
    assert row["agreement"] == "not compared: not run here"
