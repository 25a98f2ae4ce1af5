from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_runs import HOSTILE, relevance_tables, write_relevance
from markupsafe import escape
from tiers import rest_slow

from headlens.analyses.relevance.report import REPORT
from headlens.analyses.report.page import RunSection, render
from headlens.analyses.report.registry import reports
from headlens.errors import InputError
from headlens.pages.command_report import write_results
from headlens.pages.self_contained import visible
from headlens.relevance_propagation.figures import relevance_figures
from headlens.relevance_propagation.overviews import shares_title
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun, read_recorded

NAMES = ["relevance", "relevance_raw", "relevance_intervals", "rule_agreement"]


def run(tables: Mapping[str, pd.DataFrame]) -> RecordedRun:
    return RecordedRun(Path("folder"), "run", {"command": "relevance", "status": "finished"}, tables)


def test_every_figure_is_drawn_and_has_a_caption() -> None:
    drawn = dict(relevance_figures(relevance_tables()))
    assert list(drawn) == NAMES
    assert all(figure is not None for figure in drawn.values())
    assert all(REPORT.caption(name).text.endswith(".") for name in NAMES)
    assert [name for name, _ in REPORT.figures(run(relevance_tables()))] == NAMES
    assert reports()["relevance"] is REPORT


def test_one_rule_is_compared_with_none() -> None:
    assert [name for name, _ in relevance_figures(relevance_tables(rules=("taylor",)))] == NAMES[:3]
    assert list(relevance_figures({})) == []


def test_tables_without_rows_give_no_figure() -> None:
    tables = {name: frame.iloc[:0] for name, frame in relevance_tables().items()}
    assert not [name for name, figure in relevance_figures(tables) if figure is not None]


def test_a_finished_run_needs_its_table_but_no_correlations() -> None:
    tables = relevance_tables()
    REPORT.check(run(tables))
    REPORT.check(run({"relevance": tables["relevance"]}))
    with pytest.raises(InputError, match=r"folder/relevance\.csv is missing, which every finished run of relevance"):
        REPORT.check(run({"correlations": tables["correlations"]}))


def test_empty_shares_are_no_fault() -> None:
    frame = relevance_tables()["relevance"]
    REPORT.check(run({"relevance": frame.assign(relevance=np.nan, ci_low=np.nan, ci_high=np.nan)}))


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("relevance", {"relevance": "much"}, r"relevance\.csv:2: column relevance holds 'much'"),
        ("relevance", {"ci_low": -np.inf}, r"relevance\.csv:2: column ci_low holds '-inf'"),
        ("relevance", {"stack": "all"}, r"relevance\.csv:2: column stack holds 'all'"),
        (
            "relevance",
            {"rule": "epsilon"},
            r"relevance\.csv:3: a row for demo, encoder, 0, 0, epsilon appears twice",
        ),
        ("correlations", {"spearman": "x"}, r"correlations\.csv:2: column spearman holds 'x'"),
        (
            "correlations",
            {"stack": "all", "of": "relevance", "scope": "heads"},
            r"correlations\.csv:3: a row for demo, all, .* appears twice",
        ),
    ],
)
def test_cells_that_cannot_be_meant_are_refused(table: str, change: dict[str, object], message: str) -> None:
    tables = relevance_tables()
    with pytest.raises(InputError, match=message):
        REPORT.check(run(tables | {table: tables[table].assign(**change)}))


def test_a_missing_column_is_named() -> None:
    tables = relevance_tables()
    with pytest.raises(InputError, match=r"folder/relevance\.csv: no column rule\."):
        REPORT.check(run(tables | {"relevance": tables["relevance"].drop(columns="rule")}))


@pytest.mark.parametrize("figures", rest_slow([True, False], [False]))
def test_a_run_writes_its_tables_and_figures(tmp_path: Path, *, figures: bool) -> None:
    tables = relevance_tables()
    with RunFolder.create(tmp_path / "run", command="relevance", model="demo") as folder:
        folder.start({})
        write_results(folder, tables, relevance_figures(tables) if figures else ())
        folder.finish({})
    read = read_recorded(tmp_path / "run", "run")
    for name, frame in tables.items():
        pd.testing.assert_frame_equal(read.tables[name], frame, check_dtype=False)
    assert [path.stem for path in read.pictures] == (sorted(NAMES) if figures else [])


def test_rules_and_models_that_look_like_numbers_stay_words(tmp_path: Path) -> None:
    read = read_recorded(write_relevance(tmp_path / "run", "12", rules=("1.50", "true")), "run")
    REPORT.check(read)
    assert list(read.tables["relevance"]["rule"].unique()) == ["1.50", "true"]
    assert list(read.tables["correlations"]["other_rule"]) == ["true"] * 2
    assert list(read.tables["correlations"]["model"]) == ["12"] * 2


def test_the_page_shows_the_tables(tmp_path: Path) -> None:
    read = read_recorded(write_relevance(tmp_path / "run"), "run")
    html = render([RunSection(read, [])])
    order = [
        "Largest contributions across layers",
        shares_title(read.tables["relevance"]),
        "Agreement of rules",
        "relevance.csv",
        "correlations.csv",
    ]
    places = [html.index(f"<bdi>{title}</bdi>") for title in order]
    assert places == sorted(places)
    assert all(f'data-v="{value!r}"' in html for value in read.tables["relevance"]["relevance"])


@pytest.mark.parametrize("words", rest_slow(HOSTILE, [HOSTILE[0], HOSTILE[6]]))
def test_nothing_from_a_run_becomes_an_element(tmp_path: Path, words: str) -> None:
    read = read_recorded(write_relevance(tmp_path / "run", words, rules=(words, "epsilon")), words)
    html = render([RunSection(read, [])])
    # Our script, and the data that it shows, in which nothing begins an element.
    assert (html.count("<script>"), html.count('<script type="application/json"')) == (1, 1)
    assert (html.count("<script"), html.count("<svg onload")) == (2, 0)
    assert "<img" not in html
    assert str(escape(visible(words))) in html
