import io
import math

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from headlens.pages.console import cell_text, summary_table


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
