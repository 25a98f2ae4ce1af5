"""The function map: what every head does, as a grid of coloured cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.plots import head_grid
from headlens.plots.axis_labels import drawable_text, font_family
from headlens.plots.cell_drawing import Entries, Scale, fitting_size, write
from headlens.plots.role_colours import ARROW_WORDS, COLOURS, FAMILIES, NONE, families, family, legend_handles, short
from headlens.plots.style import FAINT, INK, SMALLEST_SIZE, ink_on
from headlens.relevance_propagation.shares import relevance_scale, requested_rule, warned_title
from headlens.roles.even_attention import even_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

UPRIGHT, _ARROW = 0.42, 0.11  # inches: of a cell whose word runs upwards, and of the arrow below the word
_READABLE = 4.5  # points
_EVEN = "even"
# Of a head whose role every draw of sentences changes so much of the colour goes.
_PALE = 0.85


@dataclass(frozen=True)
class _RoleScale(Scale):
    """The colours of families of roles, each at its place in `FAMILIES`, without a bar."""

    @property
    def map(self) -> Colormap:
        from matplotlib.colors import ListedColormap

        return ListedColormap(list(COLOURS.values()))


_ROLES = _RoleScale("", -0.5, len(COLOURS) - 0.5)


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
    lowest = UPRIGHT if head_grid.is_narrow(rows) else 0.0
    words: dict[str, Any] = {"note": lambda _: note, "handles": role_handles(heads)}
    sheet = head_grid.head_grid_figure(rows, "Strongest roles of attention heads", lowest_cell=lowest, **words)
    for (axes, _), part in zip(head_grid.each(sheet, rows), pieces, strict=True):
        draw_roles(axes, part, sheet.cell, upright=bool(lowest))
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
        "hatched: no head": any(_has_gaps(part.rows) for part in head_grid.by_model_and_stack(heads)),
    }
    return heads, "; ".join(note for note, holds in notes.items() if holds)


def _has_gaps(rows: pd.DataFrame) -> bool:
    """Whether a stack has fewer heads in some layers, as where some were removed."""
    return len(rows) < (int(rows["layer"].max()) + 1) * (int(rows["head"].max()) + 1)


def role_handles(heads: pd.DataFrame) -> list[Line2D]:
    """Returns what the legend of a map of roles shows: which colour is which family."""
    return legend_handles({*families(heads["role"])})


def role_panel(part: head_grid.StackRows, title: str) -> head_grid.Panel:
    """Returns a panel of the families of roles of a part, each as its place in `FAMILIES`."""
    codes = np.array([FAMILIES.index(name) for name in families(part.rows["role"])], np.float64)
    return head_grid.panel(part.rows, codes, title, _ROLES)


def draw_roles(axes: Axes, part: head_grid.StackRows, cell: tuple[float, float], *, upright: bool = False) -> None:
    """Writes the roles of a panel of `role_panel` in a few letters where cells have room; what changes is pale.

    Args:
        axes: of a sheet.
        part: its rows, with the column `role_stability`.
        cell: width and height, inches.
        upright: whether words may run upwards in cells that are higher than wide.
    """
    put = _write_upright if upright and cell[0] < cell[1] else write
    veil = head_grid.scatter_grid(part.rows, _PALE * (1 - part.rows["role_stability"].to_numpy()), empty=0.0)
    if veil.any():
        from matplotlib.colors import ListedColormap

        white = ListedColormap(["white"])
        axes.pcolormesh(np.zeros(veil.shape), cmap=white).set_alpha(veil)  # type: ignore[arg-type]  # one for each cell
    labels = [short(role) for role in _shown(part.rows)]
    if put is write:
        smallest = _READABLE if upright else SMALLEST_SIZE
        labels = [word if fitting_size(word, cell) >= smallest else _shortened(word, cell) for word in labels]
        # No word is better than one that nobody can read: the colour says the family.
        labels = [word if not upright or fitting_size(word, cell) >= smallest else "" for word in labels]
    words = head_grid.scatter_grid(part.rows, np.array(labels, object), empty="")
    names = families(part.rows["role"])
    inks = np.array([FAINT if name == NONE else ink_on(COLOURS[name]) for name in names], object)
    put(axes, words, head_grid.scatter_grid(part.rows, inks, empty=INK), cell)


def _shown(rows: pd.DataFrame) -> pd.Series[str]:
    """Returns the roles that are written: of a head without one, in grey, what it is nearest to, or that it is even."""
    nearest = rows["nearest"].where(~even_heads(rows), _EVEN) if "nearest" in rows else ""
    return rows["role"].where(rows["role"].map(family) != NONE, nearest)


def _shortened(word: str, room: tuple[float, float]) -> str:
    """Returns a word, and the arrow in its second line, without so much of its end that it can be read in a room."""
    name, *arrow = word.split("\n")
    smallest = min(_READABLE, fitting_size("\n".join(["", *arrow]), room))
    while fitting_size(word, room) < smallest:
        name = name.removesuffix("…")[:-1] + "…"
        word = "\n".join([name, *arrow])
    return word


def _write_upright(axes: Axes, words: Entries, inks: Entries, cell: tuple[float, float]) -> None:
    """Write words that run upwards, each above its arrow, which stays as it is; long words lose their end."""
    for (layer, head), word in np.ndenumerate(words):
        name, _, arrow = str(word).partition("\n")
        below = _ARROW if arrow else 0.0
        room = cell[1] - below, cell[0]
        name = _shortened(name, room)
        size = fitting_size(name, room)
        if not name or size < SMALLEST_SIZE:
            continue
        looks: dict[str, Any] = {"fontfamily": font_family(), "color": str(inks[layer, head]), "fontsize": size}
        looks |= {"ha": "center", "va": "center", "in_layout": False}
        axes.text(head + 0.5, layer + 0.5 + below / 2 / cell[1], drawable_text(name), rotation=90, **looks)
        if arrow:
            axes.text(head + 0.5, layer + 0.55 * below / cell[1], arrow, **looks)


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
    _, rule_rows = requested_rule(pd.DataFrame() if relevance is None else relevance)
    scales = {
        "relevance": relevance_scale("share of the layer's relevance", heads, "relevance", rule_rows),
        "confidence": Scale("confidence (mean largest weight)"),
    }
    rows = []
    for part in pieces:
        titles = f"{part.name}: relevance", "confidence"
        numbers = [
            head_grid.panel(part.rows, head_grid.float_column(part.rows, name), title, scale)
            for title, (name, scale) in zip(titles, scales.items(), strict=True)
        ]
        rows.append([*numbers, role_panel(part, "strongest role")])
    title = warned_title("Relevance, confidence and roles of attention heads", relevance)
    # Three panels abreast leave narrow cells, whose words run upwards.
    words: dict[str, Any] = {"note": lambda _: note, "handles": role_handles(heads)}
    sheet = head_grid.head_grid_figure(rows, title, lowest_cell=UPRIGHT, **words)
    for part, row in zip(pieces, sheet.axes, strict=True):
        draw_roles(row[-1], part, sheet.cell, upright=True)
    return sheet.figure
