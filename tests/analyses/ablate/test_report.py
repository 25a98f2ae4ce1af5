from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_runs import HOSTILE, ablation_tables, change_record, write_ablation
from markupsafe import escape
from tiers import rest_slow, rest_slow_rows

from headlens.analyses.ablate.report import REPORT, ablation_figures
from headlens.analyses.report.page import RunSection, render
from headlens.analyses.report.registry import reports
from headlens.errors import InputError
from headlens.findings.layer_smoothness import NAME, smoothness_table
from headlens.pages.command_report import write_results
from headlens.pages.self_contained import visible
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun, read_recorded

NAMES = ["ablation", "keep_only", "pruning"]


def run(tables: Mapping[str, pd.DataFrame]) -> RecordedRun:
    return RecordedRun(Path("folder"), "run", {"command": "ablate", "status": "finished"}, tables)


def test_every_figure_is_drawn_and_has_a_caption() -> None:
    drawn = dict(ablation_figures(ablation_tables()))
    assert list(drawn) == NAMES
    assert all(figure is not None for figure in drawn.values())
    assert all(REPORT.caption(name).text.endswith(".") for name in [*NAMES, "side_by_side"])
    assert not [name for name in NAMES if re.search("needed|no difference|make do", REPORT.caption(name).text)]
    assert [name for name, _ in REPORT.figures(run(ablation_tables()))] == NAMES
    assert reports()["ablate"] is REPORT


@pytest.mark.slow
def test_two_models_stand_side_by_side_too(make_ablation: Callable[..., pd.DataFrame]) -> None:
    frames = [make_ablation(name, mode=mode) for name in ("bert", "albert") for mode in ("zero", "keep-only")]
    drawn = dict(ablation_figures({"ablation": pd.concat(frames)}))
    assert list(drawn) == ["ablation", "side_by_side", "keep_only"]


def test_what_was_not_asked_for_is_no_figure_without_numbers() -> None:
    tables = ablation_tables(modes=("mean",))
    assert [name for name, _ in ablation_figures({"ablation": tables["ablation"]})] == NAMES[:1]
    assert list(ablation_figures({})) == []


def test_tables_without_numbers_give_no_figure() -> None:
    tables = {name: frame.iloc[:0] for name, frame in ablation_tables().items()}
    assert [(name, figure) for name, figure in ablation_figures(tables) if figure is not None] == []
    empty = ablation_tables()["ablation"].assign(delta=np.nan)
    assert dict(ablation_figures({"ablation": empty})) == {"ablation": None, "keep_only": None}


def test_a_finished_run_needs_its_table_but_no_pruning() -> None:
    tables = ablation_tables()
    REPORT.check(run(tables))
    REPORT.check(run({"ablation": tables["ablation"]}))
    with pytest.raises(InputError, match=r"folder/ablation\.csv is missing, which every finished run of ablate"):
        REPORT.check(run({"pruning": tables["pruning"]}))


def test_what_a_page_counts_on_is_what_a_run_writes() -> None:
    made = ablation_tables() | {NAME: smoothness_table(ablation_tables()["ablation"], ("delta",), seed=0)}
    for name, frame in made.items():
        assert set(frame) <= set(REPORT.tables[name].names)
    assert [*made[NAME]] == REPORT.tables[NAME].names


def test_empty_numbers_are_no_fault() -> None:
    tables = ablation_tables()
    changes = {"value": np.nan, "ci_low": np.nan, "ci_high": np.nan}
    REPORT.check(run({name: frame.assign(**changes) for name, frame in tables.items()}))


@pytest.mark.parametrize(
    ("table", "change", "message"),
    rest_slow_rows(
        [
            ("ablation", {"delta": "much"}, r"ablation\.csv:2: column delta holds 'much'"),
            ("ablation", {"ci_low": -np.inf}, r"ablation\.csv:2: column ci_low holds '-inf'"),
            ("ablation", {"stack": "all"}, r"ablation\.csv:2: column stack holds 'all'"),
            ("ablation", {"layer": 0.5}, r"ablation\.csv:2: column layer holds '0.5'"),
            ("ablation", {"mode": "zero"}, r"ablation\.csv:3: a row for demo, zero, encoder, 0, 0 appears twice"),
            ("pruning", {"speedup": "x"}, r"pruning\.csv:2: column speedup holds 'x'"),
            ("pruning", {"n_pruned": -1}, r"pruning\.csv:2: column n_pruned holds '-1'"),
            ("pruning", {"seed": 0}, r"pruning\.csv:7: a row for demo, random, 0, 1 appears twice"),
        ],
        3,
    ),
)
def test_cells_that_cannot_be_meant_are_refused(table: str, change: dict[str, object], message: str) -> None:
    tables = ablation_tables()
    with pytest.raises(InputError, match=message):
        REPORT.check(run(tables | {table: tables[table].assign(**change)}))


@pytest.mark.parametrize(("table", "column"), [("ablation", "p_holm"), ("ablation", "mode"), ("pruning", "strategy")])
def test_a_missing_column_is_named(table: str, column: str) -> None:
    tables = ablation_tables()
    with pytest.raises(InputError, match=rf"folder/{table}\.csv: no column {column}\."):
        REPORT.check(run(tables | {table: tables[table].drop(columns=column)}))


@pytest.mark.parametrize("figures", rest_slow([True, False], [False]))
def test_a_run_writes_its_tables_and_figures(tmp_path: Path, *, figures: bool) -> None:
    tables = ablation_tables()
    with RunFolder.create(tmp_path / "run", command="ablate", model="demo") as folder:
        folder.start({})
        write_results(folder, tables, ablation_figures(tables) if figures else ())
        folder.finish({})
    read = read_recorded(tmp_path / "run", "run")
    REPORT.check(read)
    for name, frame in tables.items():
        expected = frame.replace({"removed": {"": np.nan}}) if name == "pruning" else frame
        pd.testing.assert_frame_equal(read.tables[name], expected, check_dtype=False)
    assert [path.stem for path in read.pictures] == (sorted(NAMES) if figures else [])


def test_names_that_look_like_numbers_stay_words(tmp_path: Path) -> None:
    read = read_recorded(write_ablation(tmp_path / "run", "12"), "run")
    for frame in read.tables.values():
        assert set(frame["model"]) == {"12"}
    change_record(tmp_path / "run", {"rows": {}})
    for table, column, name in (("pruning", "strategy", "1.50"), ("other", "task", "true"), ("other", "metric", "007")):
        pd.DataFrame({column: [name]}).to_csv(tmp_path / f"run/{table}.csv", index=False)
        assert set(read_recorded(tmp_path / "run", "run").tables[table][column]) == {name}


def test_the_page_shows_the_tables(tmp_path: Path) -> None:
    read = read_recorded(write_ablation(tmp_path / "run"), "run")
    html = render([RunSection(read, [])])
    order = [
        "Largest losses without a head",
        "Best head of each layer (none is significant)",
        "Pruned models",
        "ablation.csv",
        "pruning.csv",
    ]
    places = [html.index(f"<bdi>{title}</bdi>") for title in order]
    assert places == sorted(places)
    assert all(f'data-v="{value!r}"' in html for value in read.tables["ablation"]["delta"])


@pytest.mark.parametrize("words", rest_slow(HOSTILE, [HOSTILE[0], HOSTILE[6]]))
def test_nothing_from_a_run_becomes_an_element(tmp_path: Path, words: str) -> None:
    read = read_recorded(write_ablation(tmp_path / "run", words, metric=words, modes=(words, "keep-only")), words)
    html = render([RunSection(read, [])])
    # Our script, and the data that it shows, in which nothing begins an element.
    assert (html.count("<script>"), html.count('<script type="application/json"')) == (1, 1)
    assert (html.count("<script"), html.count("<svg onload")) == (2, 0)
    assert "<img" not in html
    assert str(escape(visible(words))) in html
