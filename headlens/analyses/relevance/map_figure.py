"""How much every head contributes, as a heatmap with the intervals in its cells."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from headlens.analyses.relevance.shares import described, holds_zero, requested_rule
from headlens.plots.cell_drawing import Scale
from headlens.plots.head_grid import Grid, float_column, has_numbers
from headlens.plots.interval_heatmap import Cells, centred_scale, interval_map
from headlens.plots.style import DIVERGING


def relevance_map(relevance: pd.DataFrame) -> Figure | None:
    """The relevance of every head under the rule that was asked for, in colours that have 0 in their middle.

    Cells that are large enough hold the value and half the width of its 95 % interval; a dot marks heads whose
    interval holds 0. Few outliers do not set the colours: they have the colour of the end of the scale.

    Args:
        relevance: rows of `relevance.csv`, of one model or several.

    Returns:
        The figure, or None when no head has a relevance.
    """
    _, rows = requested_rule(relevance)
    if not has_numbers(rows, "relevance"):
        return None
    cells = Cells("relevance", holds_zero, "Dot: the interval holds 0.")
    scale = relevance_scale(float_column(rows, "relevance"))
    return interval_map(rows, cells, scale, f"Relevance of attention heads ({described(rows)})")


def relevance_scale(values: Grid) -> Scale:
    """Returns a colour scale for shares of the relevance of a layer, from 0 to the largest share."""
    return centred_scale("share of the layer's relevance", values, DIVERGING)
