"""The function map: what every head does, as a grid of coloured cells."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from headlens.report.cells import edges, write
from headlens.report.families import COLOURS, FAMILIES, families, legend_handles, short
from headlens.report.panels import Part, Sheet, combine, each, flow, lay_out, panel, parts, scatter_grid
from headlens.report.style import INK, TICK_SIZE, ink_on

_LEGEND = 0.42  # inches, two lines


def function_map(frames: Mapping[str, pd.DataFrame]) -> Figure | None:
    """The role of every head, coloured by family, with the role in a few letters in the cell.

    After Voita et al. (2019), figure 2c.

    Args:
        frames: rows of `heads.csv` by model name.

    Returns:
        The figure, or None when no head has a role.
    """
    heads = combine(frames)
    present = set(families(heads["role"])) if "role" in heads else set()
    if not present - {"none"}:
        return None
    pieces = parts(heads)
    rows = flow([(p.model, panel(p.rows, _codes(p), p.name)) for p in pieces])
    sheet = lay_out(rows, "Functions of attention heads", foot=_LEGEND)
    for (axes, item), part in zip(each(sheet, rows), pieces, strict=True):
        _colour(axes, item.values)
        words = scatter_grid(part.rows, np.array([short(r) for r in part.rows["role"]], object), empty="")
        write(axes, words, _inks(part), sheet.cell)
    _legend(sheet, present)
    return sheet.figure


def _codes(part: Part) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([FAMILIES.index(name) for name in families(part.rows["role"])], np.float64)


def _inks(part: Part) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    inks = [ink_on(COLOURS[name]) for name in families(part.rows["role"])]
    return scatter_grid(part.rows, np.array(inks, object), empty=INK)


def _colour(axes: Axes, codes: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    colours = ListedColormap(list(COLOURS.values()))
    norm = BoundaryNorm(np.arange(len(COLOURS) + 1) - 0.5, len(COLOURS))
    axes.pcolormesh(
        *edges(codes.shape), np.ma.masked_invalid(codes), cmap=colours, norm=norm, edgecolors="white", linewidth=0.6
    )


def _legend(sheet: Sheet, present: set[str]) -> None:
    sheet.figure.legend(
        handles=legend_handles(present),
        loc="lower left",
        bbox_to_anchor=(0.0, 0.0),
        ncols=4,
        fontsize=TICK_SIZE,
        frameon=False,
        handletextpad=0.2,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
