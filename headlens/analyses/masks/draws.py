"""Masks drawn from learned degrees: whether one draw is about as good as another (Brahma et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from headlens.analyses.masks.learned_options import LEARNED
from headlens.analyses.masks.study_figures import BLOCK, without_mask
from headlens.errors import counted
from headlens.pages.formatting import escaped, markdown_lines, unsigned, value_text
from headlens.plots import style
from headlens.plots.curves import VALUES
from headlens.plots.head_grid import float_column
from headlens.plots.point_rows import PointGroup, PointPanel, point_rows

# What is told of the draws from one distribution.
SPREAD = ("draws", "mean", "standard deviation", "lowest to highest", "different")
_KEYS = [*BLOCK, "pattern", "layers", "diagonal", "seed"]


def draw_summary(draws: pd.DataFrame, masks: pd.DataFrame) -> list[dict[str, Any]]:
    """How good masks are that were drawn from the same degrees, beside the mask that stays.

    Args:
        draws: rows of `draws.csv`.
        masks: rows of `masks.csv`.

    Returns:
        A row for each model, task, metric, pattern, layers, diagonal and seed: how many `draws`, their `mean`, standard
        deviation `sd`, `lowest` and `highest` value; how many are `different`, by a paired 95 % interval that leaves 0
        out; `value`, `ci_low` and `ci_high` of the mask that stays, whose interval is over the examples.
    """
    stays = masks[masks["pattern"].str.startswith(LEARNED)][[*_KEYS, *VALUES]]
    rows = []
    for key, group in draws.groupby(_KEYS, sort=False):
        values, of_draws = group["value"], dict(zip(_KEYS, key, strict=True))
        apart = (float_column(group, "delta_low") > 0) | (float_column(group, "delta_high") < 0)
        of_draws |= {"draws": len(group), "different": int(apart.sum())}
        of_draws |= {"mean": values.mean(), "sd": values.std(ddof=1), "lowest": values.min(), "highest": values.max()}
        kept = stays[(stays[_KEYS] == list(key)).all(axis=1)]
        rows.append(of_draws | {name: float(kept[name].mean()) for name in VALUES})
    return rows


def draws_markdown(draws: pd.DataFrame, masks: pd.DataFrame) -> str:
    """The section of results.md on drawn masks: a row per task, metric and mask, and how a draw counts as different."""
    names = ("task", "metric", "mask", *SPREAD, "the median mask [95 % interval]")
    lines = [list(names), [*["---"] * 3, *["---:"] * (len(SPREAD) + 1)]]
    for row in draw_summary(draws, masks):
        words = [escaped(str(text)) for text in (row["task"], row["metric"], mask_words(row))]
        lines.append([*words, *spread_texts(row), value_text(*(row[name] for name in VALUES))])
    about = (
        "The model that learned the degrees is evaluated under every draw. A draw counts as different if the 95 % "
        "interval of its difference from the median mask, paired over the examples, excludes 0."
    )
    return "\n".join(["## Masks drawn from learned degrees", "", *markdown_lines(lines), "", about]) + "\n"


def mask_words(row: Mapping[str, Any]) -> str:
    """What was learned, in words: pattern, layers, diagonal, seed."""
    parts = [str(row["pattern"])] + [f"layers {row['layers']}"] * (row["layers"] != "all")
    return ", ".join([*parts, *["no diagonal"] * (not row["diagonal"]), f"seed {row['seed']}"])


def spread_texts(row: Mapping[str, Any]) -> list[str]:
    """What `SPREAD` names, of a row of the summary."""
    span = unsigned(f"{row['lowest']:.3f} to {row['highest']:.3f}")
    return [str(row["draws"]), unsigned(f"{row['mean']:.3f}"), f"{row['sd']:.4f}", span, str(row["different"])]


def quality_of_draws(draws: pd.DataFrame, masks: pd.DataFrame) -> Figure | None:
    """Draws of every mask that was learned, from the lowest to the highest, beside the mask that stays.

    A panel per model, task and metric; the dashed line is the model without a mask, mean over seeds.

    Args:
        draws: rows of `draws.csv`.
        masks: rows of `masks.csv`.

    Returns:
        The figure, or None where nothing was drawn.
    """
    if draws.empty:
        return None
    summary = pd.DataFrame(draw_summary(draws, masks))
    several = len(set(summary["model"])) > 1
    panels = []
    for key, rows in summary.groupby(BLOCK, sort=False):
        model, task, metric = key
        names = [mask_words({str(k): v for k, v in row.items()}) for row in rows.to_dict("records")]
        full = without_mask(masks)
        level = full[(full[BLOCK] == list(key)).all(axis=1)]
        ranges = rows[["mean", "lowest", "highest"]].set_axis(list(VALUES), axis=1)
        most = counted(int(rows["draws"].max()), "draw")
        groups = [
            PointGroup("the median mask, 95 % interval", style.BLUE, names, rows[list(VALUES)]),
            PointGroup(f"{most} of masks: mean, lowest to highest", style.VERMILION, names, ranges),
        ]
        panels.append(PointPanel(f"{metric} on {task}", names, groups, level, "no mask", str(model) if several else ""))
    return point_rows("Masks drawn from learned degrees", panels)
