"""Whether the heads of two models vary smoothly over depth: the table, its sentences, its page and its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.table import Table

from headlens.pages.command_report import Caption
from headlens.pages.formatting import number_text
from headlens.pages.page_tables import Cell, PageTable, number_cell, page_table
from headlens.plots.head_grid import by_model_and_stack, float_column, has_numbers, scatter_grid
from headlens.plots.point_rows import PointGroup, PointPanel, point_rows
from headlens.plots.style import BLUE, GREEN, ORANGE, PURPLE
from headlens.runs.reading import RecordedRun, labelled_records
from headlens.statistics.grid_smoothness import PERMUTATIONS, STATISTICS, GridStatistic, difference
from headlens.statistics.non_inferiority import LEVEL
from headlens.statistics.paired_tests import holm
from headlens.tables.classify_tables import SMOOTHNESS, SMOOTHNESS_STATISTICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "smoothness"  # of the table and the figure
_TITLE = "How smoothly heads vary over depth"
_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)

SMOOTHNESS_CAPTION = Caption(
    _TITLE,
    "Top: the mean correlation of heads of the same number in neighbouring layers, with its 95 % interval over head "
    "numbers, which fewer than four do not have. Bottom: Moran's I over the grid of layers and heads, which has no "
    "interval. Dashed: expected value for heads in random order. A dot is hollow where chance may give as much: p of "
    "0.05 or more by permutation, with Holm's correction for all dots; p-values of the table are not corrected. Where "
    "layers share their weights (ALBERT), head h of one layer is head h of the next; in other models head numbers "
    "carry no meaning, and the correlation varies around 0, while Moran's I exceeds its chance level as soon as "
    "layers differ.",
)


def smoothness_table(heads: pd.DataFrame, quantities: Sequence[str], seed: int) -> pd.DataFrame:
    """Statistics of every model, stack and quantity, and how far the correlations of two models differ.

    A row without `other_model` has a statistic of `model`, see `headlens.statistics.grid_smoothness`; one with it the
    correlation of `model` less that of `other_model`, with the interval of the difference. Layers without heads are
    passed over, so that those on either side of them are neighbours.

    Args:
        heads: a row for each head: model, stack, layer, head, and the quantities.
        quantities: names of columns; those that are empty, or the same as one before them, are left out.
        seed: of the permutations.
    """
    rows: list[dict[str, Any]] = []
    columns: dict[str, npt.NDArray[np.float64]] = {}
    for name in quantities:
        column = float_column(heads, name)
        if has_numbers(heads, name) and not any(np.array_equal(column, c, equal_nan=True) for c in columns.values()):
            columns[name] = column
    for quantity in columns:
        correlations: dict[str, list[tuple[str, GridStatistic]]] = {}
        for part in by_model_and_stack(heads):
            grid = np.asarray(scatter_grid(part.rows, float_column(part.rows, quantity)), np.float64)
            grid = grid[np.isfinite(grid).any(axis=1)]
            size = {"layers": len(grid), "heads": int(np.isfinite(grid).sum())}
            by_statistic = {name: statistic(grid, seed=seed) for name, statistic in STATISTICS.items()}
            for name, smoothness in by_statistic.items():
                key = dict(zip(SMOOTHNESS.identity, (part.model, "", part.stack, quantity, name), strict=True))
                rows.append(key | size | vars(smoothness))
            correlations.setdefault(part.stack, []).append((part.model, by_statistic["depth_correlation"]))
        for stack, models in correlations.items():
            for (first, one), (second, other) in combinations(models, 2):
                key = dict(zip(SMOOTHNESS.identity, (second, first, stack, quantity, "depth_correlation"), strict=True))
                rows.append(key | vars(difference(other, one)))
    table = pd.DataFrame(rows).rename(columns={"low": "ci_low", "high": "ci_high"})
    return table.reindex(columns=SMOOTHNESS.names).astype({"layers": "Int64", "heads": "Int64"})


def smoothness_overview(runs: Sequence[RecordedRun]) -> PageTable:
    """Rows of `smoothness.csv` of several runs as one short table; runs of one model have none."""
    records = labelled_records(runs, NAME, _records)
    about = (
        "Whether heads vary smoothly: the mean correlation of heads of the same number in neighbouring layers, and "
        "Moran's I over the grid of layers and heads. Heads, not texts, are the sample for the intervals (jackknife "
        f"over head numbers) and the p-values ({PERMUTATIONS:,} permutations; not corrected for multiple testing)."
    )
    return page_table(_TITLE, records, about)


def smoothness_on_console(table: pd.DataFrame) -> list[Table]:
    """The statistics of one run; nothing where none is defined."""
    records = _records(table)
    return [page_table(_TITLE, records).console()] if records else []


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {"model": f"{row['model']} minus {row['other_model']}" if _is_difference(row) else row["model"]}
        | {"stack": row["stack"], "quantity": row["quantity"], "statistic": SMOOTHNESS_STATISTICS[row["statistic"]]}
        | {"value": number_cell(row["value"]), "95 % CI over heads": _interval(row)}
        | {"by chance": number_cell(row["expected"])}
        | {"p": Cell("" if np.isnan(row["p_value"]) else f"{row['p_value']:.4f}", repr(row["p_value"]))}
        for row in table.to_dict("records")
        if np.isfinite(row["value"])
    ]


def smoothness_notes(table: pd.DataFrame) -> list[str]:
    """How far the correlations of two models differ, a sentence for each difference that has an interval."""
    several = len(set(table["stack"])) > 1
    notes = []
    for row in table.to_dict("records"):
        if _is_difference(row) and np.isfinite(row["ci_low"]):
            where = f"{row['stack']}: " if several else ""
            notes.append(
                f"{where}the correlation of {row['quantity']} from one layer to the next, head by head, in "
                f"{row['model']} minus that in {row['other_model']} is {number_text(row['value'])} [{_interval(row)}]."
            )
    return notes


def smoothness_figure(table: pd.DataFrame) -> Figure | None:
    """The statistics of the models side by side, a panel for each statistic with a row for each quantity and stack.

    Dots are hollow where the statistic is not significantly away from what chance gives.

    Args:
        table: rows of `smoothness.csv`.

    Returns:
        The figure, or None where no statistic is defined.
    """
    of_one = np.array([not _is_difference(row) for row in table.to_dict("records")], bool)
    rows = table[of_one & np.isfinite(float_column(table, "value"))]
    stacks = ", " + rows["stack"].astype(str) if len(set(rows["stack"])) > 1 else ""
    p_holm = holm(float_column(rows, "p_value"))
    rows = rows.assign(name=rows["quantity"].astype(str) + stacks, hollow=~(p_holm < LEVEL))
    panels = []
    for statistic, same_statistic in rows.groupby("statistic", sort=False):
        # What chance gives depends on the number of heads, and so on the model.
        chance = _chance(same_statistic)
        groups = [
            PointGroup(
                str(model),
                _COLOURS[number % len(_COLOURS)],
                of_model["name"].tolist(),
                of_model,
                level=_chance(of_model) if len(chance) > 1 else chance.iloc[:0],
                hollow=of_model["hollow"].to_numpy(bool),
            )
            for number, model in enumerate(rows["model"].drop_duplicates())
            for of_model in [same_statistic[same_statistic["model"] == model]]
        ]
        names = same_statistic["name"].drop_duplicates().tolist()
        common = chance if len(chance) == 1 else chance.iloc[:0]
        panels.append(PointPanel(SMOOTHNESS_STATISTICS[str(statistic)], names, groups, common, "chance level"))
    hollow = f"\n(hollow: p of {LEVEL} or more, with Holm's correction)" * bool(rows["hollow"].any())
    return point_rows(f"{_TITLE}{hollow}", panels) if panels else None


def _chance(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"value": rows["expected"].dropna().unique()})


def _is_difference(row: Mapping[Any, Any]) -> bool:
    return not pd.isna(row["other_model"]) and row["other_model"] != ""


def _interval(row: Mapping[Any, Any]) -> str:
    low, high = row["ci_low"], row["ci_high"]
    return "" if np.isnan(low) or np.isnan(high) else f"{number_text(low)} to {number_text(high)}"
