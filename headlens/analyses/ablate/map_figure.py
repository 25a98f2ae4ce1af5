"""What a task loses without each head, as a heatmap (Song, figure 5: BERT beside ALBERT)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from headlens.plots.head_grid import StackRows, by_model_and_stack, float_column, flow, has_numbers, panel
from headlens.plots.heatmaps import ABREAST, Cells, centred_scale, holds_zero, interval_map
from headlens.plots.style import drawn_for
from headlens.tasks.task_options import LOWER_IS_BETTER

LEVEL = 0.05
KEEP_ONLY = "keep-only"
_DOT = f"Dot: p < {LEVEL} after Holm's correction for all heads; heads without a dot are pale."
_ABREAST = 48  # heads of a full line: three stacks of 16
# Red is what makes the model worse.
_HIGHER, _LOWER = "RdBu", "RdBu_r"
_REPLACED = {
    "zero": "without each head",
    "mean": "with each head's output replaced by its mean",
    "uniform": "with uniform attention in each head",
    KEEP_ONLY: "with each head as the only one in its layer",
}


def ablation_map(ablation: pd.DataFrame, *, keep_only: bool = False) -> Figure | None:
    """By how much a metric changes without each head, in colours that have 0 in their middle, one scale for all models.

    Cells that are large enough hold the difference and half the width of its paired 95 % interval; a dot marks heads
    whose difference is significant after Holm's correction, all others are pale. Red is worse.

    Args:
        ablation: rows of `ablation.csv`, of one model or several.
        keep_only: draw the model with each head alone in its layer instead.

    Returns:
        The figure, or None when there are no such rows.
    """
    return _drawn(ablation[(ablation["mode"] == KEEP_ONLY) == keep_only])


def side_by_side(ablation: pd.DataFrame) -> Figure | None:
    """The same colours and dots with two models, or the stacks of one, beside each other, too small for numbers.

    Args:
        ablation: rows of `ablation.csv`; those of each head alone are left out.

    Returns:
        The figure, or None when that brings no more panels beside each other than `ablation_map` does.
    """
    rows = ablation[ablation["mode"] != KEEP_ONLY]
    sizes = [(p.model, panel(p.rows, float_column(p.rows, "delta"), "")) for p in by_model_and_stack(rows)]
    if list(map(len, flow(sizes, _ABREAST))) == list(map(len, flow(sizes, ABREAST))):
        return None
    # in a column nothing would stand beside anything
    with drawn_for("full"):
        return _drawn(rows, _ABREAST)


def _unsure(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Heads whose removal may change nothing: of many heads some intervals leave 0 out by chance."""
    tested = np.isfinite(float_column(rows, "p_holm"))
    return np.where(tested, ~significant(rows), holds_zero(rows)).astype(bool)


def _drawn(rows: pd.DataFrame, abreast: int = ABREAST) -> Figure | None:
    if not has_numbers(rows, "delta"):
        return None
    metric, task, mode = (", ".join(map(str, rows[c].dropna().unique())) for c in ("metric", "task", "mode"))
    unbounded = set(rows["metric"]) <= LOWER_IS_BETTER
    # A loss may explode without a head; of other metrics a large change is what is looked for.
    scale = centred_scale(f"change in {metric}", rows, "delta", _LOWER if unbounded else _HIGHER, whole=not unbounded)
    cells = Cells("delta", significant, _DOT, _name, abreast, _unsure, "")
    return interval_map(rows, cells, scale, f"Ablation: change in {metric} on {task} {_REPLACED.get(mode, mode)}")


def significant(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Heads whose removal changes the metric for sure."""
    return float_column(rows, "p_holm") < LEVEL


def _name(part: StackRows) -> str:
    known = float_column(part.rows, "baseline")
    if not np.isfinite(known[0]):
        return part.name
    shown = f"{known[0]:.3f}" if abs(known[0]) < 10 else f"{known[0]:.4g}"
    return f"{part.name}\n{shown} with all heads"
