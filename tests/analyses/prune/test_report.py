from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_gates import Made, gate_tables, write_prune
from made_runs import HOSTILE
from markupsafe import escape
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.analyses.prune.report import REPORT, gate_figures, write_gates
from headlens.analyses.prune.results_table import results_markdown
from headlens.analyses.report.page import RunSection, picture, render
from headlens.analyses.report.registry import reports
from headlens.errors import InputError
from headlens.pages.self_contained import visible
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun, read_recorded

MADE = Made(shapes={"encoder": (2, 3)}, penalties=(0.01, 0.1), steps=(0, 5, 10), metrics=("accuracy",))
FIGURES = ["quality", "kept", "functions", "functions_after", "gates_encoder"]


def run(tables: Mapping[str, pd.DataFrame]) -> RecordedRun:
    return RecordedRun(Path("folder"), "run", {"command": "prune", "status": "finished"}, tables)


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure | None]:
    """What tests only look at."""
    return dict(gate_figures(gate_tables(MADE)))


def test_every_figure_is_drawn_and_has_a_caption(drawn: dict[str, Figure | None]) -> None:
    assert list(drawn) == FIGURES
    assert all(figure is not None for figure in drawn.values())
    assert all(REPORT.caption(name).text.endswith(".") for name in drawn)
    assert REPORT.caption("gates_cross_2") == REPORT.captions["gates"]
    assert REPORT.caption("functions_after") != REPORT.caption("functions")
    assert reports()["prune"] is REPORT
    assert [name for name, _ in REPORT.figures(run(gate_tables(MADE)))] == FIGURES


def test_what_is_not_known_is_not_drawn() -> None:
    tables = gate_tables(MADE)
    assert [name for name, _ in gate_figures({"sweep": tables["sweep"]})] == ["quality"]
    assert list(gate_figures({})) == []
    without = tables["roles"].drop(columns="role_pruned")
    assert [name for name, _ in gate_figures({"roles": without})] == ["functions"]
    assert [name for name, _ in gate_figures({"roles": without.assign(role_pruned=np.nan)})] == ["functions"]


def test_tables_without_numbers_give_no_figure() -> None:
    tables = {name: frame.iloc[:0] for name, frame in gate_tables(MADE).items()}
    assert [name for name, figure in gate_figures(tables) if figure is not None] == []
    empty = gate_tables(MADE)["gates"].assign(gate=np.nan)
    assert [name for name, figure in gate_figures({"gates": empty}) if figure is not None] == []


def test_a_finished_run_needs_gates_and_sweep_but_no_roles() -> None:
    tables = gate_tables(MADE)
    REPORT.check(run(tables))
    REPORT.check(run({name: tables[name] for name in ("gates", "sweep")}))
    with pytest.raises(InputError, match=r"folder/sweep\.csv is missing, which every finished run of prune"):
        REPORT.check(run({"gates": tables["gates"]}))


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("gates", {"gate": "open"}, r"gates\.csv:2: column gate holds 'open'"),
        ("gates", {"step": np.inf}, r"gates\.csv:2: column step holds 'inf'"),
        ("gates", {"stack": "all"}, r"gates\.csv:2: column stack holds 'all'"),
        ("gates", {"step": 0}, r"gates\.csv:8: a row for opus-mt-en-de, lambda-0.01, 0, encoder, 0, 0 appears twice"),
        ("sweep", {"init": "random"}, r"sweep\.csv:2: column init holds 'random'"),
        ("sweep", {"heads_encoder": "few"}, r"sweep\.csv:2: column heads_encoder holds 'few'"),
        ("sweep", {"run": "a", "init": "trained"}, r"sweep\.csv:3: a row for opus-mt-en-de, a, trained, accuracy"),
        ("roles", {"layer": -1}, r"roles\.csv:2: column layer holds '-1'"),
    ],
)
def test_cells_that_cannot_be_meant_are_refused(table: str, change: dict[str, object], message: str) -> None:
    tables = gate_tables(MADE)
    with pytest.raises(InputError, match=message):
        REPORT.check(run(tables | {table: tables[table].assign(**change)}))


@pytest.mark.parametrize(("table", "name"), [("gates", "gate"), ("sweep", "heads_cross"), ("roles", "kept")])
def test_a_missing_column_is_named(table: str, name: str) -> None:
    tables = gate_tables(MADE)
    with pytest.raises(InputError, match=rf"folder/{table}\.csv: no column {name}\."):
        REPORT.check(run(tables | {table: tables[table].drop(columns=name)}))


@pytest.mark.parametrize("figures", rest_slow([True, False], [False]))
def test_a_run_writes_its_tables_results_and_figures(tmp_path: Path, *, figures: bool) -> None:
    tables = gate_tables(replace(MADE, penalties=(0.1,), steps=(0, 5)))
    with RunFolder.create(tmp_path / "run", command="prune", model="demo") as folder:
        folder.start({})
        write_gates(folder, tables, ["Chance is 0.5."], figures=figures)
        folder.finish({})
    read = read_recorded(tmp_path / "run", "run")
    REPORT.check(read)
    assert list(read.tables) == ["gates", "sweep", "roles", "results"]
    for name, frame in tables.items():
        empty = {column: {"": np.nan} for column in ("removed", "role", "roles", "role_pruned") if column in frame}
        expected = frame.replace(empty).reset_index(drop=True)
        expected = expected.where(expected.notna(), np.nan)
        pd.testing.assert_frame_equal(read.tables[name], expected, check_dtype=False)
    written = (tmp_path / "run/results.md").read_text(encoding="utf-8")
    assert written == results_markdown(tables["sweep"]) + "\n## Notes\n\n- Chance is 0.5.\n"
    assert [path.stem for path in read.pictures] == (sorted(FIGURES) if figures else [])
    listed = {path.relative_to(tmp_path / "run").as_posix() for path in folder.files}
    assert {"results.md", "results.csv"} <= listed


def test_what_is_drawn_from_files_is_what_is_drawn_from_tables(tmp_path: Path) -> None:
    read = read_recorded(write_prune(tmp_path / "run", MADE), "run")
    assert [name for name, figure in gate_figures(read.tables) if figure is not None] == FIGURES
    assert results_markdown(read.tables["sweep"]) == results_markdown(gate_tables(MADE)["sweep"])


@pytest.mark.slow
def test_the_page_shows_the_tables_and_the_figures(tmp_path: Path) -> None:
    read = read_recorded(write_prune(tmp_path / "run", MADE), "run")
    figures = dict(gate_figures(read.tables))
    with RunFolder.create(tmp_path / "figures", command="report", model="demo") as folder:
        folder.start({})
        paths = {name: folder.figure(name, figures[name])[0] for name in ("gates_encoder",)}
    pictures = [picture(path, name, "run") for name, path in paths.items()]
    html = render([RunSection(read, pictures)])
    order = [
        "Heads left and what they achieve",
        "Heads that remain",
        "Which roles die last",
        "Gates during training",
        "gates.csv",
        "sweep.csv",
        "roles.csv",
    ]
    places = [html.index(f"<bdi>{title}</bdi>") for title in order]
    assert places == sorted(places)
    assert html.count("data:image/webp;base64,") == 1


@pytest.mark.parametrize("words", rest_slow(HOSTILE, [HOSTILE[0], HOSTILE[6]]))
def test_nothing_from_a_run_becomes_an_element(words: str) -> None:
    tables = gate_tables(MADE)
    tables["sweep"] = tables["sweep"].assign(model=words, task=words, metric=words, checkpoint=words)
    tables["gates"] = tables["gates"].assign(model=words)
    tables["roles"] = tables["roles"].assign(model=words, role=words, roles=words)
    html = render([RunSection(run(tables), [])])
    # Our script, and the data that it shows, in which nothing begins an element.
    assert (html.count("<script>"), html.count('<script type="application/json"')) == (1, 1)
    assert (html.count("<script"), html.count("<svg onload")) == (2, 0)
    assert "<img" not in html
    assert str(escape(visible(words))) in html
