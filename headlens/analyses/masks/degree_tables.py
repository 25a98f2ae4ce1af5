"""Tables of degrees of attention: what each degree of BigBird's grid is worth, and masks drawn from learned degrees.

What each kind of BigBird's connections is worth comes from a regression over the grid (Brahma et al. 2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.analyses.masks.options import KINDS
from headlens.analyses.masks.study_figures import (
    BLOCK,
    of_kind,
)
from headlens.attention_masks.named_masks import P_AT_START, LearnedDegrees
from headlens.pages.formatting import NOTHING, escaped, markdown_table, unsigned, value_text
from headlens.plots.curves import VALUES
from headlens.plots.head_grid import float_column
from headlens.tables.mask_tables import EFFECTS, GRID

_EFFECT_WORDS = ("task", "layers", "kind")
_EFFECT_NUMBERS = ("effect of one more token", "p", "positions it opens, %", "effect per 1 % of positions")
_NOTHING = 1e-9  # of a text's positions
_REGRESSED = [*BLOCK, "layers"]
# Statistics of the draws from one distribution.
SPREAD = ("draws", "mean", "standard deviation", "lowest to highest", "different")
UNSETTLED = 0.1  # share of degrees or spans from which on that is told
_STILL = 0.5  # tokens
_DEGREE = ("model", "pattern", "layers", "diagonal", "seed", "layer", "head", "kind")
_LEARNED_KEYS = [*BLOCK, "pattern", "layers", "diagonal", "seed"]


def mask_scope(layers: object, *, diagonal: bool = True) -> list[str]:
    """The layers of a mask, and whether it has the diagonal, where that has to be said."""
    return [f"layers {layers}"] * (layers != "all") + ["no diagonal"] * (not diagonal)


def degree_effects(masks: pd.DataFrame) -> pd.DataFrame:
    """How much a metric changes with each degree of BigBird: least squares over all trainings of a grid.

        metric = a_seed + b_global · g + b_random · r + b_neighbour · w

    with an intercept of its own for every seed, for its examples and its new weights are the same in all its trainings.

    Args:
        masks: rows of `masks.csv`. Patterns with all three degrees and the diagonal count, and kinds that have more
            than one value.

    Returns:
        A row per kind of degree. `effect` is b, what one token more is worth, with its 95 % interval and the p-value of
        Student's t; `density` is how much one token more opens of a text's positions, by a regression of the same
        form; `effect_per_percent` is what one per cent of the positions is worth when spent on this kind. `n` counts
        trainings. Empty where no degree varies, or where degrees vary together so that their effects cannot be told
        apart; no intervals where there are no more trainings than coefficients.
    """
    rows = masks[(masks["control"] == "kept") & masks[GRID].notna().all(axis=1) & masks["value"].notna()]
    rows = rows[~of_kind(rows["pattern"], LearnedDegrees)]
    records = (
        dict(zip(_REGRESSED, key, strict=True)) | row
        for key, group in rows.groupby(_REGRESSED, sort=False)
        for row in _effects(group)
    )
    return EFFECTS.frame(records)


def effects_markdown(effects: pd.DataFrame) -> str:
    """The effects of degrees as a table for each model and metric."""
    parts = ["## What each degree of BigBird is worth [95 % interval]"]
    for (model, metric), rows in effects.groupby(["model", "metric"], sort=False):
        lines = []
        for row in rows.to_dict("records"):
            words = [escaped(str(row[name])) for name in _EFFECT_WORDS]
            effect = value_text(row["effect"], row["ci_low"], row["ci_high"])
            numbers = (f"{row['p_value']:.2g}", f"{100 * row['density']:.2f}", f"{row['effect_per_percent']:.4f}")
            lines.append([*words, effect, *(NOTHING if text == "nan" else unsigned(text) for text in numbers)])
        table = markdown_table(_EFFECT_WORDS, _EFFECT_NUMBERS, lines)
        parts += [f"\n### {escaped(str(metric))} of {escaped(str(model))}", "", *table]
    return "\n".join(parts) + "\n"


def _effects(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    from statsmodels.regression.linear_model import OLS

    kinds = [kind for kind in KINDS if len(set(rows[f"degree_{kind}"])) > 1]
    if not kinds:
        return
    degrees = rows[[f"degree_{kind}" for kind in kinds]].to_numpy(np.float64)
    # A column for each seed is its intercept: (trainings, kinds + seeds).
    design = np.hstack([degrees, pd.get_dummies(rows["seed"]).to_numpy(np.float64)])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return
    values = float_column(rows, "value")
    fitted = OLS(values, design).fit()
    open_share = OLS(1 - float_column(rows, "sparsity_texts"), design).fit().params
    known = fitted.df_resid > 0
    # Around the mean of all, as R² is of a model with intercepts.
    spread = float(((values - values.mean()) ** 2).sum())
    bounds: npt.NDArray[np.float64] = fitted.conf_int() if known else np.full((len(kinds), 2), np.nan)
    # Where all trainings give the same there is nothing to test.
    tested = known and spread > 0
    for place, kind in enumerate(kinds):
        effect, density = float(fitted.params[place]), float(open_share[place])
        yield {
            "kind": kind,
            "effect": effect,
            "ci_low": float(bounds[place, 0]),
            "ci_high": float(bounds[place, 1]),
            "p_value": float(fitted.pvalues[place]) if tested else np.nan,
            "density": density,
            "effect_per_percent": effect / (100 * density) if abs(density) > _NOTHING else np.nan,
            "n": len(rows),
            "r_squared": 1 - float(fitted.ssr) / spread if tested else np.nan,
        }


def unsettled(degrees: pd.DataFrame) -> float:
    """The share of degrees of heads that have not settled.

    No number has a probability above 1/2, or the one that has is that of the start and less probable than it was
    there, on its way down.

    Args:
        degrees: rows of `degrees.csv`, or of one training.
    """
    keys = [name for name in _DEGREE if name in degrees]
    rows = degrees.reset_index(drop=True)
    by_degree = rows.groupby(keys, dropna=False)
    likeliest = rows.loc[by_degree["p"].idxmax()]
    at_start = likeliest["degree"].to_numpy() == by_degree["degree"].max().to_numpy()
    p = likeliest["p"].to_numpy()
    return float(((p <= 0.5) | (at_start & (p < P_AT_START))).mean())


def unsettled_spans(spans: pd.DataFrame) -> float:
    """The share of spans that changed by more than half a token since before the last third of updates.

    Args:
        spans: rows of `spans.csv`, or of one training; of older versions, which did not measure it, none.
    """
    return float((np.abs(float_column(spans, "change")) > _STILL).mean())


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
    stays = masks[of_kind(masks["pattern"], LearnedDegrees)][[*_LEARNED_KEYS, *VALUES]]
    rows = []
    for key, group in draws.groupby(_LEARNED_KEYS, sort=False):
        values, of_draws = group["value"], dict(zip(_LEARNED_KEYS, key, strict=True))
        apart = (float_column(group, "delta_low") > 0) | (float_column(group, "delta_high") < 0)
        of_draws |= {"draws": len(group), "different": int(apart.sum())}
        of_draws |= {"mean": values.mean(), "sd": values.std(ddof=1), "lowest": values.min(), "highest": values.max()}
        staying = stays[(stays[_LEARNED_KEYS] == list(key)).all(axis=1)]
        rows.append(of_draws | {name: float(staying[name].mean()) for name in VALUES})
    return rows


def draws_markdown(draws: pd.DataFrame, masks: pd.DataFrame) -> str:
    """The section of results.md on drawn masks: a row per task, metric and mask, and how a draw counts as different."""
    lines = []
    for row in draw_summary(draws, masks):
        words = [escaped(str(text)) for text in (row["task"], row["metric"], mask_words(row))]
        lines.append([*words, *spread_texts(row), value_text(*(row[name] for name in VALUES))])
    table = markdown_table(("task", "metric", "mask"), (*SPREAD, "the median mask [95 % interval]"), lines)
    about = (
        "The model that learned the degrees is evaluated under every draw. A draw counts as different if the 95 % "
        "interval of its difference from the median mask, paired over the examples, excludes 0."
    )
    return "\n".join(["## Masks drawn from learned degrees", "", *table, "", about]) + "\n"


def mask_words(row: Mapping[str, Any]) -> str:
    """What was learned, in words: pattern, layers, diagonal, seed."""
    return ", ".join([str(row["pattern"]), *mask_scope(row["layers"], diagonal=row["diagonal"]), f"seed {row['seed']}"])


def spread_texts(row: Mapping[str, Any]) -> list[str]:
    """The columns `SPREAD` of a row of the summary, in words."""
    span = unsigned(f"{row['lowest']:.3f} to {row['highest']:.3f}")
    return [str(row["draws"]), unsigned(f"{row['mean']:.3f}"), f"{row['sd']:.4f}", span, str(row["different"])]
