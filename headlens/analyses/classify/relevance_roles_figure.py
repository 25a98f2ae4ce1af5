"""Relevance, confidence and role of every head, side by side."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from headlens.analyses.classify.role_map import LEGEND_FOOT, UPRIGHT, RoleDrawing, draw_roles, role_panel
from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bars, paint
from headlens.plots.head_grid import (
    by_model_and_stack,
    each,
    float_column,
    has_numbers,
    head_grid_figure,
    panel,
    sheet_width,
)
from headlens.plots.heatmaps import centred_scale
from headlens.plots.style import DIVERGING, FULL_WIDTH

_PANELS = ("relevance", "confidence", "role")


def relevance_roles(heads: pd.DataFrame) -> Figure | None:
    """Draws relevance, confidence and role of the same heads as three maps abreast, a row for each model and stack.

    After Voita et al. (2019), figure 1. There the heads of a layer stand in the order of their relevance, here in that
    of the model in all three maps, so that a head is at the same place in each.

    Args:
        heads: rows of `heads.csv`, of one model or several.

    Returns:
        The figure, or None unless there are relevance, confidence and roles.
    """
    if "role" not in heads or not (has_numbers(heads, "relevance") and has_numbers(heads, "confidence")):
        return None
    drawn = RoleDrawing.of(heads)
    pieces = [p for p in by_model_and_stack(drawn.heads) if has_numbers(p.rows, "relevance")]
    rows = [
        [
            panel(part.rows, float_column(part.rows, "relevance"), f"{part.name}: relevance"),
            panel(part.rows, float_column(part.rows, "confidence"), "confidence"),
            role_panel(part, "strongest role"),
        ]
        for part in pieces
    ]
    scales = (
        centred_scale("share of the layer's relevance", heads, "relevance", DIVERGING),
        Scale("confidence (mean largest weight)"),
    )
    # In a column every scale stands beside its own panel.
    beside = len(scales) if sheet_width(rows, BAR_SLOT + 0.15) == FULL_WIDTH else 1
    sheet = head_grid_figure(
        rows,
        "Relevance, confidence and roles of attention heads",
        side=BAR_SLOT * beside + 0.15,
        foot=LEGEND_FOOT,
        # Three panels abreast leave narrow cells, whose words run upwards.
        lowest_cell=UPRIGHT,
        note=lambda _: drawn.note,
    )
    for number, (axes, item) in enumerate(each(sheet, rows)):
        part, kind = pieces[number // len(_PANELS)], number % len(_PANELS)
        if kind < len(scales):
            paint(axes, item, scales[kind])
        else:
            draw_roles(axes, item, part, sheet.cell, upright=True)
    drawn.add_legend(sheet)
    add_bars(sheet, *scales, below=beside < len(scales))
    return sheet.figure
