"""What the diagonal of attention is worth: the second table of Shi et al. (2021) as a figure of paired differences."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from headlens.analyses.masks.study_figures import CONTROLS, FULL, means
from headlens.pages.formatting import DELTA
from headlens.plots.curves import VALUES
from headlens.plots.point_rows import PointGroup, PointPanel, point_rows
from headlens.plots.style import FAINT, VERMILION

_COLOURS = {"random": FAINT, "dropped": VERMILION}
_NO_DIFFERENCE = pd.DataFrame([dict.fromkeys(VALUES, 0.0)])


def worth_of_diagonal(masks: pd.DataFrame) -> Figure | None:
    """What is lost or won without the diagonal, and with as many random positions masked instead, task by task.

    Values are differences from the same seeds without a mask, see `headlens.analyses.masks.study_figures.means`; the
    dashed line is no difference. A panel per model and metric, a row per task and range of layers.

    Args:
        masks: rows of `masks.csv`, of one run or of several.

    Returns:
        The figure, or None where nothing was trained without the diagonal, or nothing it could be compared with.
    """
    table = means(masks)
    table = table[(table["pattern"] == FULL) & table["control"].isin(list(_COLOURS)) & table["delta"].notna()]
    if not (table["control"] == "dropped").any():
        return None
    several = len(set(table["model"])) > 1
    named = table.assign(name=[_name(row) for row in table.to_dict("records")])
    panels = [
        PointPanel(
            about=f"{metric} less that of all positions",
            names=list(dict.fromkeys(rows["name"])),
            groups=_groups(rows),
            level=_NO_DIFFERENCE,
            level_name="all positions",
            title=str(model) if several else "",
        )
        for (model, metric), rows in named.groupby(["model", "metric"], sort=False)
    ]
    return point_rows("What the diagonal is worth", panels)


def _name(row: dict[Any, Any]) -> str:
    return str(row["task"]) if row["layers"] == "all" else f"{row['task']}, layers {row['layers']}"


def _groups(rows: pd.DataFrame) -> list[PointGroup]:
    groups = []
    for control, colour in _COLOURS.items():
        control_rows = rows[rows["control"] == control]
        differences = control_rows[list(DELTA)].set_axis(list(VALUES), axis=1)
        groups.append(PointGroup(CONTROLS[control], colour, control_rows["name"].tolist(), differences))
    return groups
