"""Drawing into a grid of layers × heads: colours, words, frames, colour bars."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from headlens.plots.axis_labels import drawable_text, font_family
from headlens.plots.style import INK, LABEL_SIZE, MISSING, SEQUENTIAL, SMALLEST_SIZE, TICK_SIZE, fold, ink_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Entries = npt.NDArray[np.generic]  # of any kind, (layers, heads)

BAR_WIDTH, TALLEST_BAR = 0.12, 2.6
BAR_SLOT = 0.72  # one colour bar with ticks and two lines of label

Ends = Literal["neither", "both", "min", "max"]


@dataclass(frozen=True)
class Scale:
    """A colour scale: the label of its bar (with the unit) or none, its limits and matplotlib's name of the colours.

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
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        return ScalarMappable(Normalize(self.low, self.high), self.map)

    @property
    def limits(self) -> dict[str, Any]:
        """Colours and ends of the scale, as matplotlib's functions take them."""
        return {"cmap": self.map, "vmin": self.low, "vmax": self.high}

    @property
    def map(self) -> Colormap:
        """Matplotlib's colour map of the name `colours`."""
        from matplotlib import colormaps

        return colormaps[self.colours]

    def ink(self, value: float) -> str:
        """Returns black or white, to write on the colour of `value`."""
        if np.isnan(value):
            return ink_on(MISSING)
        red, green, blue, _ = self.mappable.to_rgba(np.array([value]))[0]
        return ink_on((float(red), float(green), float(blue)))


NO_SCALE = Scale("")


def draw_cells(axes: Axes, values: npt.NDArray[np.floating], **looks: Any) -> None:
    """Draws cells (rows, columns), the first row at the bottom: row 2 is from 2 to 3; no colour where there is NaN.

    Args:
        axes: whose limits are set, and which have no ticks then.
        values: of the cells.
        looks: as `seaborn.heatmap` takes them, such as `Scale.limits`.
    """
    import seaborn as sns
    from matplotlib.backend_bases import FigureCanvasBase

    figure = axes.get_figure(root=True)
    assert figure is not None
    canvas = figure.canvas
    labels = {"xlabel": axes.get_xlabel(), "ylabel": axes.get_ylabel()}
    FigureCanvasBase(figure)  # seaborn draws the figure after each heatmap; this canvas does not
    sns.heatmap(values, ax=axes, cbar=False, xticklabels=False, yticklabels=False, **looks)
    figure.set_canvas(canvas)
    axes.set(ylim=(0, len(values)), **labels)


def colour_cells(axes: Axes, values: npt.NDArray[np.floating], scale: Scale, **looks: Any) -> None:
    """Draws framed cells on grey, which is seen where there is no value."""
    axes.set_facecolor(MISSING)
    draw_cells(axes, values, **scale.limits, **looks)
    axes.spines[:].set_visible(True)


def write(axes: Axes, words: Entries, inks: Entries, cell: tuple[float, float], letters: int = 5) -> None:
    """Writes a word into each cell; none where cells are too small to be read.

    Args:
        axes: with cells as `draw_cells` has them.
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
            text = axes.text(head + 0.5, layer + 0.5, drawable_text(str(word)), ha="center", va=across, linespacing=1.0)
            text.set(fontsize=size, fontfamily=font_family(), color=str(inks[layer, head]), in_layout=False)


def fitting_size(word: str, cell: tuple[float, float], letters: int = 5) -> float:
    """Returns the font size, in points, at which a word of one line or two fits a cell of so many inches.

    The size is the same for all words of at most so many `letters`.
    """
    lines = word.split("\n")
    # Letters are 0.67 of the size wide, as in "advmod"; in the room of five letters any short word fits.
    width = 0.67 * max(letters, *map(len, lines))
    return min(TICK_SIZE, 0.94 * cell[0] * 72 / width, (0.75 if len(lines) == 1 else 0.40) * cell[1] * 72)


def mark_cells(axes: Axes, marked: npt.NDArray[np.bool_], **looks: Any) -> None:
    """Draws a rectangle over every marked cell (layers, heads), with the given properties of matplotlib."""
    from matplotlib.patches import Rectangle

    for layer, head in np.argwhere(marked):
        axes.add_patch(Rectangle((head, layer), 1, 1, **looks))


def bar_beside(figure: Figure, scale: Scale, axes: Any, length: float, **place: Any) -> Colorbar:
    """Draws a colour bar at the side of axes that matplotlib lays out and that are about so many inches high."""
    shrink = min(1.0, TALLEST_BAR / length)
    looks: dict[str, Any] = {"shrink": shrink, "anchor": (0, 1), "aspect": shrink * length / BAR_WIDTH, "pad": 0.02}
    looks |= place
    bar = figure.colorbar(scale.mappable, ax=axes, extend=scale.beyond, **looks)
    bar.ax.tick_params(labelsize=TICK_SIZE, length=2, width=0.5, pad=1.5, colors=INK)
    bar.outline.set_linewidth(0.5)
    # A label of many lines would leave no room for the axes.
    label = fold(scale.label, looks["shrink"] * length, LABEL_SIZE, most=4)
    bar.set_label(label, fontsize=LABEL_SIZE, fontfamily=font_family(), color=INK)
    return bar


def add_bar(figure: Figure, scale: Scale, from_right: float, from_top: float) -> None:
    """Draws a vertical colour bar: its left edge and upper end so many inches from the figure's right and top."""
    width, height = figure.get_size_inches()
    length = min(TALLEST_BAR, height - from_top - 0.2)
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
