"""The function map: what every head does, as a grid of coloured cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from headlens.plots import head_grid
from headlens.plots.axis_labels import FAMILY, drawable_text
from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bars, edges, fitting_size, paint, write
from headlens.plots.role_colours import ARROW_WORDS, COLOURS, FAMILIES, NONE, families, family, legend_handles, short
from headlens.plots.style import FAINT, FULL_WIDTH, INK, LEGEND, SMALLEST_SIZE, ink_on
from headlens.relevance_propagation.shares import relevance_scale, requested_rule, warned_title
from headlens.roles.role_rules import even_heads

_LEGEND, _GAP = 0.42, 0.04  # inches: two lines, and what is between them and the note
LEGEND_FOOT = _LEGEND + _GAP
UPRIGHT, _ARROW = 0.42, 0.11  # inches: of a cell whose word runs upwards, and of the arrow below the word
_READABLE = 4.5  # points
_EVEN = "even"
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
    drawn, note = drawn_roles(heads)
    pieces = head_grid.by_model_and_stack(drawn)
    rows = head_grid.flow([(p.model, role_panel(p, p.name)) for p in pieces])
    # Cells of a column are too narrow for words, but may be higher.
    lowest = UPRIGHT if head_grid.sheet_width(rows, 0.0) < FULL_WIDTH else 0.0
    room: dict[str, float] = {"foot": LEGEND_FOOT, "lowest_cell": lowest}
    sheet = head_grid.head_grid_figure(rows, "Strongest roles of attention heads", **room, note=lambda _: note)
    for (axes, item), part in zip(head_grid.each(sheet, rows), pieces, strict=True):
        draw_roles(axes, item, part, sheet.cell, upright=bool(lowest))
    add_role_legend(sheet, heads)
    return sheet.figure


def drawn_roles(heads: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Returns heads as maps of roles draw them, and the note on it: what letters and pale colours mean.

    Args:
        heads: rows of `heads.csv` with a column `role`; they get a stability of 1 where none was measured.
    """
    present = set(families(heads["role"]))
    stable = heads["role_stability"].fillna(1.0).clip(0, 1) if "role_stability" in heads else 1.0
    heads = heads.assign(role_stability=stable)
    is_pale = (heads["role_stability"] < 1).any()
    notes = {
        "No head has a role": not present - {NONE},
        # Also of the nearest roles, in grey.
        ARROW_WORDS: "syntactic" in families(_shown(heads)),
        "grey letters: the closest role of a head without one": NONE in present and "nearest" in heads,
        f"{_EVEN}: spreads its attention evenly": (_shown(heads) == _EVEN).any(),
        "the paler, the more often the role changes when sentences are resampled": is_pale,
    }
    return heads, "; ".join(note for note, holds in notes.items() if holds)


def add_role_legend(sheet: head_grid.Sheet, heads: pd.DataFrame) -> None:
    """Writes which colour is which family into the foot of a sheet, which is `LEGEND_FOOT` inches high."""
    above_note = (sheet.note + _GAP) / sheet.figure.get_figheight()
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, above_note), "ncols": 4}
    sheet.figure.legend(handles=legend_handles({*families(heads["role"])}), **place, **LEGEND)


def role_panel(part: head_grid.StackRows, title: str) -> head_grid.Panel:
    """Returns a panel of the families of roles of a part, each as its place in `FAMILIES`."""
    codes = np.array([FAMILIES.index(name) for name in families(part.rows["role"])], np.float64)
    return head_grid.panel(part.rows, codes, title)


def draw_roles(
    axes: Axes, item: head_grid.Panel, part: head_grid.StackRows, cell: tuple[float, float], *, upright: bool = False
) -> None:
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
    veil = head_grid.scatter_grid(part.rows, _PALE * (1 - part.rows["role_stability"].to_numpy()), empty=0.0)
    if veil.any():
        mesh = axes.pcolormesh(*edges(veil.shape), np.zeros(veil.shape), cmap=_WHITE, edgecolors="none")
        mesh.set_alpha(veil)  # type: ignore[arg-type]  # one for each cell
    told = [short(role) for role in _shown(part.rows)]
    if upright and put is write:
        # No word is better than one that nobody can read: the colour says the family.
        told = [word if fitting_size(word, cell) >= _READABLE else "" for word in told]
    words = head_grid.scatter_grid(part.rows, np.array(told, object), empty="")
    names = families(part.rows["role"])
    inks = np.array([FAINT if name == NONE else ink_on(COLOURS[name]) for name in names], object)
    put(axes, words, head_grid.scatter_grid(part.rows, inks, empty=INK), cell)


def _shown(rows: pd.DataFrame) -> pd.Series[str]:
    """Returns the roles that are written: of a head without one, in grey, what it is nearest to, or that it is even."""
    nearest = rows["nearest"].where(~even_heads(rows), _EVEN) if "nearest" in rows else ""
    return rows["role"].where(rows["role"].map(family) != NONE, nearest)


def _write_upright(axes: Axes, words: head_grid.Entries, inks: head_grid.Entries, cell: tuple[float, float]) -> None:
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


def relevance_roles(heads: pd.DataFrame, relevance: pd.DataFrame | None = None) -> Figure | None:
    """Draws relevance, confidence and role of the same heads as three maps abreast, a row for each model and stack.

    After Voita et al. (2019), figure 1. There the heads of a layer stand in the order of their relevance, here in that
    of the model in all three maps, so that a head is at the same place in each.

    Args:
        heads: rows of `heads.csv`, of one model or several.
        relevance: rows of `relevance.csv` of the same, which tell rule, target and what layers do.

    Returns:
        The figure, or None unless there are relevance, confidence and roles.
    """
    if "role" not in heads or not all(head_grid.has_numbers(heads, name) for name in ("relevance", "confidence")):
        return None
    drawn, note = drawn_roles(heads)
    pieces = [p for p in head_grid.by_model_and_stack(drawn) if head_grid.has_numbers(p.rows, "relevance")]
    rows = []
    for part in pieces:
        titles = {"relevance": f"{part.name}: relevance", "confidence": "confidence"}
        numbers = [
            head_grid.panel(part.rows, head_grid.float_column(part.rows, name), title) for name, title in titles.items()
        ]
        rows.append([*numbers, role_panel(part, "strongest role")])
    _, own = requested_rule(pd.DataFrame() if relevance is None else relevance)
    shares = relevance_scale("share of the layer's relevance", heads, "relevance", own)
    scales = shares, Scale("confidence (mean largest weight)")
    # In a column every scale stands beside its own panel.
    beside = len(scales) if head_grid.sheet_width(rows, BAR_SLOT + 0.15) == FULL_WIDTH else 1
    # Three panels abreast leave narrow cells, whose words run upwards.
    room: dict[str, float] = {"side": BAR_SLOT * beside + 0.15, "foot": LEGEND_FOOT, "lowest_cell": UPRIGHT}
    title = warned_title("Relevance, confidence and roles of attention heads", relevance)
    sheet = head_grid.head_grid_figure(rows, title, **room, note=lambda _: note)
    for part, row, panels in zip(pieces, sheet.axes, rows, strict=True):
        for axes, item, scale in zip(row, panels, scales, strict=False):
            paint(axes, item, scale)
        draw_roles(row[-1], panels[-1], part, sheet.cell, upright=True)
    add_role_legend(sheet, heads)
    add_bars(sheet, *scales, below=beside < len(scales))
    return sheet.figure
