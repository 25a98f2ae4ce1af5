"""The function map: what every head does, as a grid of coloured cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from headlens.plots.axis_labels import FAMILY, drawable_text
from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bars, edges, fitting_size, paint, write
from headlens.plots.head_grid import (
    Panel,
    Sheet,
    StackRows,
    by_model_and_stack,
    each,
    float_column,
    flow,
    has_numbers,
    head_grid_figure,
    panel,
    scatter_grid,
    sheet_width,
)
from headlens.plots.heatmaps import centred_scale
from headlens.plots.role_colours import ARROW_WORDS, COLOURS, FAMILIES, NONE, families, family, legend_handles, short
from headlens.plots.style import DIVERGING, FAINT, FULL_WIDTH, INK, LEGEND, SMALLEST_SIZE, ink_on

_LEGEND, _GAP = 0.42, 0.04  # inches: two lines, and what is between them and the note
LEGEND_FOOT = _LEGEND + _GAP
UPRIGHT, _ARROW = 0.42, 0.11  # inches: of a cell whose word runs upwards, and of the arrow below the word
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
    drawn = RoleDrawing.of(heads)
    pieces = by_model_and_stack(drawn.heads)
    rows = flow([(p.model, role_panel(p, p.name)) for p in pieces])
    # Cells of a column are too narrow for words, but may be higher.
    lowest = UPRIGHT if sheet_width(rows, 0.0) < FULL_WIDTH else 0.0
    sheet = head_grid_figure(
        rows, "Roles of attention heads", foot=LEGEND_FOOT, lowest_cell=lowest, note=lambda _: drawn.note
    )
    for (axes, item), part in zip(each(sheet, rows), pieces, strict=True):
        draw_roles(axes, item, part, sheet.cell, upright=bool(lowest))
    drawn.add_legend(sheet)
    return sheet.figure


@dataclass(frozen=True)
class RoleDrawing:
    """What figures with a map of roles have in common: the heads as they are drawn, what occurs, and the note on it.

    Args:
        heads: rows of `heads.csv`, with a stability of 1 where none was measured.
        present: families of roles that occur.
        note: what letters and pale colours mean.
    """

    heads: pd.DataFrame
    present: set[str]
    note: str

    @classmethod
    def of(cls, heads: pd.DataFrame) -> RoleDrawing:
        """Returns it for rows of `heads.csv` with a column `role`."""
        present = set(families(heads["role"]))
        stable = heads["role_stability"].fillna(1.0).clip(0, 1) if "role_stability" in heads else 1.0
        heads = heads.assign(role_stability=stable)
        notes = {
            "No head has a role": not present - {NONE},
            # Also of the nearest roles, in grey.
            ARROW_WORDS: "syntactic" in families(_shown(heads)),
            "grey letters: the closest role of a head without one": NONE in present and "nearest" in heads,
            "the paler, the more often the role changes when sentences are resampled": (
                (heads["role_stability"] < 1).any()
            ),
        }
        return cls(heads, present, "; ".join(note for note, holds in notes.items() if holds))

    def add_legend(self, sheet: Sheet) -> None:
        """Writes which colour is which family into the foot of a sheet, which is `LEGEND_FOOT` inches high."""
        above_note = (sheet.note + _GAP) / sheet.figure.get_figheight()
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, above_note), "ncols": 4}
        sheet.figure.legend(handles=legend_handles(self.present), **place, **LEGEND)


def role_panel(part: StackRows, title: str) -> Panel:
    """Returns a panel of the families of roles of a part, each as its place in `FAMILIES`."""
    codes = np.array([FAMILIES.index(name) for name in families(part.rows["role"])], np.float64)
    return panel(part.rows, codes, title)


def draw_roles(axes: Axes, item: Panel, part: StackRows, cell: tuple[float, float], *, upright: bool = False) -> None:
    """Draws the colours of a panel of `role_panel`, and the roles in a few letters where cells have room for them.

    Args:
        axes: whose cells stand at whole numbers.
        item: the panel.
        part: its rows, with the column `role_stability`.
        cell: width and height, inches.
        upright: whether words may run upwards in cells that are higher than wide.
    """
    put = _write_upright if upright and cell[0] < cell[1] else write
    norm = BoundaryNorm(np.arange(len(COLOURS) + 1) - 0.5, len(COLOURS))
    colours: dict[str, Any] = {"cmap": ListedColormap(list(COLOURS.values())), "norm": norm, "edgecolors": "white"}
    axes.pcolormesh(*edges(item.values.shape), np.ma.masked_invalid(item.values), linewidth=0.6, **colours)
    veil = scatter_grid(part.rows, _PALE * (1 - part.rows["role_stability"].to_numpy()), empty=0.0)
    if veil.any():
        mesh = axes.pcolormesh(*edges(veil.shape), np.zeros(veil.shape), cmap=_WHITE, edgecolors="none")
        mesh.set_alpha(veil)  # type: ignore[arg-type]  # one for each cell
    told = [short(role) for role in _shown(part.rows)]
    if upright and put is write:
        # No word is better than one that nobody can read: the colour says the family.
        told = [word if fitting_size(word, cell) >= _READABLE else "" for word in told]
    words = scatter_grid(part.rows, np.array(told, object), empty="")
    names = families(part.rows["role"])
    inks = np.array([FAINT if name == NONE else ink_on(COLOURS[name]) for name in names], object)
    put(axes, words, scatter_grid(part.rows, inks, empty=INK), cell)


def _shown(rows: pd.DataFrame) -> pd.Series[str]:
    """Returns the roles that are written: of a head without one, in grey, what it is nearest to."""
    return rows["role"].where(rows["role"].map(family) != NONE, rows.get("nearest", ""))


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
    relevance = centred_scale("share of the layer's relevance", heads, "relevance", DIVERGING)
    scales = relevance, Scale("confidence (mean largest weight)")
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
    for part, row, panels in zip(pieces, sheet.axes, rows, strict=True):
        for axes, item, scale in zip(row, panels, scales, strict=False):
            paint(axes, item, scale)
        draw_roles(row[-1], panels[-1], part, sheet.cell, upright=True)
    drawn.add_legend(sheet)
    add_bars(sheet, *scales, below=beside < len(scales))
    return sheet.figure
