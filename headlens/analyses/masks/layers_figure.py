"""What models achieve under each mask, by the range of layers that it holds in (after Brahma et al. 2022)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from headlens.analyses.masks.study_figures import BLOCK, FULL, means
from headlens.plots.mask_points import short_names
from headlens.plots.point_rows import PointGroup, PointPanel, point_rows
from headlens.plots.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)


def quality_by_layers(masks: pd.DataFrame) -> Figure | None:
    """The metric of every mask, one below the other, a point for each range of layers; a panel per model and task.

    Masks are those with the diagonal. The dashed line is the model without a mask, the band its interval.

    Args:
        masks: rows of `masks.csv`.

    Returns:
        The figure, or None where all masks are fixed patterns that hold in all layers, as `quality_by_pattern` shows.
    """
    table = means(masks)
    table = table[table["control"] == "kept"]
    others = table[table["pattern"] != FULL]
    if others.empty or (set(others["layers"]) == {"all"} and not others["pattern"].str.startswith("graph:").any()):
        return None
    ranges = list(dict.fromkeys(others["layers"].astype(str)))
    several = len(set(table["model"])) > 1
    panels = [
        _panel(rows, ranges, f"{metric} on {task}", str(model) if several else "")
        for (model, task, metric), rows in table.groupby(BLOCK, sort=False)
    ]
    return point_rows("What models achieve under masks, by layers", panels)


def _panel(rows: pd.DataFrame, ranges: list[str], about: str, title: str) -> PointPanel:
    full, others = rows[rows["pattern"] == FULL], rows[rows["pattern"] != FULL]
    names = short_names(others["pattern"])
    groups = []
    for number, layers in enumerate(ranges):
        layer_rows = others[others["layers"].astype(str) == layers]
        label = "all layers" if layers == "all" else f"layers {layers}"
        shown = [names[str(pattern)] for pattern in layer_rows["pattern"]]
        groups.append(PointGroup(label, _COLOURS[number % len(_COLOURS)], shown, layer_rows))
    return PointPanel(about, list(names.values()), groups, full, "no mask", title)
