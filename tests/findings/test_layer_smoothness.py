"""The table on how smoothly heads vary, and what the console, the page, the notes and the figure make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tiers import rest_slow

from headlens.analyses.classify.report import REPORT
from headlens.errors import InputError
from headlens.files import read_csv, write_csv
from headlens.findings.layer_smoothness import (
    NAME,
    smoothness_figure,
    smoothness_notes,
    smoothness_on_console,
    smoothness_overview,
    smoothness_table,
)
from headlens.plots.head_grid import Grid
from headlens.runs.reading import RecordedRun
from headlens.statistics.grid_smoothness import depth_correlation, difference, morans_i
from headlens.tables.classify_tables import SMOOTHNESS
from headlens.tables.table_check import check_table

COLUMNS = [
    *("model", "other_model", "stack", "quantity", "statistic"),
    *("layers", "heads", "value", "ci_low", "ci_high", "expected", "p_value"),
]


def heads_of(model: str, grid: Grid, stack: str = "encoder") -> pd.DataFrame:
    rows = [(model, stack, *place, grid[place]) for place in np.ndindex(grid.shape) if np.isfinite(grid[place])]
    return pd.DataFrame(rows, columns=["model", "stack", "layer", "head", "confidence"])


def grids(seed: int = 0) -> tuple[Grid, Grid]:
    """Heads that have nothing to do with each other, and heads that are the same at every depth."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(5, 6)), generator.normal(size=6) + 0.1 * generator.normal(size=(5, 6))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    bert, albert = grids()
    heads = pd.concat([heads_of("bert", bert), heads_of("12", albert)]).sample(frac=1, random_state=0)
    return smoothness_table(heads.sort_values("model", ascending=False), ["confidence", "absent"], seed=3)


def test_every_row_is_the_statistic_of_its_grid(table: pd.DataFrame) -> None:
    bert, albert = grids()
    assert table.columns.tolist() == COLUMNS
    assert table[COLUMNS[:5]].to_numpy().tolist() == [
        ["bert", "", "encoder", "confidence", "depth_correlation"],
        ["bert", "", "encoder", "confidence", "morans_i"],
        ["12", "", "encoder", "confidence", "depth_correlation"],
        ["12", "", "encoder", "confidence", "morans_i"],
        ["12", "bert", "encoder", "confidence", "depth_correlation"],
    ]
    own = [statistic(grid, seed=3) for grid in (bert, albert) for statistic in (depth_correlation, morans_i)]
    expected = [[*vars(found).values()] for found in (*own, difference(own[2], own[0]))]
    np.testing.assert_allclose(table[COLUMNS[7:]].to_numpy(float), np.array(expected))
    assert table["layers"].tolist()[:4] == [5] * 4
    assert table["heads"].tolist()[:4] == [30] * 4


def test_layers_without_heads_are_passed_over_and_stacks_stand_alone() -> None:
    bert, albert = grids()
    gap = np.insert(bert, 2, np.nan, axis=0)
    heads = pd.concat([heads_of("a", gap), heads_of("a", albert, "cross"), heads_of("b", albert, "cross")])
    found = smoothness_table(heads, ["confidence"], seed=0)
    assert found["layers"].tolist()[0] == 5
    assert found["value"][0] == pytest.approx(depth_correlation(bert).value)
    assert found["stack"].tolist() == ["encoder"] * 2 + ["cross"] * 5
    (note,) = smoothness_notes(found)
    assert note.startswith(
        "cross: the correlation of confidence from one layer to the next, head by head, in b minus that in a"
    )
    assert smoothness_figure(found) is not None


def test_what_is_told_has_the_numbers_of_the_table(table: pd.DataFrame) -> None:
    (note,) = smoothness_notes(table)
    last = table.iloc[-1]
    assert note.endswith(
        f"in 12 minus that in bert is {last['value']:.3f} [{last['ci_low']:.3f} to {last['ci_high']:.3f}]."
    )
    page = smoothness_overview([RecordedRun(Path("run"), "run", {}, {NAME: table})])
    cells = [[cell.text for cell in row] for row in page.rows]
    assert [row[0] for row in cells] == ["bert", "bert", "12", "12", "12 minus bert"]
    assert "95 % CI over heads" in [c.name for c in page.columns], "the number of texts does not matter"
    assert cells[2][3:] == [
        "correlation over depth",
        f"{table['value'][2]:.3f}",
        f"{table['ci_low'][2]:.3f} to {table['ci_high'][2]:.3f}",
        "0.000",
        "0.0001",
    ]
    assert cells[4][-2:] == ["", ""]
    (console,) = smoothness_on_console(table)
    assert console.row_count == 5


def test_models_of_other_sizes_have_chance_levels_of_their_own(table: pd.DataFrame) -> None:
    morans = (table["statistic"] == "morans_i") & (table["model"] == table["model"].iloc[0])
    figure = smoothness_figure(table.assign(expected=table["expected"].where(~morans, -0.25)))
    assert figure is not None
    lines = {line.get_label(): line for line in figure.axes[1].lines if str(line.get_label()).startswith("chance")}
    dots = {line.get_label(): line for line in figure.axes[1].lines}
    models = table["model"].drop_duplicates().tolist()
    assert set(lines) == {f"chance level, {model}" for model in models}
    assert float(np.asarray(lines[f"chance level, {models[0]}"].get_xdata())[0]) == -0.25
    assert all(lines[f"chance level, {model}"].get_color() == dots[model].get_color() for model in models)


def test_the_figure_has_a_panel_for_each_statistic_and_a_point_for_each_model(table: pd.DataFrame) -> None:
    figure = smoothness_figure(table)
    assert figure is not None
    assert [axes.get_xlabel() for axes in figure.axes] == ["correlation over depth", "Moran's I"]
    for axes, statistic in zip(figure.axes, ("depth_correlation", "morans_i"), strict=True):
        points = {line.get_label(): line.get_xdata() for line in axes.lines}
        own = table[(table["statistic"] == statistic) & (table["other_model"] == "")].set_index("model")["value"]
        assert {model: float(np.asarray(points[model])[0]) for model in own.index} == pytest.approx(own.to_dict())
        assert float(np.asarray(points["chance level"])[0]) == pytest.approx(0.0 if axes is figure.axes[0] else -1 / 29)
    assert smoothness_figure(table.iloc[:0]) is None


def test_dots_are_hollow_where_chance_may_give_as_much(table: pd.DataFrame) -> None:
    """Four dots are tested, so that by Holm's method .02 is not significant beside three that are larger."""
    of_one = table["other_model"] == ""
    for p_values, places in (
        ((0.02, 0.5, 0.6, 0.7), 4),
        ((0.01, 0.5, 0.6, np.nan), 3),
        ((0.001, 0.002, 0.003, 0.004), 0),
    ):
        tested = table.copy()
        tested.loc[of_one, "p_value"] = p_values
        figure = smoothness_figure(tested)
        assert figure is not None
        lines = [line for axes in figure.axes for line in axes.lines if line.get_markerfacecolor() == "white"]
        assert sum(len(line.get_xdata()) for line in lines) == places
        assert figure.get_suptitle().endswith("(hollow: p of 0.05 or more, with Holm's correction)") == bool(places)


def test_heads_too_few_for_any_statistic_are_told_nowhere() -> None:
    heads = pd.concat([heads_of(name, np.array([[0.5, 0.6]])) for name in ("a", "b")])
    found = smoothness_table(heads, ["confidence"], seed=0)
    assert found["value"].isna().all()
    assert (smoothness_on_console(found), smoothness_notes(found), smoothness_figure(found)) == ([], [], None)
    assert smoothness_table(heads, ["absent"], seed=0).columns.tolist() == COLUMNS


def test_the_table_is_read_back_and_checked(tmp_path: Path, table: pd.DataFrame) -> None:
    write_csv(table, tmp_path / "smoothness.csv")
    read = read_csv(tmp_path / "smoothness.csv", words=SMOOTHNESS.words)
    assert REPORT.tables[NAME] is SMOOTHNESS
    check_table(SMOOTHNESS, read, tmp_path / "smoothness.csv")
    one, other = (smoothness_overview([RecordedRun(Path("run"), "run", {}, {NAME: own})]) for own in (table, read))
    assert one == other
    assert smoothness_figure(read) is not None
    for column, cell in (("p_value", 2.0), ("statistic", "x"), ("layers", 1.5)):
        with pytest.raises(InputError, match=column):
            check_table(SMOOTHNESS, read.astype({column: object}).assign(**{column: cell}), tmp_path)


@pytest.mark.parametrize("damage", rest_slow(["x", None, np.inf, -1.5, "without"]))
@pytest.mark.parametrize("rows", rest_slow([1, None]))
def test_a_damaged_table_is_refused_or_shown(
    tmp_path: Path, table: pd.DataFrame, damage: object, rows: int | None
) -> None:
    for column in COLUMNS:
        other = table.drop(columns=column) if damage == "without" else table.astype({column: object})
        if damage != "without":
            other.loc[other.index[:rows], column] = damage
        other.to_csv(tmp_path / "smoothness.csv", index=False)
        read = read_csv(tmp_path / "smoothness.csv", words=SMOOTHNESS.words)
        try:
            check_table(SMOOTHNESS, read, tmp_path / "smoothness.csv")
        except InputError:
            continue
        smoothness_figure(read)
        smoothness_overview([RecordedRun(Path("run"), "run", {}, {NAME: read})])
