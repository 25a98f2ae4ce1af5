"""A table of a paper beside our numbers: which cells of a run stand where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats

from headlens.analyses.reproduce.paper_tables import ComparedFigure, ComparedTable, comparison_markdown
from headlens.errors import InputError
from headlens.files import write_csv
from headlens.tables.reproduce_tables import COMPARISON

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
    (tmp_path / "gates").mkdir()
    write_csv(SWEEP, tmp_path / "gates" / "sweep.csv")
    return tmp_path


def cell(found: pd.DataFrame, row: str, column: str) -> dict[str, Any]:
    (own,) = found[(found["row"] == row) & (found["column"] == column)].to_dict("records")
    return {str(k): v for k, v in own.items()}


def test_cells_are_those_of_the_run(folder: Path) -> None:
    found = ComparedTable.of(SPEC).compared(folder)
    assert list(found.columns) == COMPARISON.names
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
        "remarks": "–",
    }
    text = comparison_markdown([(table.title, lines)])
    assert text.startswith("## Table 2: BLEU\n\n|  | heads, paper |")
    assert "| few | 14/30 | 14/30 | 29.62 | 29.50 \\[29.10, 29.90\\] | – | 29.40 |" in text


def test_columns_of_words_are_not_set_like_numbers() -> None:
    rows = {
        "claims": {"claim": "a", "reading": "b", "verdict": "holds", "difference": "0.1"},
        "figures": {"figure of the paper": "a", "ours": "gates/quality.png", "remarks": "–"},
        "numbers": {"": "few", "heads, paper": "14/30", "remarks": "–"},
    }
    text = comparison_markdown([(title, [row]) for title, row in rows.items()])
    rules = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ---")]
    right = [
        [name for name, rule in zip(row, rules[i], strict=True) if rule == "---:"]
        for i, row in enumerate(rows.values())
    ]
    assert right == [["difference"], [], ["heads, paper"]]


def test_a_column_that_the_paper_has_no_numbers_of_is_ours_alone(folder: Path) -> None:
    table = ComparedTable.of(SPEC | {"rows": [{"label": "few", "where": {"penalty": 0.1}}]})
    assert set(table.lines(table.compared(folder), "ours, small")[0]) == {
        *("", "heads, ours, small", "trained, ours, small", "scratch, ours, small"),
    }


def test_rows_without_a_number_say_what_they_need(folder: Path) -> None:
    rows = [{"label": "few", "where": {"penalty": 0.1}}, {"label": "none", "where": {"penalty": 0.7}}]
    table = ComparedTable.of(SPEC | {"rows": rows})
    few, none = table.lines(table.compared(folder))
    assert few["remarks"] == "–"
    assert none["remarks"] == "not run here; needs a row of sweep.csv that the step gates did not write"
    missing = table.compared(folder, {"gates": "a GPU"})
    assert missing["not_run"].eq("needs a GPU").all()
    assert missing["ours"].isna().all()


def test_a_cell_of_the_paper_stays_where_we_have_none(tmp_path: Path) -> None:
    table = ComparedTable.of(SPEC)
    lines = table.lines(table.compared(tmp_path))
    assert [line[""] for line in lines] == ["all", "few", "many", "none"]
    assert lines[1]["trained, paper"] == "29.62"
    assert lines[1]["trained, ours"] == "–"


def test_the_best_and_the_worst_of_several_in_per_cent(folder: Path) -> None:
    column = {"name": "best", "value": "value", "where": {"diagonal": "true"}, "pick": "largest", "scale": 100.0}
    worst, mean = (column | {"name": pick, "pick": pick} for pick in ("smallest", "mean"))
    plain = column | {"name": "first", "pick": "first", "interval": False}
    table = ComparedTable.of(
        SPEC | {"columns": [column, worst, plain, mean], "rows": [{"label": "any", "where": {"init": "trained"}}]}
    )
    found = table.compared(folder)
    assert cell(found, "any", "best")["ours"] == pytest.approx(2960)
    assert cell(found, "any", "best")["ci_low"] == pytest.approx(2900)
    assert cell(found, "any", "smallest")["ours"] == pytest.approx(2800)
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
    two = {"label": "few", "published": {"nothing": 1}}
    for change, message in (
        ({"step": ""}, "the cell 'all', 'heads' has no step and file, and does not say what it needs"),
        ({"small": True}, "is of the small setting, and its row 'all' has published cells"),
        ({"rows": [two]}, "has no column 'nothing', of which 'few' has a cell"),
        ({"rows": [*SPEC["rows"], SPEC["rows"][0]]}, "has two rows of the same name"),
        ({"columns": [*SPEC["columns"], SPEC["columns"][0]]}, "has two columns of the same name"),
        ({"baseline": "nobody"}, "has no row 'nobody', its baseline"),
        ({"columns": [*SPEC["columns"], {"name": "x"}]}, "'x' has no value and does not say what it needs"),
        ({"columns": [*SPEC["columns"], {"name": "x", "value": "v", "against": "y"}]}, "which 'x' is against"),
        ({"rows": [{"label": "few", "where": {"init": "scratch"}}]}, "'few' and 'heads' want another 'init' each"),
    ):
        with pytest.raises(ValueError, match=message):
            ComparedTable.of(SPEC | change)
    with pytest.raises(ValueError, match="item 1 of rows of a table has 'wher', which is not one of label, where"):
        ComparedTable.of(SPEC | {"rows": [{"label": "few", "wher": {}}]})


@pytest.mark.parametrize("value", ["{penalty:>99999999}", "{penalty.__class__}", "{0}", "{heads_encoder!r}", "{}"])
def test_texts_of_a_recipe_ask_for_names_of_columns_alone(folder: Path, value: str) -> None:
    rows = [{"label": "all", "where": {"penalty": ""}}]
    spec = SPEC | {"columns": [{"name": "heads", "value": value, "where": {"init": "trained"}}], "rows": rows}
    with pytest.raises(InputError, match="Table 2: BLEU"):
        ComparedTable.of(spec).compared(folder)


def test_a_mean_over_runs_has_the_interval_of_independent_numbers(tmp_path: Path) -> None:
    for step, value, half in (("one", 0.8, 0.03), ("two", 0.6, 0.04)):
        (tmp_path / step).mkdir()
        about = {"metric": "f1", "seed": 1, "value": value, "ci_low": value - half, "ci_high": value + half}
        write_csv(pd.DataFrame([about, about | {"metric": "other"}]), tmp_path / step / "masks.csv")
    column = {"name": "mean", "steps": {"one": "f1", "two": "f1"}, "value": "value", "pick": "seeds", "scale": 100.0}
    table = ComparedTable.of({"title": "T", "file": "masks.csv", "columns": [column], "rows": [{"label": "all"}]})
    found = cell(table.compared(tmp_path), "all", "mean")
    # Variances add up: a half width of sqrt(3² + 4²) / 2 per cent.
    assert (found["ours"], found["ci_low"], found["ci_high"]) == pytest.approx((70, 67.5, 72.5))
    assert cell(table.compared(tmp_path, {"two": "a GPU"}), "all", "mean")["not_run"] == "needs a GPU"


def test_the_mean_over_seeds_has_their_interval(tmp_path: Path) -> None:
    (tmp_path / "gates").mkdir()
    values = [0.7, 0.8, 0.9]
    frame = pd.DataFrame(
        {"seed": [1, 2, 3], "pattern": "a/dam/masks/x", "value": values, "ci_low": 0.0, "ci_high": 1.0}
    )
    write_csv(frame, tmp_path / "gates" / "sweep.csv")
    column = {"name": "x", "value": "value", "pick": "seeds"}
    rows = [{"label": "dam", "where": {"pattern": "{dam}/masks/*"}}, {"label": "am", "where": {"pattern": "{am}/*"}}]
    table = ComparedTable.of(SPEC | {"columns": [column, {"name": "n", "pick": "count"}], "rows": rows})
    found = table.compared(tmp_path)
    low, high = stats.t.interval(0.95, 2, 0.8, stats.sem(values))
    own = cell(found, "dam", "x")
    assert (own["ours"], own["ci_low"], own["ci_high"]) == pytest.approx((0.8, low, high))
    assert cell(found, "am", "x")["not_run"], "{NAME} is a whole folder"
    assert (cell(found, "dam", "n")["ours"], cell(found, "am", "n")["ours"]) == (3, 0)
    write_csv(frame.assign(seed=1), tmp_path / "gates" / "sweep.csv")
    with pytest.raises(InputError, match="several rows of a seed would be one 'x'"):
        table.compared(tmp_path)


def test_settings_that_a_run_records(tmp_path: Path) -> None:
    (tmp_path / "gates").mkdir()
    record = {"arguments": {"windows": [0, 1, 3], "rare": 0.5}, "models": [{"model": "bert", "parameters": 108e6}]}
    (tmp_path / "gates" / "run.json").write_text(json.dumps(record), encoding="utf-8")
    columns = [
        {"name": "windows", "value": "{windows}"},
        {"name": "rare", "value": "rare", "scale": 100},
        {"name": "millions", "value": "parameters", "where": {"model": "bert"}, "scale": 1e-6},
    ]
    spec = {"title": "T", "step": "gates", "file": "run.json", "columns": columns, "rows": [{"label": "set"}]}
    assert ComparedTable.of(spec).compared(tmp_path)["ours"].tolist() == ["0, 1, 3", 50.0, 108.0]


def test_figures_that_are_there_not_drawn_or_not_run(tmp_path: Path) -> None:
    (tmp_path / "one" / "figures").mkdir(parents=True)
    (tmp_path / "one" / "figures" / "quality.png").touch()
    figure = ComparedFigure.of({"title": "f", "figures": ["one/quality", "one/kept", "two/quality"]})
    assert figure.steps == ["one", "one", "two"]
    assert figure.line(tmp_path, {"two": "a GPU"}) == {
        "figure of the paper": "f",
        "ours": "one/figures/quality.png",
        "remarks": "one/figures/kept.png was not drawn; not run here; needs a GPU",
    }
    assert figure.line(tmp_path, {"one": "a GPU", "two": "a GPU"})["ours"] == "–"
    for wrong in ([], ["quality"]):
        with pytest.raises(ValueError, match="the figure 'f' names none of ours as STEP/NAME"):
            ComparedFigure.of({"title": "f", "figures": wrong})
