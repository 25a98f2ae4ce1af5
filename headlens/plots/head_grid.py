"""Grids of layers × heads on one sheet: cells of one size, layer 0 at the bottom, all numbers from 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.heads import STACKS, Head
from headlens.plots import style
from headlens.plots.axis_labels import FAMILY
from headlens.plots.style import COLUMN_WIDTH, FULL_WIDTH, page_width

Grid = npt.NDArray[np.float64]
Entries = npt.NDArray[np.generic]  # of any kind, (layers, heads)

# inches
LEFT, BOTTOM, GAP, TOP, LINE = 0.40, 0.42, 0.12, 0.25, 0.135
NOTE_LINE = 0.12
LARGEST_CELL, CLEAR_CELL, SMALLEST_CELL, LOWEST_PANEL = 0.42, 0.12, 0.05, 0.40
SMALLEST_SLOT, SMALLEST_SHEET, TALLEST_SHEET = 1.5, 2.1, 9.2


class StackRows(NamedTuple):
    """Rows of a head table that belong to one stack of one model, with the names of both."""

    model: str
    stack: str
    rows: pd.DataFrame

    @property
    def name(self) -> str:
        """Model name and stack, separated by a comma, for a title; the stack alone where the model has no name."""
        return f"{self.model}, {self.stack}" if self.model else self.stack


@dataclass(frozen=True)
class Panel:
    """One grid to be drawn: `values` (layers, heads), NaN where there is no value; `present`: such a head exists."""

    title: str
    values: Grid
    present: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sheet:
    """A figure with axes laid out like the panels, the size of a cell, and the room at the side, top and for the note.

    All in inches.
    """

    figure: Figure
    axes: list[list[Axes]]
    cell: tuple[float, float]
    side: float
    top: float = TOP
    note: float = 0.0


def head_name(row: Mapping[Any, Any] | pd.Series[Any]) -> str:
    """Returns the name of the head of a row of a head table, such as `encoder.2.8`."""
    return str(Head(row["stack"], int(row["layer"]), int(row["head"])))


def by_model_and_stack(frame: pd.DataFrame) -> list[StackRows]:
    """Splits a table by model, in order of appearance, and by stack: encoder, decoder, cross."""
    models = frame["model"].fillna("").astype(str) if "model" in frame else pd.Series("", index=frame.index)
    return [
        StackRows(model, stack, rows)
        for model, stack in product(models.drop_duplicates(), STACKS)
        if len(rows := frame[(models == model) & (frame["stack"] == stack)])
    ]


def float_column(frame: pd.DataFrame, column: str) -> Grid:
    """Returns a column as floats; all NaN when the table lacks it."""
    if column not in frame:
        return np.full(len(frame), np.nan)
    return pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64)


def has_numbers(frame: pd.DataFrame, *columns: str) -> bool:
    """Returns whether any of the columns holds a number."""
    return any(bool(np.isfinite(float_column(frame, column)).any()) for column in columns)


def scatter_grid(rows: pd.DataFrame, values: npt.ArrayLike, empty: object = np.nan) -> Entries:
    """Returns an array (layers, heads) of one value per row of a table; `empty` where there is no such head."""
    layers, heads = rows["layer"].to_numpy(int), rows["head"].to_numpy(int)
    flat = np.asarray(values)
    grid = np.full((layers.max() + 1, heads.max() + 1), empty, dtype=flat.dtype)
    grid[layers, heads] = flat
    return grid


def panel(rows: pd.DataFrame, values: Grid, title: str) -> Panel:
    """Returns a panel of one value per row of a table."""
    present = scatter_grid(rows, np.ones(len(rows), bool), empty=False).astype(bool)
    return Panel(title, scatter_grid(rows, values).astype(np.float64), present)


def flow(panels: Sequence[tuple[str, Panel]], most_heads: int = 26) -> list[list[Panel]]:
    """Breaks (model, panel) pairs into rows of at most `most_heads` heads.

    A model with several stacks starts a row of its own, so that its stacks stand side by side.
    """
    has_stacks = len({model for model, _ in panels}) < len(panels)
    rows: list[list[Panel]] = []
    last: str | None = None
    for model, item in panels:
        used = sum(p.values.shape[1] for p in rows[-1]) if rows else most_heads
        if used + item.values.shape[1] > most_heads or (has_stacks and model != last):
            rows.append([])
        rows[-1].append(item)
        last = model
    return rows


def head_grid_figure(
    rows: Sequence[Sequence[Panel]],
    title: str,
    side: float = 0.0,
    foot: float = 0.0,
    tallest_cell: float = 0.30,
    lowest_cell: float = 0.0,
    note: Callable[[tuple[float, float]], str] = lambda _: "",
) -> Sheet:
    """Makes a figure with one pair of axes per panel, `side` inches free on the right and `foot` at the bottom.

    Cells are as large as fits a page, and equally large in all panels. In a column, the panels of a row stand below
    each other where they would be too small. Below the foot stands a note, which may depend on the size of a cell.
    """
    page = sheet_width(rows, side)
    lines = _lines(rows, side, page)
    cell_width = min(_cell_width(line, page, side) for line in lines)
    slots = _slots(lines, cell_width)
    width = max(COLUMN_WIDTH, sum(slots) + side + 0.05)
    top = first_top = TOP + style.further_lines(title, width)
    # Cells are as high as asked for, but so that all lines fit a sheet and panels are not too low.
    deepest = [max(item.values.shape[0] for item in line) for line in lines]
    wanted = max(min(cell_width, tallest_cell), lowest_cell, LOWEST_PANEL / max(deepest))
    room = TALLEST_SHEET - top - sum(_row_height(line, slots, 0.0) for line in lines)
    cell = cell_width, max(SMALLEST_CELL, min(wanted, room / sum(deepest)))
    # A colour bar needs some height for its label.
    told = style.fold(note(cell), width - 0.16, style.TICK_SIZE)
    note_height = NOTE_LINE * (told.count("\n") + 1) if told else 0.0
    needed = top + sum(_row_height(line, slots, cell[1]) for line in lines) + foot + note_height
    height = max(SMALLEST_SHEET if side else 0.0, needed)
    figure = style.new_figure(width, height)
    style.headline(figure, title)
    if told:
        below = figure.text(0.08 / width, 0.06 / height, told, fontsize=style.TICK_SIZE, color=style.INK)
        below.set(fontfamily=FAMILY, va="bottom")
    in_order = []
    for line in lines:
        for item, slot, left in zip(line, slots, np.cumsum([0, *slots[:-1]]), strict=False):
            layers, heads = item.values.shape
            low = height - top - _title_height(line, slots) - layers * cell[1]
            place = (left + LEFT) / width, low / height, heads * cell[0] / width, layers * cell[1] / height
            in_order.append(axes := figure.add_axes(place))
            style.dress(axes, "head", "layer")
            style.heading(axes, item.title, slot - 0.05, shift=LEFT - 0.08)
            number_axes(axes, item.values.shape, cell)
        top += _row_height(line, slots, cell[1])
    # Lines of a narrow sheet become rows again.
    remaining = iter(in_order)
    return Sheet(figure, [list(islice(remaining, len(row))) for row in rows], cell, side, first_top, note_height)


def sheet_width(rows: Sequence[Sequence[Panel]], side: float) -> float:
    """Returns the width of the page that `head_grid_figure` plans for, in inches.

    Very many heads or panels get the full width, even in a column.
    """
    if not style.in_column():
        return FULL_WIDTH
    lines = _lines(rows, side, page_width())
    slots = _slots(lines, min(_cell_width(line, page_width(), side) for line in lines))
    long = TOP + sum(_row_height(line, slots, SMALLEST_CELL) for line in lines) > TALLEST_SHEET
    return FULL_WIDTH if long else page_width(round(sum(slots) + side + 0.05, 6))


def _lines(rows: Sequence[Sequence[Panel]], side: float, page: float) -> Sequence[Sequence[Panel]]:
    """Returns the rows, which are planned for a full page; for a column each is broken into lines of clear panels."""
    if page == FULL_WIDTH:
        return rows
    for abreast in range(max(map(len, rows)), 0, -1):
        lines = [row[start : start + abreast] for row in rows for start in range(0, len(row), abreast)]
        if sum(_slots(lines, CLEAR_CELL)) + side + 0.05 <= page:
            break
    return lines


def _slots(lines: Sequence[Sequence[Panel]], cell_width: float) -> list[float]:
    """Returns the widths of the panels that stand side by side, with their margins, in inches."""
    return [
        max(SMALLEST_SLOT, LEFT + GAP + cell_width * max(line[i].values.shape[1] for line in lines if len(line) > i))
        for i in range(max(map(len, lines)))
    ]


def _cell_width(row: Sequence[Panel], page: float, side: float) -> float:
    room = page - 0.05 - side - len(row) * (LEFT + GAP)
    heads: int = sum(p.values.shape[1] for p in row)
    return max(SMALLEST_CELL, min(LARGEST_CELL, room / heads))


def _title_height(row: Sequence[Panel], slots: Sequence[float]) -> float:
    return 0.06 + LINE * max(style.heading_lines(p.title, slot - 0.05) for p, slot in zip(row, slots, strict=False))


def _row_height(row: Sequence[Panel], slots: Sequence[float], cell_height: float) -> float:
    layers: int = max(p.values.shape[0] for p in row)
    return _title_height(row, slots) + cell_height * layers + BOTTOM


def number_axes(axes: Axes, shape: tuple[int, ...], cell: tuple[float, float]) -> None:
    """Sets ticks at whole layers and heads, thinned where they would touch; layer 0 is at the bottom."""
    layers, heads = shape
    axes.set(xlim=(-0.5, heads - 0.5), ylim=(-0.5, layers - 0.5))
    axes.set_xticks(range(0, heads, style.tick_step(cell[0], 0.15)))
    axes.set_yticks(range(0, layers, style.tick_step(cell[1], 0.115)))


def each(sheet: Sheet, rows: Sequence[Sequence[Panel]]) -> Iterator[tuple[Axes, Panel]]:
    """Returns the axes of a sheet, each paired with the panel to be drawn there, row by row."""
    return zip(chain(*sheet.axes), chain(*rows), strict=True)
