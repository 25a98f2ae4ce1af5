"""What `headlens ablate` shows on the card of each head, and its findings in a few sentences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from headlens.analyses.ablate.curve_figure import NONE, RANDOM
from headlens.analyses.ablate.map_figure import KEEP_ONLY, significant
from headlens.analyses.ablate.overviews import FEWEST, most_damage, worsening
from headlens.errors import counted
from headlens.pages.head_cards import HeadFacts, HeadSeries
from headlens.pages.page_tables import number_text
from headlens.plots.head_grid import float_column, head_name
from headlens.runs.reading import RecordedRun
from headlens.tasks.task_options import LOWER_IS_BETTER


def ablation_heads(run: RecordedRun) -> HeadFacts:
    """How a task changes without a head, or with it alone in its layer: signs and colours as on the map."""
    if "ablation" not in run.tables:
        return HeadFacts()
    series = []
    for names, own in run.tables["ablation"].groupby(["task", "metric", "mode"], sort=False):
        task, metric, mode = map(str, names)
        alone = mode == KEEP_ONLY
        what = "when the head is the only one in its layer" if alone else f"without the head ({mode})"
        about = f"The change in {metric} {what}, with its paired 95 % interval. Red is worse."
        title = f"{task}: change in {metric} {'when it is the only one' if alone else 'when it is removed'}"
        title += "" if alone or mode == "zero" else f" ({mode})"
        rows = own.assign(sure=np.where(np.isfinite(float_column(own, "p_holm")), significant(own), np.nan))
        key, ends, worse = f"{task} {metric} {mode}", ("ci_low", "ci_high"), metric in LOWER_IS_BETTER
        series.append(HeadSeries(key, title, about, rows, "delta", ends, diverging=True, worse=worse, sure="sure"))
    return HeadFacts(series)


def findings_of(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """The head that is needed most, how many have a significant effect, and how many can be pruned.

    A head is not said to be needed where no change is significant.

    Args:
        tables: `ablation` and `pruning` as they are written; either may be missing.
    """
    sentences = []
    ablation = tables.get("ablation", pd.DataFrame({"mode": [], "model": []}))
    for key, rows in ablation[ablation["mode"] != KEEP_ONLY].groupby(["model", "mode"], sort=False):
        if rows["n"].iloc[0] >= FEWEST and rows["delta"].notna().any():
            sentences.append(f"{key[0]}: {_needed(rows)}")
    if "pruning" in tables:
        sentences += _pruned(tables["pruning"])
    return sentences


def _needed(rows: pd.DataFrame) -> str:
    """The effect of removing the heads of one model in one mode, in a sentence."""
    task, metric, baseline = (rows[name].iloc[0] for name in ("task", "metric", "baseline"))
    worst, worse, sure = most_damage(rows, 1), worsening(rows), significant(rows)
    better = _better_without(rows[sure & (worse < 0)])
    if worst.empty:
        whole = f"{metric} {number_text(float(baseline))}"
        none = f"none of {len(rows)} heads is needed for {task} on its own"
        return f"{none}: without any one of them, {whole} or better.{better}"
    row, lost = worst.iloc[0], int((sure & (worse > 0)).sum())
    values = [number_text(float(row[name])) for name in ("value", "baseline", "delta", "ci_low", "ci_high")]
    change = (
        f"{metric} {values[0]} instead of {values[1]}, a change of {values[2]} [{values[3]}, {values[4]}], "
        f"Holm-corrected p {'below 0.001' if row['p_holm'] < 0.001 else format(row['p_holm'], '.3f')}."
    )
    if not lost:
        effect = f"is significantly needed for {task}" if better else f"changes {task} significantly"
        none = f"none of {len(rows)} heads {effect} on its own"
        return f"{none}; the largest loss is without {head_name(row)}: {change}{better}"
    told = f"{counted(lost, 'head')} of {len(rows)} {'is' if lost == 1 else 'are'} significant."
    return f"{task} suffers most without {head_name(row)}: {change} {told}{better}"


def _better_without(rows: pd.DataFrame) -> str:
    """Of heads without which a model is significantly better: how many, and the foremost one."""
    if rows.empty:
        return ""
    row = rows.iloc[int(np.argmin(worsening(rows)))]
    best, value = head_name(row), number_text(float(row["value"]))
    if len(rows) == 1:
        return f" Without {best}, {row['metric']} is significantly better: {value}."
    which = f"Without each of {len(rows)} heads, {row['metric']} is significantly better, most so without"
    return f" {which} {best}: {value}."


def _pruned(pruning: pd.DataFrame) -> list[str]:
    """The most heads that a strategy takes out without a loss that shows: the paired interval of the change tells."""
    if "delta" not in pruning:
        return []
    sentences = []
    for model, rows in pruning.groupby("model", sort=False):
        chosen = rows[~rows["strategy"].isin([NONE, RANDOM]) & (rows["n_pruned"] > 0)].dropna(subset=["delta"])
        if chosen.empty:
            continue
        lower = set(rows["metric"]) <= LOWER_IS_BETTER
        unharmed = chosen[(chosen["delta_low"] <= 0) if lower else (chosen["delta_high"] >= 0)]
        # The most heads without harm, or else the fewest; of as many heads the best model counts.
        most = len(unharmed) > 0
        order = (unharmed if most else chosen).sort_values("value", ascending=lower, kind="stable")
        row = order.sort_values("n_pruned", ascending=not most, kind="stable").iloc[0]
        what = "shows no loss" if most else "already shows a loss, and no smaller number was tried"
        if most and row["n"] < FEWEST:
            what = f"was measured on {counted(int(row['n']), 'example')}, too few to reveal a loss"
        value, delta, low, high = (number_text(float(row[n])) for n in ("value", "delta", "delta_low", "delta_high"))
        gone, left = int(row["n_pruned"]), int(row["n_heads"])
        sentences.append(
            f"{model}: {row['task']} with {gone} of {gone + left} heads pruned ({row['strategy']}) {what}: "
            f"{row['metric']} {value}, a change of {delta} [{low}, {high}]."
        )
    return sentences
