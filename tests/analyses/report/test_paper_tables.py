"""A table of a paper beside our numbers: which cells of a run stand where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headlens.analyses.report.paper_tables import COMPARISON_COLUMNS, ComparedTable, comparison_markdown
from headlens.errors import InputError
from headlens.files import write_csv

SWEEP = pd.DataFrame(
    {
        "init": ["trained", "trained", "scratch", "trained"],
        "penalty": [None, 0.1, 0.1, 0.3],
        "heads_encoder": [48.0, 14.0, 14.0, 5.0],
        "heads_cross": [48.0, 30.0, 30.0, None],
        "value": [29.6, 29.5, 29.4, 28.0],
        "ci_low": [29.0, 29.1, None, 27.0],
        "ci_high": [30.0, 29.9, None, 29.0],
        "diagonal": [True, True, False, True],
    }
)
SPEC: dict[str, Any] = {
    "title": "Table 2: BLEU",
    "step": "gates",
    "file": "sweep.csv",
    "columns": [
        {"name": "heads", "value": "{heads_encoder}/{heads_cross}", "where": {"init": "trained"}},
        {"name": "trained", "value": "value", "where": {"init": "trained"}, "digits": 2},
        {"name": "scratch", "value": "value", "where": {"init": "scratch"}, "digits": 2},
    ],
    "rows": [
        {"label": "all", "where": {"penalty": ""}, "published": {"heads": "48/48", "scratch": 29.6}},
        {"label": "few", "where": {"penalty": 0.1}, "published": {"heads": "14/30", "trained": 29.62}},
        {"label": "many", "where": {"penalty": 0.3}},
        {"label": "none", "where": {"penalty": 0.7}, "published": {"trained": 1.0}},
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_csv(SWEEP, tmp_path / "sweep.csv")
    return tmp_path


def cell(found: pd.DataFrame, row: str, column: str) -> dict[str, Any]:
    (own,) = found[(found["row"] == row) & (found["column"] == column)].to_dict("records")
    return {str(k): v for k, v in own.items()}


def test_cells_are_those_of_the_run(folder: Path) -> None:
    found = ComparedTable.of(SPEC).compared(folder)
    assert list(found.columns) == COMPARISON_COLUMNS
    assert len(found) == 4 * 3
    few = cell(found, "few", "trained")
    assert (few["published"], few["ours"], few["ci_low"], few["ci_high"]) == (29.62, 29.5, 29.1, 29.9)
    assert cell(found, "few", "scratch")["ours"] == 29.4
    assert cell(found, "all", "trained")["ours"] == 29.6
    assert [cell(found, row, "heads")["ours"] for row in ("all", "few", "many", "none")] == [
        "48/48",
        "14/30",
        "5",
        None,
    ]
    assert cell(found, "none", "trained")["ours"] is None


def test_the_table_as_it_is_read(folder: Path) -> None:
    table = ComparedTable.of(SPEC)
    lines = table.lines(table.compared(folder))
    assert lines[1] == {
        "": "few",
        "heads, paper": "14/30",
        "heads, ours": "14/30",
        "trained, paper": "29.62",
        "trained, ours": "29.50 [29.10, 29.90]",
        "scratch, paper": "–",
        "scratch, ours": "29.40",
    }
    text = comparison_markdown([(table.title, lines)])
    assert text.startswith("## Table 2: BLEU\n\n|  | heads, paper |")
    assert "| few | 14/30 | 14/30 | 29.62 | 29.50 \\[29.10, 29.90\\] | – | 29.40 |" in text


def test_a_column_that_the_paper_has_no_numbers_of_is_ours_alone(folder: Path) -> None:
    table = ComparedTable.of(SPEC | {"rows": [{"label": "few", "where": {"penalty": 0.1}}]})
    assert set(table.lines(table.compared(folder), "ours, small")[0]) == {
        *("", "heads, ours, small", "trained, ours, small", "scratch, ours, small"),
    }


def test_rows_that_nobody_says_anything_about_are_left_out(folder: Path) -> None:
    rows = [{"label": "few", "where": {"penalty": 0.1}}, {"label": "none", "where": {"penalty": 0.7}}]
    table = ComparedTable.of(SPEC | {"rows": rows})
    assert [line[""] for line in table.lines(table.compared(folder))] == ["few"]
    empty = ComparedTable.of(SPEC | {"rows": rows[1:]})
    assert empty.lines(empty.compared(folder)) == []


def test_a_cell_of_the_paper_stays_where_we_have_none(tmp_path: Path) -> None:
    table = ComparedTable.of(SPEC)
    lines = table.lines(table.compared(tmp_path))
    assert [line[""] for line in lines] == ["all", "few", "none"]
    assert lines[1]["trained, paper"] == "29.62"
    assert lines[1]["trained, ours"] == "–"


def test_the_best_of_several_in_per_cent(folder: Path) -> None:
    column = {"name": "best", "value": "value", "where": {"diagonal": "true"}, "pick": "largest", "scale": 100.0}
    mean = column | {"name": "mean", "pick": "mean"}
    plain = column | {"name": "first", "pick": "first", "interval": False}
    table = ComparedTable.of(
        SPEC | {"columns": [column, plain, mean], "rows": [{"label": "any", "where": {"init": "trained"}}]}
    )
    found = table.compared(folder)
    assert cell(found, "any", "best")["ours"] == pytest.approx(2960)
    assert cell(found, "any", "best")["ci_low"] == pytest.approx(2900)
    assert pd.isna(cell(found, "any", "first")["ci_low"])
    assert cell(found, "any", "mean")["ours"] == pytest.approx(100 * (29.6 + 29.5 + 28.0) / 3)
    assert pd.isna(cell(found, "any", "mean")["ci_low"])


def test_a_run_without_the_table_leaves_it_empty(tmp_path: Path) -> None:
    found = ComparedTable.of(SPEC).compared(tmp_path)
    assert found["ours"].isna().all()
    assert cell(found, "few", "trained")["published"] == 29.62


def test_what_a_table_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="a table has no rows"):
        ComparedTable.of({k: v for k, v in SPEC.items() if k != "rows"})
    with pytest.raises(ValueError, match="item 1 of rows of a table has 'wher', which is none of label, where"):
        ComparedTable.of(SPEC | {"rows": [{"label": "few", "wher": {}}]})


@pytest.mark.parametrize("value", ["{penalty:>99999999}", "{penalty.__class__}", "{0}", "{heads_encoder!r}", "{}"])
def test_texts_of_a_recipe_ask_for_names_of_columns_alone(folder: Path, value: str) -> None:
    spec = SPEC | {"columns": [{"name": "heads", "value": value, "where": {"init": "trained"}}]}
    with pytest.raises(InputError, match="Table 2: BLEU"):
        ComparedTable.of(spec).compared(folder)
