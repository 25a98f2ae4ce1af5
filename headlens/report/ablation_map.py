"""What a task loses without each head, as a heatmap (Song, figure 5: BERT beside ALBERT)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from headlens.metrics.direction import LOWER_IS_BETTER
from headlens.report.interval_map import Cells, centred_scale, interval_map
from headlens.report.panels import Part, has_numbers, numbers

LEVEL = 0.05
KEEP_ONLY = "keep-only"
# Red is what makes the model worse.
_HIGHER, _LOWER = "RdBu", "RdBu_r"
_REPLACED = {
    "zero": "without each head",
    "mean": "with each head's output at its mean",
    "uniform": "with even attention in each head",
    KEEP_ONLY: "with each head alone in its layer",
}


def ablation_map(ablation: pd.DataFrame, *, keep_only: bool = False) -> Figure | None:
    """By how much a metric changes without each head, in colours that have 0 in their middle, one scale for all models.

    Cells that are large enough hold the difference and half the width of its paired 95 % interval; a dot marks heads
    whose difference is significant after Holm's correction. Red is worse.

    Args:
        ablation: rows of `ablation.csv`, of one model or several.
        keep_only: draw the model with each head alone in its layer instead.

    Returns:
        The figure, or None when there are no such rows.
    """
    rows = ablation[(ablation["mode"] == KEEP_ONLY) == keep_only]
    if not has_numbers(rows, "delta"):
        return None
    metric, task, mode = (", ".join(map(str, rows[c].dropna().unique())) for c in ("metric", "task", "mode"))
    cells = Cells("delta", significant, f"Dot: p < {LEVEL} after Holm's correction.", _name)
    colours = _LOWER if set(rows["metric"]) <= LOWER_IS_BETTER else _HIGHER
    scale = centred_scale(f"change of {metric}", numbers(rows, "delta"), colours)
    return interval_map(rows, cells, scale, f"Ablation: {metric} of {task} {_REPLACED.get(mode, mode)}")


def significant(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Heads whose removal changes the metric for sure."""
    return numbers(rows, "p_holm") < LEVEL


def _name(part: Part) -> str:
    known = numbers(part.rows, "baseline")
    return f"{part.name} ({known[0]:.3f} with all heads)" if len(known) and np.isfinite(known[0]) else part.name
