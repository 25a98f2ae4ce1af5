"""Tables of a page, the console and papers."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from headlens.pages.formatting import compared_texts, digits_of, escaped_latex, number_text
from headlens.pages.page_tables import (
    Cell,
    Interval,
    PageTable,
    cell_text,
    csv_table,
    interval_cell,
    number_cell,
    page_table,
    summary_table,
)


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


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((4.855, 4.8553), ["4.85500", "4.85530"]),
        ((0.75, 0.35), ["0.750", "0.350"]),
        ((0.846, 0.8411), ["0.8460", "0.8411"]),
        ((0.5, 0.5), ["0.500", "0.500"]),
        ((0.5, 0.5 + 1e-8), ["0.500", "0.500"]),  # rounding
        ((12345.6, 12345.9), ["12345.60", "12345.90"]),
        ((-0.1, -0.1002, math.nan), ["-0.10000", "-0.10020", "nan"]),
        ((math.nan,), ["nan"]),
    ],
)
def test_digits_follow_the_difference(values: tuple[float, ...], texts: list[str]) -> None:
    assert compared_texts(*values) == texts


@given(st.floats(-1e5, 1e5), st.floats(-1e5, 1e5))
def test_what_differs_is_written_differently(one: float, other: float) -> None:
    digits = digits_of([one, other])
    assert 3 <= digits <= 6
    texts = (f"{one:.{digits}f}", f"{other:.{digits}f}")
    assert (texts[0] == texts[1]) <= (abs(one - other) < 1e-5)


def test_columns_have_the_digits_of_what_they_are_compared_with() -> None:
    records = [{"whole": number_cell(4.855), "without": number_cell(v), "n": 3} for v in (4.8551, 4.8549)]
    table = page_table("Losses", records, compared=("whole", "without", "not there"))
    assert [texts(table, name) for name in ("whole", "without", "n")] == [
        ["4.85500", "4.85500"],
        ["4.85510", "4.85490"],
        ["3", "3"],
    ]
    alone = page_table("Losses", [{"whole": number_cell(v), "of 3": Cell(f"{v:.1f}", str(v))} for v in (0.5, 0.504)])
    assert [texts(alone, name) for name in ("whole", "of 3")] == [["0.5000", "0.5040"], ["0.5", "0.5"]]
    shown = Console(width=80, record=True, file=io.StringIO())
    shown.print(summary_table("Losses", [{"loss": 4.855}, {"loss": 4.8553}]))
    assert "4.85500" in shown.export_text()


@pytest.mark.parametrize(
    ("value", "low", "high", "texts_"),
    [
        (0.00053, 0.00045, 0.00063, ("0.00053", "0.00045 to 0.00063")),
        (3.410432, 3.410427, 3.410438, ("3.410432", "3.410427 to 3.410438")),
        (0.846, 0.812, 0.871, ("0.846", "0.812 to 0.871")),
        (4.4498, 4.44945, 4.45013, ("4.44980", "4.44945 to 4.45013")),
        (2.5, 1.0, 12345.6, ("2.500", "1.000 to 1.235e+04")),
    ],
)
def test_a_value_has_the_decimals_of_its_interval(
    value: float, low: float, high: float, texts_: tuple[str, str]
) -> None:
    """Also beside others that are far from it, and as a plain number."""
    for cell in (number_cell(value), value):
        records = [{"raw": cell, "95 % CI": interval_cell((low, value, high, 0.0))}]
        records.append({"raw": 9.5 if cell is value else number_cell(9.5), "95 % CI": interval_cell((2.0, 9.5, 18, 0))})
        table = page_table("t", records)
        assert texts(table, "raw") == [texts_[0], "9.500"]
        assert texts(table, "95 % CI") == [texts_[1], "2.000 to 18.000"]


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3), st.lists(st.floats(-2, 2), max_size=4))
def test_no_value_is_written_outside_of_its_interval(numbers: list[float], others: list[float]) -> None:
    low, value, high = sorted(numbers)
    records = [{"value": number_cell(value), "CI": interval_cell((low, value, high, 0.0), (-2.0, 2.0))}]
    records += [{"value": number_cell(other), "CI": Cell("")} for other in others]
    table = page_table("t", records)
    shown, ends = float(texts(table, "value")[0]), texts(table, "CI")[0].split(" to ")
    # Powers of ten, for numbers near 0, have two digits.
    slack = 0.06 * min(abs(low), abs(value), abs(high)) if "e" in "".join([*ends, texts(table, "value")[0]]) else 0.0
    assert float(ends[0]) - slack - 5e-6 * bool(slack) <= shown <= float(ends[1]) + slack + 5e-6 * bool(slack)


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
        "Only 10 rows are shown, those with the smallest js; all 1,000 are in t.csv. Empty columns are left out: empty."
    )
    assert texts(cut, "x") == [str(n) for n in range(999, 989, -1)]
    first = csv_table(frame, "t", "t.csv", most_cells=20)
    assert first.remark.startswith("Only 10 rows are shown, those at the beginning of the table;")
    assert texts(first, "x") == [str(n) for n in range(10)]


WIDE = pd.DataFrame({
    "model": ["m"] * 3, "stack": ["encoder"] * 3, "layer": [0, 0, 1], "head": [0, 1, 0],
    "n": [7] * 3, "share": [1 / 3] * 3, "role": ["", "next", ""], "set": [True] * 3,
})  # fmt: skip


def test_what_is_the_same_in_every_row_of_a_wide_table_stands_above_it() -> None:
    table = csv_table(WIDE, "t", "t.csv").narrowed()
    assert [column.name for column in table.columns] == ["layer", "head", "role"]
    assert [[cell.text for cell in row] for row in table.rows] == [["0", "0", ""], ["0", "1", "next"], ["1", "0", ""]]
    same = [(name, cell.text, cell.key) for name, cell in table.same]
    numbers = [("n", "7", ""), ("share", "0.333", repr(1 / 3))]
    assert same == [("model", "m", ""), ("stack", "encoder", ""), *numbers, ("set", "yes", "")]


@pytest.mark.parametrize("frame", [WIDE.iloc[:, :6], WIDE.iloc[:1], WIDE.iloc[:0], WIDE.iloc[[1, 1]]])
def test_narrow_tables_and_those_of_one_row_stay_as_they_are(frame: pd.DataFrame) -> None:
    table = csv_table(frame, "t", "t.csv")
    assert table.narrowed() == table


def test_columns_with_pictures_of_intervals_stay() -> None:
    records = [{**row, "ci": Cell("0 to 1", "0", Interval(0.0, 0.5, 1.0, 0.2))} for row in WIDE.to_dict("records")]
    assert "ci" in [column.name for column in page_table("t", records).narrowed().columns]


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


def shown(title: str, rows: object) -> str:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(summary_table(title, rows))  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_brackets_are_text_not_markup() -> None:
    text = shown("[red]demo[/red]", [{"[token]": "[CLS]", "model": "[bold]x[/]"}])
    for word in ("[red]demo[/red]", "[token]", "[CLS]", "[bold]x[/]"):
        assert word in text


def test_a_data_frame_is_shown_row_by_row() -> None:
    text = shown("heads", pd.DataFrame({"head": ["encoder.0.1", "encoder.5.11"], "share": [0.98765, math.nan]}))
    lines = [line.split() for line in text.splitlines()]
    assert ["encoder.0.1", "0.988"] in lines
    assert ["encoder.5.11"] in lines


def test_numbers_stand_right_and_words_left() -> None:
    table = summary_table("t", [{"a": "x", "b": 1, "c": None}, {"a": "yy", "b": 2.5, "c": 3}])
    assert [column.justify for column in table.columns] == ["left", "right", "right"]


def test_intervals_stand_beside_their_values() -> None:
    names = [
        "a",
        "raw",
        "b",
        "a_ci_low",
        "a_ci_high",
        "ci_low",
        "low",
        "raw_low",
        "raw_high",
        "lost_low",
        "raw_low_low",
    ]
    table = csv_table(pd.DataFrame([range(len(names))], columns=names), "t", "t.csv")
    expected = ["a", "a_ci_low", "a_ci_high", "raw", "raw_low", "raw_high", "b", "ci_low", "low", "raw_low_low"]
    assert [column.name for column in table.columns] == [*expected, "lost_low"]


def test_columns_without_a_cell_are_left_out() -> None:
    records = [{"a": 1, "b": None, "c": Cell("")}, {"a": float("nan"), "b": float("nan"), "c": Cell("")}]
    assert [column.name for column in page_table("t", records).columns] == ["a"]
    assert [column.header.plain for column in summary_table("t", records).columns] == ["a"]
    assert len(page_table("t", [{"a": None}]).columns) == 1


def test_no_rows_make_an_empty_table() -> None:
    assert summary_table("t", []).row_count == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (math.nan, ""),
        (np.float32("nan"), ""),
        (pd.NA, ""),
        (True, "yes"),
        (np.False_, "no"),
        (7, "7"),
        (np.int64(7), "7"),
        (0.12345, "0.123"),
        (np.float32(0.5), "0.500"),
        ("x", "x"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell_text(value) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("50 % of a_b & c", r"50 \% of a\_b \& c"),
        ("-0.25 [-0.3, -0.2]", "$-$0.25 [$-$0.3, $-$0.2]"),
        ("BERT-base 3-4 10.5-11", "BERT-base 3-4 10.5-11"),
        ("0.1–0.2", "0.1--0.2"),
        ("nsubj ↑", r"nsubj $\uparrow$"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("p < 0.05", r"p \textless{} 0.05"),
        ("a\x1bb\nc\u202e", r"a\textbackslash{}x1bb c\textbackslash{}u202e"),
    ],
)
def test_what_latex_would_read_as_a_command_is_spelled(text: str, shown: str) -> None:
    assert escaped_latex(text) == shown


@given(st.text(st.characters(codec="ascii")))
@example("->")
def test_no_command_of_anybody_else(text: str) -> None:
    """Every brace and backslash is ours: with our words taken out, nothing is left that LaTeX would read."""
    found = escaped_latex(text)
    for ours in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}", r"\textless{}", r"\textgreater{}",
                 r"\textbar{}", "$-$", r"$\rightarrow$", r"\&", r"\%", r"\$", r"\#", r"\_", r"\{", r"\}"):  # fmt: skip
        found = found.replace(ours, "")
    assert not set(found) & set("\\&%$#_{}~^")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b\n| c", r"a\|b \| c"),
        ("`x` *y* _z_ [l](u) ![i](u) ~s~ # h", r"\`x\` \*y\* \_z\_ \[l\](u) !\[i\](u) \~s\~ \# h"),
        ("<b>&lt;</b> $x$ \\", r"\<b\>\&lt;\</b\> \$x\$ \\"),
        ("\x1b[2J\u202e", r"\\x1b\[2J\\u202e"),
    ],
)
def test_markdown_shows_cells_and_names_as_they_are(text: str, shown: str) -> None:
    lines = page_table(text, [{text: text}]).markdown().splitlines()
    assert lines == [f"| {shown} |", "| --- |", f"| {shown} |"]


def test_the_terminal_obeys_no_cell() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    words = "[/b][red]\x1b[2J\r\n:bomb:\u202e"
    console.print(summary_table(words, [{words: words}]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count(r"[/b][red]\x1b[2J\r\n:bomb:\u202e") == 3


def test_a_bar_in_the_name_of_a_column_parts_no_cells() -> None:
    lines = page_table("t", [{"a|b": "x|y", "c": 1}]).markdown().splitlines()
    assert lines[0] == r"| a\|b | c |"
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3]
