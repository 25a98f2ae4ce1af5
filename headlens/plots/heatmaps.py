"""Numbers of heads as heatmaps: one with its interval in the cells, or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.errors import counted
from headlens.plots.cell_drawing import Ends, Scale, fitting_size, mark_cells, write
from headlens.plots.head_grid import (
    Grid,
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
)
from headlens.plots.style import INK, LOSS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_HEADS = 26  # of the panels of a row
ABREAST = 12  # heads in a row of panels: cells stay wide enough for numbers
_CELL = 0.34  # inches
_READABLE, _SMALL = 5.0, 4.5  # points: of two lines in a cell, and of one
_WORDS = " words"  # a column that no table has
_VEIL = 0.65
_POWERS, _LEAST = (0, 3, 6, 9, 12), 0.01  # of the units of written numbers; of the largest of them
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_NUMBERS = "±: half the width of the 95 % interval, which need not be symmetric."


def holds_zero(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Returns which rows have an interval that holds 0; False where there is none."""
    return (float_column(rows, "ci_low") <= 0) & (float_column(rows, "ci_high") >= 0)


@dataclass(frozen=True)
class Cells:
    """The contents of the cells of a map.

    Args:
        value: column with the number.
        dotted: returns which rows get a dot.
        dot: meaning of the dot, for the note below the map.
        name: returns the title of a panel.
        abreast: heads in a row of panels; with many, panels stand side by side and cells are too small for numbers.
        unsure: returns which rows are pale: their colour must not be taken for a finding.
        pale: meaning of that, for the note.
        warned: returns which rows are of a layer that gets a triangle at its left end.
        warning: meaning of the triangle, for the note.
        ringed: returns which rows get a ring.
        ring: meaning of the ring, for the note where there is one.
        hatched: returns which rows are hatched, having no number for a reason of their own.
        hatch: meaning of that, for the note where there is one.
        remark: what the note says in any case.
    """

    value: str
    dotted: Callable[[pd.DataFrame], npt.NDArray[np.bool_]] = lambda rows: np.zeros(len(rows), bool)
    dot: str = ""
    name: Callable[[StackRows], str] = lambda part: part.name
    abreast: int = ABREAST
    unsure: Callable[[pd.DataFrame], npt.NDArray[np.bool_]] = holds_zero
    pale: str = "Pale: the interval contains 0."
    warned: Callable[[pd.DataFrame], npt.NDArray[np.bool_]] = lambda rows: np.zeros(len(rows), bool)
    warning: str = ""
    ringed: Callable[[pd.DataFrame], npt.NDArray[np.bool_]] = lambda rows: np.zeros(len(rows), bool)
    ring: str = ""
    hatched: Callable[[pd.DataFrame], npt.NDArray[np.bool_]] = lambda rows: np.zeros(len(rows), bool)
    hatch: str = ""
    remark: str = ""


def limit(*values: Grid) -> float:
    """Returns the end of a scale around 0 that all but outliers fit; 1 where there is nothing but 0.

    The largest magnitude, but at most four times the upper quartile of magnitudes: shares grow without bounds in a
    layer whose heads nearly cancel, and all of its heads with them.
    """
    sizes = np.abs(np.concatenate([numbers[np.isfinite(numbers)] for numbers in values]))
    if not sizes.any():
        return 1.0
    largest = float(sizes.max())
    return min(largest, 4 * float(np.quantile(sizes, 0.75, method="lower"))) or largest


def interval_map(rows: pd.DataFrame, cells: Cells, scale: Scale, title: str) -> Figure:
    """Draws a number of every head as colours; large cells also hold it and half the width of its interval.

    Cells that `cells` calls unsure are pale, by default those whose interval holds 0.

    Args:
        rows: columns model, stack, layer, head, that of the value, `ci_low` and `ci_high`; one row per head.
        cells: their contents.
        scale: colours.
        title: of the figure.
    """
    values, halves = float_column(rows, cells.value), (float_column(rows, "ci_high") - float_column(rows, "ci_low")) / 2
    power = power_of_unit(values, halves)
    words = [
        "" if np.isnan(value) else short_number(value) + ("" if np.isnan(half) else f"\n±{short_number(half)}")
        for value, half in zip(values * 10.0**power, halves * 10.0**power, strict=True)
    ]
    parts = by_model_and_stack(rows.assign(**{_WORDS: np.array(words, object)}))
    panels = [(p.model, panel(p.rows, float_column(p.rows, cells.value), cells.name(p), scale)) for p in parts]
    plan = flow(panels, cells.abreast)

    def is_written(cell: tuple[float, float]) -> bool:
        return min(fitting_size(word, cell) for word in words) >= _READABLE

    def note(cell: tuple[float, float]) -> str:
        is_small = power > 0 and is_written(cell)
        unit = f"Numbers are in units of {power_text(power)}." if is_small else ""
        numbers = _NUMBERS if is_written(cell) and any("±" in word for word in words) else ""
        warning = cells.warning if cells.warned(rows).any() else ""
        hatch = cells.hatch if cells.hatched(rows).any() else ""
        remarks = (warning, _beyond(values, scale), unit, cells.remark, numbers, cells.dot, cells.ring, hatch)
        some_pale = (cells.unsure(rows) & np.isfinite(values)).any()
        return " ".join(filter(None, (*remarks, cells.pale if some_pale or np.isfinite(halves).any() else "")))

    sheet = head_grid_figure(plan, title, tallest_cell=_CELL, note=note)
    if is_written(sheet.cell):
        _say_unit(sheet, power)
    for (axes, item), part in zip(each(sheet, plan), parts, strict=True):
        unsure = scatter_grid(part.rows, cells.unsure(part.rows), empty=False).astype(bool) & np.isfinite(item.values)
        mark_cells(axes, unsure, facecolor="white", alpha=_VEIL, linewidth=0)
        hatched = scatter_grid(part.rows, cells.hatched(part.rows), empty=False).astype(bool)
        mark_cells(axes, hatched, facecolor="none", edgecolor="white", hatch="\\\\\\", linewidth=0)
        inks = np.where(unsure, INK, np.vectorize(scale.ink, otypes=[object])(item.values))
        if is_written(sheet.cell):
            write(axes, scatter_grid(part.rows, part.rows[_WORDS].to_numpy(object), empty=""), inks, sheet.cell)
        # In the upper corners, where the numbers leave some room.
        right, up = (1 - 2.6 / 72 / side for side in sheet.cell)
        size = min(2.4, 0.15 * 72 * min(sheet.cell)) ** 2
        for chosen, side, ring in ((cells.dotted, right, False), (cells.ringed, 1 - right, True)):
            marked = scatter_grid(part.rows, chosen(part.rows), empty=False).astype(bool) & np.isfinite(item.values)
            if ring and not marked.any():
                continue
            layers, heads = np.nonzero(marked)
            look = {"facecolors": "none", "edgecolors": list(inks[marked])} if ring else {"c": list(inks[marked])}
            axes.scatter(heads + side, layers + up, s=size, **look, linewidths=0.6 * ring, zorder=3)
        warned = np.unique(part.rows["layer"].to_numpy(int)[cells.warned(part.rows)])
        if len(warned):
            axes.scatter(np.zeros(len(warned)), warned + 0.5, s=14, marker=">", color=LOSS, clip_on=False, zorder=4)
    return sheet.figure


def _beyond(values: Grid, scale: Scale) -> str:
    """How many numbers the ends of a scale stand for that lie beyond them, and how far; empty for none."""
    # NaN is neither.
    outside = values[(values < scale.low) | (values > scale.high)]
    if not outside.size:
        return ""
    farthest = f"{outside[np.argmax(np.abs(outside))]:.2g}".replace("-", "−")
    return f"Beyond the ends of the scale: {counted(outside.size, 'head')}, up to {farthest}."


def _say_unit(sheet: Sheet, power: int) -> None:
    """Gives the colour bar the unit of the numbers in cells, so that both say the same of a head."""
    from matplotlib.ticker import FuncFormatter

    panels = {axes for line in sheet.axes for axes in line}
    for axes in sheet.figure.axes if power else ():
        if axes.get_ylabel() and axes not in panels:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 10**power:g}".replace("-", "−")))
            axes.set_ylabel(f"{axes.get_ylabel()}, {power_text(power)}")


def power_text(power: int) -> str:
    """Returns the unit of numbers that were multiplied by a power of ten, such as `10⁻³`."""
    return f"10⁻{str(power).translate(_RAISED)}"


def power_of_unit(*numbers: Grid) -> int:
    """Returns by which power of ten numbers are multiplied where three decimals would leave a digit of them or none."""
    largest = max(float(np.max(np.abs(n), where=np.isfinite(n), initial=0.0)) for n in numbers)
    return next((power for power in _POWERS if largest * 10.0**power >= _LEAST), 0)


def centred_scale(
    label: str, rows: pd.DataFrame, column: str, colours: str, *, with_outliers: bool = False, least: float = 0.0
) -> Scale:
    """Returns a scale with 0 in the middle, open where outliers lie beyond its ends.

    Outliers have the colour of its end, and stretch it only `with_outliers`. It is never fitted to noise:
    its ends are no nearer to 0 than twice half the width of the usual (median) interval.

    Args:
        label: of the colour bar.
        rows: the column, and `ci_low` and `ci_high` where there are intervals.
        column: with the values.
        colours: matplotlib's name of them.
        with_outliers: whether it holds outliers, too.
        least: distance of its ends from 0.
    """
    values = float_column(rows, column)
    known = values[np.isfinite(values)]
    end = limit(values) if not with_outliers else float(np.abs(known).max(initial=0.0)) or 1.0
    widths = float_column(rows, "ci_high") - float_column(rows, "ci_low")
    if np.isfinite(widths).any():
        end = max(end, float(np.nanmedian(widths)))
    end = max(end, least)
    low, high = bool((known < -end).any()), bool((known > end).any())
    beyond: Ends = "both" if low and high else "min" if low else "max" if high else "neither"
    return Scale(label, -end, end, colours, beyond)


def short_number(value: float) -> str:
    """Formats a number in at most a few letters: three decimals, fewer for large ones, with a true minus."""
    text = f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"
    text = text.removeprefix("-") if not float(text) else text
    return text.replace("-", "−")


def _share(value: float) -> str:
    """Formats a number with two digits: `.52`, `2.7`, `27`; empty for NaN."""
    if np.isnan(value):
        return ""
    text = f"{value:.2f}" if abs(value) < 0.995 else f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"
    text = text if float(text) else text.removeprefix("-")
    return text.replace("0.", ".", 1).replace("-", "−")


def paired_maps(
    heads: pd.DataFrame,
    columns: Mapping[str, str],
    scales: Sequence[Scale],
    title: str,
    remark: Callable[[StackRows, str], str] = lambda _part, _name: "",
) -> Figure | None:
    """Draws several columns of one table side by side, in rows for each model and stack; numbers where there is room.

    Args:
        heads: columns model, stack, layer, head, and those named.
        columns: the quantities, with the words that title their panels.
        scales: one for all columns, or one for each.
        title: title of the figure.
        remark: returns what is added to the title of a panel, given its rows and column.

    Returns:
        The figure, or None when all the columns are empty.
    """
    if not has_numbers(heads, *columns):
        return None
    rows: list[list[Panel]] = []
    # The same number for all models, whose panels are to stand below each other.
    abreast = max(2, MOST_HEADS // (int(heads["head"].max()) + 1))
    for p in by_model_and_stack(heads):
        # What a stack cannot have, such as the token itself for cross-attention, is left out.
        known = [(n, w, s) for (n, w), s in zip(columns.items(), cycle(scales), strict=False) if has_numbers(p.rows, n)]
        panels = [
            panel(p.rows, float_column(p.rows, name), f"{p.name}: {words}{remark(p, name)}", scale)
            for name, words, scale in known
        ]
        # None stands alone beside the room of another, which would have taken that of its numbers.
        across = 1 if len(panels) == abreast + 1 == 3 else abreast
        rows += [panels[start : start + across] for start in range(0, len(panels), across)]
    sheet = head_grid_figure(rows, title)
    for axes, item in each(sheet, rows):
        words = np.vectorize(_share, otypes=[object])(item.values)
        # Signs need room, and all numbers of a panel have one size.
        letters = max(3, *map(len, words.flat))
        if fitting_size("", sheet.cell, letters) >= _SMALL:
            write(axes, words, np.vectorize(item.scale.ink, otypes=[object])(item.values), sheet.cell, letters)
    return sheet.figure
