"""Tables of rankings of heads: how alike and how stable they are, pairs of heads, and the metric while heads go."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from headlens.analyses.ablate.overviews import Row, control_names
from headlens.analyses.ablate.rankings import CONTROL_COLUMNS, sets_have_no_verdicts
from headlens.errors import counted
from headlens.heads import KEY_COLUMNS
from headlens.pages.formatting import number_text
from headlens.pages.page_tables import Cell, PageTable, difference_cell, interval_cell, number_cell, page_table
from headlens.plots.head_grid import head_name
from headlens.runs.reading import RecordedRun, labelled_rows, run_label, tables_of
from headlens.statistics.non_inferiority import LEVEL

_SOURCES = {
    "heads": "nothing: common to all",
    "strategy": "the strategy",
    "examples": "the examples",
    "orders": "the random orders",
}
_PAIR_COLUMNS = {
    "interaction": "interaction",
    "standard error": "se",
    "p (Holm)": "p_holm",
    "Shapley value": "value",
    "of the other": "other_value",
}


def compared_rankings(runs: Sequence[RecordedRun]) -> PageTable:
    """How alike two strategies rank the heads."""
    records = [
        label
        | {"model": row["model"], "strategy": row["strategy"], "other strategy": row["other_strategy"]}
        | {"Spearman's ρ": number_cell(row["spearman"]), "95 % CI over heads": _ends_cell(row), "heads": row["heads"]}
        | {"without the noise of examples": number_cell(row.get("corrected", math.nan))}
        for label, row in labelled_rows(runs, "ranking_agreement")
    ]
    about = (
        "Rank correlations between what heads are worth by two strategies, on the examples that heads are chosen on; "
        "intervals resample heads, and say nothing of other examples. Without the noise of examples: as it would be on "
        "endless ones, from one strategy on one half and the other on the other half, over the reliability of both "
        "(noise can bring it above 1)."
    )
    return page_table("Do strategies rank the heads alike?", records, about)


def stable_rankings(runs: Sequence[RecordedRun]) -> PageTable:
    """How much rankings of heads change with the examples, the random orders and the strategy."""
    records = [
        label
        | {"model": row["model"], "strategy": row["strategy"], "changes with": _SOURCES[row["source"]]}
        | {"share of the variance of ranks": number_cell(row["share"]), "reliability": number_cell(row["reliability"])}
        | {"2.5 % of divisions": number_cell(row["low"]), "97.5 %": number_cell(row["high"]), "examples": row["n"]}
        for label, row in labelled_rows(runs, "ranking_variance")
    ]
    about = (
        "Where the variance of ranks comes from: from what all strategies say of the heads, from differences between "
        "strategies, or from the examples (and random orders of Shapley values). Reliability is the correlation with "
        "the same ranking on as many other examples, from random halves by the formula of Spearman and Brown, 0 where "
        "they do not agree; the quantiles are over random divisions, and are no confidence limits."
    )
    return page_table("How stable are the rankings?", records, about)


def interacting_pairs(runs: Sequence[RecordedRun]) -> PageTable:
    """How pairs of the heads with the largest Shapley values interact, the strongest first."""
    records = []
    for run, table in tables_of(runs, "interactions"):
        silent = {model for model, rows in run.tables["pruning"].groupby("model") if sets_have_no_verdicts(rows)}
        order = table["interaction"].abs().sort_values(ascending=False, kind="stable").index
        for row in table.loc[order].to_dict("records"):
            heads = {
                name: head_name({key: row[f"{prefix}{key}"] for key in KEY_COLUMNS})
                for name, prefix in (("head", ""), ("other head", "other_"))
            }
            numbers = {name: number_cell(row[column]) for name, column in _PAIR_COLUMNS.items()}
            known = "" if row["model"] in silent else "yes" if row["p_holm"] < LEVEL else "no"
            sure = {"significant": known, "n": row["n"]}
            records.append(run_label(run, runs) | {"model": row["model"]} | heads | numbers | sure)
    about = (
        "Shapley interaction index of pairs of heads for minus the loss of an example (a sum where it predicts several "
        "tokens), on the examples that heads are chosen on: below 0, each stands in for the other; above 0, each "
        "needs the other. P-values are corrected for the pairs of the model (Holm); where it has no verdicts "
        "they tell nothing of its heads."
    )
    return page_table("Which heads stand in for each other, or need each other?", records, about)


def pruning_areas(runs: Sequence[RecordedRun]) -> PageTable:
    """The mean of the metric over numbers of pruned heads, beside those of random orders."""
    records = [
        run_label(run, runs)
        | {"model": row["model"], "strategy": row["strategy"], "mean of the metric": number_cell(row["area"])}
        | {"95 % CI": _between(row, "ci_low", "ci_high"), "difference [95 % CI]": difference_cell(row)}
        | {"from": row.get("compared_with")}
        | {"random orders, lowest": number_cell(row["random_low"]), "highest": number_cell(row["random_high"])}
        | {"worse than it": "" if pd.isna(row["better_than"]) else f"{row['better_than']:.0f} of {row['orders']}"}
        | {
            f"{name}, {words}": number_cell(row.get(column.format(prefix), math.nan))
            for name, prefix in CONTROL_COLUMNS.items()
            for words, column in (("lowest", "{}_low"), ("highest", "{}_high"))
        }
        | {
            f"{name}, how many worse": Cell("") if math.isnan(worse) else Cell(f"{worse:.0f}", repr(worse))
            for name, prefix in CONTROL_COLUMNS.items()
            for worse in [float(row.get(f"better_than_{prefix}", math.nan))]
        }
        | {"up to": counted(int(row["most"]), "head")}
        for run, table in tables_of(runs, "pruning_areas")
        for row in table.assign(strategy=control_names(table)).to_dict("records")
    ]
    about = (
        "Mean of the metric over numbers of pruned heads, from none to the most (trapezoids), on examples that heads "
        "were not chosen on; of random orders and sets the mean. Intervals are over examples, paired for differences "
        "(bootstrap); the heads stay those that were chosen. `worse than it` counts random orders whose mean is "
        "worse, `how many worse` random sets beside those of the strategy; a few do not make a test."
    )
    return page_table("The metric while heads go", records, about)


def measured_circuits(runs: Sequence[RecordedRun]) -> PageTable:
    """CPR and CMD of circuits of heads and MLPs, as MIB defines them."""
    records = [
        label
        | {"model": row["model"], "nodes ranked by": row["ranking"] + f" {row['seed']:.0f}" * pd.notna(row["seed"])}
        | {"measure": row["measure"], "area": number_cell(row["area"]), "95 % CI": _between(row, "ci_low", "ci_high")}
        | {"n": row["n"]}
        for label, row in labelled_rows(runs, "mib_areas")
    ]
    about = (
        "Faithfulness of circuits, over their shares of all heads and MLPs from .001 to 1: the area below it (CPR, "
        "nodes ranked by their scores; higher is better) and below its distance from 1 (CMD, nodes ranked by the size "
        "of these; lower is better). All other nodes give what they give on the changed text (Mueller et al. 2025)."
    )
    return page_table("How faithful are circuits of heads and MLPs?", records, about)


def _between(row: Row, low_name: str, high_name: str) -> str:
    """The ends of an interval; nothing where there are none."""
    low, high = (float(row.get(name, math.nan)) for name in (low_name, high_name))
    return f"[{number_text(low)}, {number_text(high)}]" if np.isfinite([low, high]).all() else ""


def _ends_cell(row: Row) -> Cell:
    return interval_cell((row["ci_low"], row["spearman"], row["ci_high"], 0.0), (-1.0, 1.0))
