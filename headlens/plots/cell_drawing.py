"""Drawing into a grid of layers × heads: colours, words, frames, colour bars."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headlens.plots.axis_labels import FAMILY, drawable_text
from headlens.plots.head_grid import TOP, Entries, Panel, Sheet
from headlens.plots.style import INK, LABEL_SIZE, MISSING, SEQUENTIAL, SMALLEST_SIZE, TICK_SIZE, fold, ink_on

BAR_WIDTH, TALLEST_BAR = 0.12, 2.6
BAR_SLOT = 0.72  # one colour bar with ticks and two lines of label

Ends = Literal["neither", "both", "min", "max"]


@dataclass(frozen=True)
class Scale:
    """A colour scale: the label of its bar (with the unit), its limits and matplotlib's name of the colours.

    `beyond` says at which ends there are values outside of the limits, as matplotlib's `extend` has it.
    """

    label: str
    low: float = 0.0
    high: float = 1.0
    colours: str = SEQUENTIAL
    beyond: Ends = "neither"

    @cached_property
    def mappable(self) -> ScalarMappable:
        """Scale and colours together, from which matplotlib makes a colour bar."""
        return ScalarMappable(Normalize(self.low, self.high), self.map)

    @property
    def limits(self) -> dict[str, Any]:
        """Colours and ends of the scale, as matplotlib's functions take them."""
        return {"cmap": self.map, "vmin": self.low, "vmax": self.high}

    @property
    def map(self) -> Colormap:
        """Matplotlib's colour map of the name `colours`."""
        return colormaps[self.colours]

    def ink(self, value: float) -> str:
        """Returns black or white, to write on the colour of `value`."""
        if np.isnan(value):
            return ink_on(MISSING)
        red, green, blue, _ = self.mappable.to_rgba(np.array([value]))[0]
        return ink_on((float(red), float(green), float(blue)))


def paint(axes: Axes, panel: Panel, scale: Scale) -> QuadMesh:
    """Colours the cells of a panel: grey where a head has no value, hatched where there is no head."""
    mesh_edges = edges(panel.values.shape)
    ground = np.ma.masked_where(~panel.present, np.zeros(panel.values.shape))
    axes.pcolormesh(*mesh_edges, ground, cmap=ListedColormap([MISSING]), edgecolors="white", linewidth=0.3)
    # Hatched, since the middle of a scale may be all but white.
    mark_cells(axes, ~panel.present, facecolor="none", edgecolor=MISSING, hatch="////", linewidth=0)
    values = np.ma.masked_invalid(panel.values)
    return axes.pcolormesh(*mesh_edges, values, edgecolors="white", linewidth=0.3, **scale.limits)


def colour_cells(axes: Axes, values: npt.NDArray[np.floating], scale: Scale, **looks: Any) -> None:
    """Colours cells (rows, columns) that stand at whole numbers; grey where there is no value."""
    axes.set_facecolor(MISSING)
    axes.pcolormesh(*edges(values.shape), np.ma.masked_invalid(values), **scale.limits, **looks)


def edges(shape: tuple[int, ...]) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Returns the borders of the cells along heads and along layers."""
    return np.arange(shape[1] + 1) - 0.5, np.arange(shape[0] + 1) - 0.5


def write(axes: Axes, words: Entries, inks: Entries, cell: tuple[float, float], letters: int = 5) -> None:
    """Writes a word into each cell; none where cells are too small to be read.

    Args:
        axes: axes whose cells stand at whole numbers.
        words: text (layers, heads).
        inks: colours of the text (layers, heads).
        cell: width and height of a cell, inches.
        letters: see `fitting_size`.
    """
    for (layer, head), word in np.ndenumerate(words):
        size = fitting_size(str(word), cell, letters)
        if word and size >= SMALLEST_SIZE:
            # Words of one line stand on one line with their neighbours, also where letters reach below it.
            across: Any = "center" if "\n" in str(word) else "center_baseline"
            text = axes.text(head, layer, drawable_text(str(word)), ha="center", va=across, linespacing=1.0)
            text.set(fontsize=size, fontfamily=FAMILY, color=str(inks[layer, head]))


def fitting_size(word: str, cell: tuple[float, float], letters: int = 5) -> float:
    """Returns the font size, in points, at which a word of one line or two fits a cell of so many inches.

    The size is the same for all words of at most so many `letters`.
    """
    lines = word.split("\n")
    # Letters are 0.67 of the size wide, as in "advmod"; in the room of five letters any short word fits.
    width = 0.67 * max(letters, *map(len, lines))
    return min(TICK_SIZE, 0.94 * cell[0] * 72 / width, (0.75 if len(lines) == 1 else 0.40) * cell[1] * 72)


def mark_cells(axes: Axes, marked: npt.NDArray[np.bool_], **looks: Any) -> None:
    """Draws a rectangle over every marked cell (layers, heads), which looks as matplotlib is told."""
    for layer, head in np.argwhere(marked):
        axes.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, **looks))


def add_bars(sheet: Sheet, *scales: Scale, below: bool = False) -> None:
    """Draws colour bars at the side of a sheet, beside its first row, or each `below` the other beside its panel."""
    if below:
        height = sheet.figure.get_figheight()
        tops = [height * (1 - axes.get_position().y1) for axes in sheet.axes[0]]
        for scale, top in zip(scales, tops, strict=False):
            add_bar(sheet.figure, scale, sheet.side - 0.1, top - 0.1, tallest=tops[1] - tops[0] - 0.1)
        return
    room = sheet.figure.get_figheight() - sheet.top - sheet.note - 0.4
    for number, scale in enumerate(scales):
        add_bar(sheet.figure, scale, sheet.side - 0.1 - number * BAR_SLOT, sheet.top + 0.2, min(TALLEST_BAR, room))


def bar_beside(figure: Figure, scale: Scale, axes: Any, **place: Any) -> None:
    """Draws a colour bar at the side of axes that matplotlib lays out."""
    bar = figure.colorbar(scale.mappable, ax=axes, **{"aspect": 25, **place})
    bar.ax.tick_params(labelsize=TICK_SIZE)
    bar.set_label(drawable_text(scale.label), fontsize=LABEL_SIZE, color=INK)


def add_bar(
    figure: Figure, scale: Scale, from_right: float, from_top: float = TOP + 0.2, tallest: float = TALLEST_BAR
) -> None:
    """Draws a vertical colour bar: its left edge and upper end so many inches from the figure's right and top."""
    width, height = figure.get_size_inches()
    length = min(tallest, height - from_top - 0.2)
    low = height - from_top - length
    slot = figure.add_axes((1 - from_right / width, low / height, BAR_WIDTH / width, length / height))
    bar = figure.colorbar(scale.mappable, cax=slot, extend=scale.beyond)
    bar.ax.tick_params(labelsize=TICK_SIZE, length=2, width=0.5, pad=1.5, colors=INK)
    bar.outline.set_linewidth(0.5)
    for size in np.arange(LABEL_SIZE, SMALLEST_SIZE, -0.5):
        bar.set_label(fold(scale.label, length, size), fontsize=size, color=INK, labelpad=3)
        # A long label is written smaller until it ends at the edge of the figure.
        box = bar.ax.get_tightbbox()
        if box is None or box.x1 <= figure.bbox.x1:
            break
