"""What `headlens ablate` tells about single heads, and about all of them in a few sentences."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headlens.analyses.ablate.curve_figure import NONE, RANDOM
from headlens.analyses.ablate.map_figure import KEEP_ONLY, significant
from headlens.analyses.ablate.overviews import FEWEST, most_damage
from headlens.errors import counted
from headlens.heads import Head
from headlens.pages.head_cards import HeadFacts, HeadSeries
from headlens.pages.page_tables import number_text
from headlens.plots.head_grid import float_column
from headlens.runs.reading import RecordedRun
from headlens.tasks.task_options import LOWER_IS_BETTER


def ablation_heads(run: RecordedRun) -> HeadFacts:
    """How a task changes without a head, or with it alone in its layer: signs and colours as on the map."""
    if "ablation" not in run.tables:
        return HeadFacts()
    series = []
    for key, rows in run.tables["ablation"].groupby(["task", "metric", "mode"], sort=False):
        task, metric, mode = map(str, key)
        alone = mode == KEEP_ONLY
        what = "when the head is the only one in its layer" if alone else f"without the head ({mode})"
        about = f"The change of {metric} {what}, with its paired 95 % interval. Red is worse."
        title = f"{task}: change of {metric} {'when it is the only one' if alone else 'when it is removed'}"
        title += "" if alone or mode == "zero" else f" ({mode})"
        series.append(
            HeadSeries(
                f"{task} {metric} {mode}",
                title,
                about,
                rows.assign(sure=np.where(np.isfinite(float_column(rows, "p_holm")), significant(rows), np.nan)),
                "delta",
                ("ci_low", "ci_high"),
                diverging=True,
                worse=metric in LOWER_IS_BETTER,
                sure="sure",
            )
        )
    return HeadFacts(series)


def ablation_findings(run: RecordedRun) -> list[str]:
    """The head that is needed most, how many are needed for sure, and how many can go."""
    sentences = []
    ablation = run.tables.get("ablation", pd.DataFrame({"mode": [], "model": []}))
    for key, rows in ablation[ablation["mode"] != KEEP_ONLY].groupby(["model", "mode"], sort=False):
        model, _ = map(str, key)
        worst = most_damage(rows, 1)
        if worst.empty:
            continue
        row, sure = worst.iloc[0], int(significant(rows).sum())
        head = Head(row["stack"], int(row["layer"]), int(row["head"]))
        values = [number_text(float(row[name])) for name in ("value", "baseline", "delta", "ci_low", "ci_high")]
        # What is certain stands first.
        before = row["task"] if sure else f"no head of {len(rows)} changes {row['task']} significantly; it"
        after = f" {counted(sure, 'head')} of {len(rows)} {'is' if sure == 1 else 'are'} significant." if sure else ""
        sentences.append(
            f"{model}: {before} suffers most without {head}: {row['metric']} {values[0]} instead of {values[1]}, "
            f"a change of {values[2]} [{values[3]}, {values[4]}], Holm-corrected p {_p(float(row['p_holm']))}.{after}"
        )
    if "pruning" in run.tables:
        sentences += _pruned(run.tables["pruning"])
    return sentences


def _p(value: float) -> str:
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


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
        # Of as many heads the best model counts.
        order = chosen.sort_values("value", ascending=lower, kind="stable")
        row = order.iloc[int(np.argmin(order["n_pruned"]))]
        if len(unharmed):
            order = unharmed.sort_values("value", ascending=lower, kind="stable")
            row = order.iloc[int(np.argmax(order["n_pruned"]))]
        what = "shows no loss" if len(unharmed) else "already shows a loss, and no smaller number was tried"
        if len(unharmed) and row["n"] < FEWEST:
            what = f"was measured on {counted(int(row['n']), 'example')}, too few to reveal a loss"
        value, delta, low, high = (number_text(float(row[n])) for n in ("value", "delta", "delta_low", "delta_high"))
        gone, left = int(row["n_pruned"]), int(row["n_heads"])
        sentences.append(
            f"{model}: {row['task']} with {gone} of {gone + left} heads pruned ({row['strategy']}) {what}: "
            f"{row['metric']} {value}, a change of {delta} [{low}, {high}]."
        )
    return sentences
