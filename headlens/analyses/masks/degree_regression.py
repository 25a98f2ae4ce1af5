"""What each kind of BigBird's connections is worth: a regression over a grid of degrees (Brahma et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.pages.formatting import escaped, markdown_lines, unsigned, value_text
from headlens.plots.head_grid import float_column

KINDS = ("global", "random", "neighbour")
EFFECTS_COLUMNS = [
    *("model", "task", "metric", "layers", "kind", "effect", "ci_low", "ci_high", "p_value", "density"),
    *("effect_per_percent", "n", "r_squared"),
]
_NOTHING = 1e-9  # of a text's positions
_BLOCK = ["model", "task", "metric", "layers"]


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
    names = [f"degree_{kind}" for kind in KINDS]
    rows = masks[(masks["control"] == "kept") & masks[names].notna().all(axis=1) & masks["value"].notna()]
    groups = ((dict(zip(_BLOCK, key, strict=True)), group) for key, group in rows.groupby(_BLOCK, sort=False))
    return pd.DataFrame([row for key, group in groups for row in _of(key, group)], columns=EFFECTS_COLUMNS)


def effects_markdown(effects: pd.DataFrame) -> str:
    """The same as a table for each model and metric."""
    parts = ["## What each degree of BigBird is worth [95 % interval]"]
    for (model, metric), rows in effects.groupby(["model", "metric"], sort=False):
        lines = [["task", "layers", "kind", "one token more", "p", "opens, % of positions", "per % of positions"]]
        lines.append(["---", "---", "---", "---:", "---:", "---:", "---:"])
        for row in rows.to_dict("records"):
            effect = value_text(row["effect"], row["ci_low"], row["ci_high"])
            p = "–" if np.isnan(row["p_value"]) else f"{row['p_value']:.2g}"
            words = [escaped(str(row[name])) for name in ("task", "layers", "kind")]
            spent = (f"{100 * row['density']:.2f}", f"{row['effect_per_percent']:.4f}")
            lines.append([*words, effect, p, *("–" if text == "nan" else unsigned(text) for text in spent)])
        parts += [f"\n### {escaped(str(metric))} of {escaped(str(model))}", "", *markdown_lines(lines)]
    return "\n".join(parts) + "\n"


def _of(key: dict[str, Any], rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    from statsmodels.regression.linear_model import OLS  # noqa: PLC0415 - slow to import, and needed here alone

    kinds = [kind for kind in KINDS if len(set(rows[f"degree_{kind}"])) > 1]
    if not kinds:
        return
    degrees = rows[[f"degree_{kind}" for kind in kinds]].to_numpy(np.float64)
    design = np.hstack([degrees, pd.get_dummies(rows["seed"]).to_numpy(np.float64)])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return
    values = float_column(rows, "value")
    fitted = OLS(values, design).fit()
    open_share = OLS(1 - float_column(rows, "sparsity_texts"), design).fit().params
    known = fitted.df_resid > 0
    spread = float(((values - values.mean()) ** 2).sum())
    bounds: npt.NDArray[np.float64] = fitted.conf_int() if known else np.full((len(kinds), 2), np.nan)
    # Where all trainings give the same there is nothing to test.
    tested = known and spread > 0
    for place, kind in enumerate(kinds):
        effect, density = float(fitted.params[place]), float(open_share[place])
        yield key | {
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
