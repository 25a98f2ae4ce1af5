from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.pages.page_tables import Cell, Interval, PageTable, csv_table, number_text, page_table


def texts(table: PageTable, column: str) -> list[str]:
    place = [c.name for c in table.columns].index(column)
    return [row[place].text for row in table.rows]


def order(table: PageTable, column: str) -> list[str]:
    """Texts in the order in which the page sorts a column of numbers; empty ones left out."""
    place = [c.name for c in table.columns].index(column)
    assert table.columns[place].numeric
    cells = [row[place] for row in table.rows if row[place].text]
    return [cell.text for cell in sorted(cells, key=lambda c: float(c.key or c.text))]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.500"),
        (-0.00004, "-4.0e-05"),
        (0.0, "0.000"),
        (-0.0, "0.000"),
        (0.0005, "0.001"),
        (1e-300, "1.0e-300"),
        (1234.5678, "1234.568"),
        (123456.7, "1.235e+05"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text


@given(st.floats(-1e300, 1e300))
def test_numbers_keep_three_digits_or_decimals(value: float) -> None:
    assert math.isclose(float(number_text(value)), value, rel_tol=0.06, abs_tol=0.0006)


def test_columns_of_a_file_are_sorted_by_what_they_mean() -> None:
    frame = pd.DataFrame(
        {
            "word": ["b", "a", None],
            "share": [0.25, np.nan, 1e-9],
            "whole": [10.0, 9.0, np.nan],
            "offset": ["<-8", "-8", ">8"],
            "truth": [True, False, True],
            "far": [np.inf, -np.inf, 0.0],
        }
    )
    table = csv_table(frame, "t", "t.csv")
    assert [(c.name, c.numeric) for c in table.columns] == [
        ("word", False),
        ("share", True),
        ("whole", True),
        ("offset", True),
        ("truth", False),
        ("far", True),
    ]
    assert texts(table, "word") == ["b", "a", ""]
    assert texts(table, "share") == ["0.250", "", "1.0e-09"]
    assert texts(table, "whole") == ["10", "9", ""]
    assert texts(table, "truth") == ["yes", "no", "yes"]
    assert order(table, "share") == ["1.0e-09", "0.250"]
    assert order(table, "whole") == ["9", "10"]
    assert order(table, "offset") == ["<-8", "-8", ">8"]
    assert [row[5].key for row in table.rows] == ["Infinity", "-Infinity", repr(0.0)]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_rounding_does_not_change_the_order(values: list[float]) -> None:
    table = csv_table(pd.DataFrame({"x": values}), "t", "t.csv")
    keys = [float(row[0].key or row[0].text) for row in table.rows]
    assert keys == values


def test_names_that_hold_digits_are_words() -> None:
    table = csv_table(pd.DataFrame({"head": ["encoder.2.8", "12"]}), "t", "t.csv")
    assert not table.columns[0].numeric


def test_a_long_table_is_cut_and_says_so() -> None:
    frame = pd.DataFrame({"x": range(1000), "js": np.linspace(1, 0, 1000), "empty": np.nan})
    whole = csv_table(frame, "t", "t.csv", by="js", most_cells=2000)
    assert len(whole.rows) == 1000
    assert "Only" not in whole.remark
    cut = csv_table(frame, "t", "t.csv", by="js", most_cells=20)
    assert cut.remark == (
        "Only the 10 rows with the smallest js; all 1,000 are in t.csv. Empty columns are left out: empty."
    )
    assert texts(cut, "x") == [str(n) for n in range(999, 989, -1)]
    first = csv_table(frame, "t", "t.csv", most_cells=20)
    assert first.remark.startswith("Only the 10 rows at its beginning;")
    assert texts(first, "x") == [str(n) for n in range(10)]


def test_a_table_without_rows() -> None:
    table = csv_table(pd.DataFrame({"a": [], "b": []}), "t", "t.csv")
    assert table.rows == ()
    assert page_table("t", []).rows == ()


def test_long_tables_are_closed() -> None:
    assert csv_table(pd.DataFrame({"a": range(400)}), "t", "t.csv").is_open
    assert not csv_table(pd.DataFrame({"a": range(401)}), "t", "t.csv").is_open


def test_records_may_hold_cells() -> None:
    bounds = Interval(0.1, 0.2, 0.3, 0.15)
    records: list[dict[str, Any]] = [{"n": 3, "ci": Cell("0.1–0.3", "0.1", bounds), "words": Cell("x")}]
    table = page_table("t", records)
    assert [c.numeric for c in table.columns] == [True, True, False]
    assert table.rows[0][1].interval == bounds
