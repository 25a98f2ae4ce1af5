"""The function map: what every head does, as a grid of coloured cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from headlens.plots.axis_labels import FAMILY, drawable_text
from headlens.plots.cell_drawing import edges, fitting_size, write
from headlens.plots.head_grid import by_model_and_stack, each, flow, head_grid_figure, panel, scatter_grid, sheet_width
from headlens.plots.role_colours import ARROW_WORDS, COLOURS, FAMILIES, NONE, families, family, legend_handles, short
from headlens.plots.style import FAINT, FULL_WIDTH, INK, LEGEND, SMALLEST_SIZE, ink_on

_LEGEND, _GAP = 0.42, 0.04  # inches: two lines, and what is between them and the note
_UPRIGHT, _ARROW = 0.42, 0.11  # inches: of a cell whose word runs upwards, and of the arrow below the word
_READABLE = 4.5  # points
# Of a head whose role every draw of sentences changes so much of the colour goes.
_PALE, _WHITE = 0.85, ListedColormap(["white"])


def function_map(heads: pd.DataFrame) -> Figure | None:
    """The role of every head, coloured by family, with the role in a few letters in the cell.

    After Voita et al. (2019), figure 2c. Arrows tell in which direction a head follows a relation. Where no head
    holds a role the empty grid says so. With a column `role_stability`, roles that change with the sentences are pale.

    Args:
        heads: rows of `heads.csv`, of one model or several.

    Returns:
        The figure, or None when there are no heads or no column `role`.
    """
    if heads.empty or "role" not in heads:
        return None
    present = set(families(heads["role"]))
    notes = [ARROW_WORDS if "syntactic" in present else "" if present - {NONE} else "No head holds a role"]
    notes.append("grey letters: the nearest role, not held" if NONE in present and "nearest" in heads else "")
    stable = heads["role_stability"].fillna(1.0).clip(0, 1) if "role_stability" in heads else 1.0
    heads = heads.assign(role_stability=stable)
    notes.append("pale: another role where sentences are drawn anew" if (heads["role_stability"] < 1).any() else "")
    note = "; ".join(filter(None, notes))
    pieces = by_model_and_stack(heads)
    codes = [np.array([FAMILIES.index(name) for name in families(p.rows["role"])], np.float64) for p in pieces]
    rows = flow([(p.model, panel(p.rows, own, p.name)) for p, own in zip(pieces, codes, strict=True)])
    # Cells of a column are too narrow for words, but may be higher.
    lowest = _UPRIGHT if sheet_width(rows, 0.0) < FULL_WIDTH else 0.0
    sheet = head_grid_figure(
        rows, "Functions of attention heads", foot=_LEGEND + _GAP, lowest_cell=lowest, note=lambda _: note
    )
    put = _write_upright if lowest and sheet.cell[0] < sheet.cell[1] else write
    norm = BoundaryNorm(np.arange(len(COLOURS) + 1) - 0.5, len(COLOURS))
    looks: dict[str, Any] = {
        "cmap": ListedColormap(list(COLOURS.values())),
        "norm": norm,
        "edgecolors": "white",
        "linewidth": 0.6,
    }
    for (axes, item), part in zip(each(sheet, rows), pieces, strict=True):
        axes.pcolormesh(*edges(item.values.shape), np.ma.masked_invalid(item.values), **looks)
        veil = scatter_grid(part.rows, _PALE * (1 - part.rows["role_stability"].to_numpy()), empty=0.0)
        if veil.any():
            mesh = axes.pcolormesh(*edges(veil.shape), np.zeros(veil.shape), cmap=_WHITE, edgecolors="none")
            mesh.set_alpha(veil)  # type: ignore[arg-type]  # one for each cell
        # What a head without a role is nearest to stands in grey.
        shown = part.rows["role"].where(part.rows["role"].map(family) != NONE, part.rows.get("nearest", ""))
        words = scatter_grid(part.rows, np.array([short(r) for r in shown], object), empty="")
        names = families(part.rows["role"])
        inks = np.array([FAINT if name == NONE else ink_on(COLOURS[name]) for name in names], object)
        put(axes, words, scatter_grid(part.rows, inks, empty=INK), sheet.cell)
    above_note = (sheet.note + _GAP) / sheet.figure.get_figheight()
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, above_note), "ncols": 4}
    sheet.figure.legend(handles=legend_handles(present), **place, **LEGEND)
    return sheet.figure


def _write_upright(
    axes: Axes, words: npt.NDArray[np.generic], inks: npt.NDArray[np.generic], cell: tuple[float, float]
) -> None:
    """Write words that run upwards, each above its arrow, which stays as it is; long words lose their end."""
    for (layer, head), word in np.ndenumerate(words):
        name, _, arrow = str(word).partition("\n")
        below = _ARROW if arrow else 0.0
        room = cell[1] - below, cell[0]
        while fitting_size(name, room) < min(_READABLE, fitting_size("", room)):
            name = name.removesuffix("…")[:-1] + "…"
        size = fitting_size(name, room)
        if not name or size < SMALLEST_SIZE:
            continue
        looks: dict[str, Any] = {"fontfamily": FAMILY, "color": str(inks[layer, head]), "fontsize": size}
        looks |= {"ha": "center", "va": "center"}
        axes.text(head, layer + below / 2 / cell[1], drawable_text(name), rotation=90, **looks)
        if arrow:
            axes.text(head, layer - 0.5 + 0.55 * below / cell[1], arrow, **looks)
