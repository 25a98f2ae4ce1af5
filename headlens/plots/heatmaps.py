"""One number per head, as heatmaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bars, paint
from headlens.plots.head_grid import (
    StackRows,
    by_model_and_stack,
    each,
    float_column,
    has_numbers,
    head_grid_figure,
    panel,
    sheet_width,
)
from headlens.plots.style import FULL_WIDTH


def paired_maps(
    heads: pd.DataFrame,
    columns: Mapping[str, str],
    scales: Sequence[Scale],
    title: str,
    remark: Callable[[StackRows, str], str] | None = None,
) -> Figure | None:
    """Draws several columns of one table side by side, one row per model and stack.

    Args:
        heads: columns model, stack, layer, head, and those named.
        columns: the quantities, with the words that title their panels.
        scales: one for all columns, or one for each.
        title: title of the figure.
        remark: returns what is added to the title of a panel, given its rows and column.

    Returns:
        The figure, or None when all the columns are empty.
    """
    if not has_numbers(heads, *columns):
        return None
    rows = [
        [
            panel(p.rows, float_column(p.rows, name), f"{p.name}: {words}{remark(p, name) if remark else ''}")
            for name, words in columns.items()
        ]
        for p in by_model_and_stack(heads)
    ]
    # In a column every scale stands beside its own panel
    beside = len(scales) if sheet_width(rows, BAR_SLOT + 0.15) == FULL_WIDTH else 1
    sheet = head_grid_figure(rows, title, side=BAR_SLOT * beside + 0.15)
    for (axes, item), scale in zip(each(sheet, rows), cycle(scales), strict=False):
        paint(axes, item, scale)
    add_bars(sheet, *scales, below=beside < len(scales))
    return sheet.figure


def upper_end(frame: pd.DataFrame, *columns: str) -> float:
    """The upper end of a scale from 0 that holds all values; 1 where there is none above 0."""
    values = np.concatenate([float_column(frame, column) for column in columns])
    return float(max(values[np.isfinite(values)], default=0.0)) or 1.0
