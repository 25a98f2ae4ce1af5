"""The function map: what every head does, as a grid of coloured cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from headlens.plots.axis_labels import FAMILY, drawable_text
from headlens.plots.cell_drawing import edges, fitting_size, write
from headlens.plots.head_grid import (
    Sheet,
    StackRows,
    by_model_and_stack,
    combine,
    each,
    flow,
    head_grid_figure,
    panel,
    scatter_grid,
    sheet_width,
)
from headlens.plots.role_colours import COLOURS, FAMILIES, NONE, families, legend_handles, short
from headlens.plots.style import FULL_WIDTH, INK, SMALLEST_SIZE, TICK_SIZE, ink_on

_LEGEND, _NOTE = 0.42, 0.16  # inches: two lines, one line
_UPRIGHT, _ARROW = 0.42, 0.11  # inches: of a cell whose word runs upwards, and of the arrow below the word
_DIRECTIONS = "↑ a dependent attends to its head, ↓ a head to its dependent"


def function_map(frames: Mapping[str, pd.DataFrame]) -> Figure | None:
    """The role of every head, coloured by family, with the role in a few letters in the cell.

    After Voita et al. (2019), figure 2c. Arrows tell in which direction a head follows a relation. Where no head
    holds a role the empty grid says so.

    Args:
        frames: rows of `heads.csv` by model name.

    Returns:
        The figure, or None when there are no heads or no column `role`.
    """
    heads = combine(frames)
    if heads.empty or "role" not in heads:
        return None
    present = set(families(heads["role"]))
    note = _DIRECTIONS if "syntactic" in present else "" if present - {NONE} else "No head holds a role."
    pieces = by_model_and_stack(heads)
    rows = flow([(p.model, panel(p.rows, _codes(p), p.name)) for p in pieces])
    # cells of a column are too narrow for words, but may be higher
    lowest = _UPRIGHT if sheet_width(rows, 0.0) < FULL_WIDTH else 0.0
    sheet = head_grid_figure(
        rows, "Functions of attention heads", foot=_LEGEND + (_NOTE if note else 0.0), lowest_cell=lowest
    )
    put = _write_upright if lowest and sheet.cell[0] < sheet.cell[1] else write
    for (axes, item), part in zip(each(sheet, rows), pieces, strict=True):
        _colour(axes, item.values)
        words = scatter_grid(part.rows, np.array([short(r) for r in part.rows["role"]], object), empty="")
        put(axes, words, _inks(part), sheet.cell)
    _legend(sheet, present, note)
    return sheet.figure


def _codes(part: StackRows) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([FAMILIES.index(name) for name in families(part.rows["role"])], np.float64)


def _inks(part: StackRows) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    inks = [ink_on(COLOURS[name]) for name in families(part.rows["role"])]
    return scatter_grid(part.rows, np.array(inks, object), empty=INK)


def _colour(axes: Axes, codes: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    colours = ListedColormap(list(COLOURS.values()))
    norm = BoundaryNorm(np.arange(len(COLOURS) + 1) - 0.5, len(COLOURS))
    axes.pcolormesh(
        *edges(codes.shape), np.ma.masked_invalid(codes), cmap=colours, norm=norm, edgecolors="white", linewidth=0.6
    )


def _write_upright(
    axes: Axes,
    words: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    inks: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    cell: tuple[float, float],
) -> None:
    """Write words that run upwards, each above its arrow, which stays as it is."""
    for (layer, head), word in np.ndenumerate(words):
        name, _, arrow = str(word).partition("\n")
        below = _ARROW if arrow else 0.0
        size = fitting_size(name, (cell[1] - below, cell[0]))
        if not name or size < SMALLEST_SIZE:
            continue
        looks: dict[str, Any] = {"fontfamily": FAMILY, "color": str(inks[layer, head]), "fontsize": size}
        looks |= {"ha": "center", "va": "center"}
        axes.text(head, layer + below / 2 / cell[1], drawable_text(name), rotation=90, **looks)
        if arrow:
            axes.text(head, layer - 0.5 + 0.55 * below / cell[1], arrow, **looks)


def _legend(sheet: Sheet, present: set[str], note: str) -> None:
    width, height = sheet.figure.get_size_inches()
    if note:
        sheet.figure.text(0.08 / width, 0.06 / height, note, fontsize=TICK_SIZE, fontfamily=FAMILY, color=INK)
    sheet.figure.legend(
        handles=legend_handles(present),
        loc="lower left",
        bbox_to_anchor=(0.0, _NOTE / height if note else 0.0),
        ncols=4,
        fontsize=TICK_SIZE,
        frameon=False,
        handletextpad=0.2,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
