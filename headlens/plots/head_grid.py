"""Grids of layers × heads on one sheet: cells of one size, layer 0 at the bottom, all numbers from 0."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.heads import STACKS, Head
from headlens.plots import style
from headlens.plots.axis_labels import drawable_text, font_family
from headlens.plots.cell_drawing import NO_SCALE, Entries, Scale, bar_beside, draw_cells, mark_cells

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Grid = npt.NDArray[np.float64]

# inches
LARGEST_CELL, CLEAR_CELL, SMALLEST_CELL, LOWEST_PANEL = 0.42, 0.12, 0.05, 0.40
SIDE, NARROWEST, LOWEST_SHEET = 0.45, 1.1, 1.0  # beside the cells of a panel; least width of cells, and height
BAR = 0.85  # a colour bar with its ticks and label
_LINE, _WORDS = 0.55, 0.9  # about: of words by line of panels, and around all


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
    """One grid to be drawn.

    Args:
        title: above it.
        values: (layers, heads), NaN where there is no value.
        present: whether there is such a head.
        scale: its colours.
        across: what its columns are.
        columns: their names; none for numbers.
    """

    title: str
    values: Grid
    present: npt.NDArray[np.bool_]
    scale: Scale = NO_SCALE
    across: str = "head"
    columns: Sequence[str] = ()


class Sheet(NamedTuple):
    """A figure with axes laid out like the panels, and the width and height of a cell in inches."""

    figure: Figure
    axes: list[list[Axes]]
    cell: tuple[float, float]


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


def rows_of_models(tables: Mapping[str, pd.DataFrame], models: Collection[str]) -> dict[str, pd.DataFrame]:
    """The rows of tables that are of some of their models; tables without a column `model` stay as they are."""
    return {name: t[t["model"].isin(models)] if "model" in t else t for name, t in tables.items()}


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


def panel(rows: pd.DataFrame, values: Grid, title: str, scale: Scale = NO_SCALE) -> Panel:
    """Returns a panel of one value per row of a table."""
    present = scatter_grid(rows, np.ones(len(rows), bool), empty=False).astype(bool)
    return Panel(title, scatter_grid(rows, values).astype(np.float64), present, scale)


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
    *,
    note: Callable[[tuple[float, float]], str] = lambda _: "",
    tallest_cell: float = 0.30,
    lowest_cell: float = 0.0,
    handles: Sequence[Artist] = (),
) -> Sheet:
    """Draws panels in colours, with a bar for every scale that has a label; all is in its final place then.

    Cells are as large as fits a page, and equally large in all panels. In a column, the panels of a row stand below
    each other where they would be too small.

    Args:
        rows: the panels.
        title: of the figure.
        note: returns what stands below all, given the size of a cell.
        tallest_cell: inches.
        lowest_cell: inches.
        handles: of a legend, under the note.
    """
    scales = _scales(rows)
    lines, page = _lines(rows, len(scales))
    # Where panels stand below each other, every scale stands beside its own.
    is_single = max(map(len, lines)) == 1
    bars = BAR * (min(1, len(scales)) if is_single else len(scales))
    heads = [max(line[i].values.shape[1] for line in lines if len(line) > i) for i in range(max(map(len, lines)))]
    layers = [max(item.values.shape[0] for item in line) for line in lines]
    room = page - bars - SIDE * len(heads)
    usual = min(LARGEST_CELL, room / sum(heads))
    # Panels have some room for their titles, however few their heads, as far as there is any.
    narrowest = min(NARROWEST, room / len(heads))
    heads = [max(count, round(narrowest / max(usual, SMALLEST_CELL))) for count in heads]
    wide = max(SMALLEST_CELL, min(LARGEST_CELL, room / sum(heads)))
    width = max(style.COLUMN_WIDTH, page - room + wide * sum(heads))
    # Cells are as high as asked for, but so that all lines fit a sheet and panels are not too low.
    least = max(lowest_cell, LOWEST_PANEL / max(layers), (LOWEST_SHEET if scales else 0.0) / sum(layers))
    most = (style.TALLEST - _LINE * len(lines) - _WORDS) / sum(layers)
    high = max(SMALLEST_CELL, min(max(min(wide, tallest_cell), least), most))
    figure = style.constrained_figure(width, high * sum(layers) + _LINE * len(lines) + _WORDS, title)
    grid = figure.subplots(len(lines), len(heads), squeeze=False, width_ratios=heads, height_ratios=layers)
    in_order: list[Axes] = []
    for line, places, deep in zip(lines, grid, layers, strict=True):
        for column, (axes, count) in enumerate(zip(places, heads, strict=True)):
            if column >= len(line):
                axes.remove()
                continue
            _paint(axes, line[column])
            style.dress(axes, line[column].across, "" if column else "layer")
            style.heading(axes, line[column].title, wide * count + SIDE - 0.1)
            number_axes(axes, line[column].values.shape, (wide, high))
            if line[column].columns:
                _name_columns(axes, line[column].columns, wide)
            axes.set(xlim=(0, count), ylim=(0, deep))
            in_order.append(axes)
    # Of bars beside the same panels the last one drawn stands next to them.
    for number, scale in enumerate(scales if is_single else reversed(scales)):
        beside = slice(None)
        if is_single and len(scales) > 1:
            # Low panels lend the bar the height of the next ones.
            first_line = next(n for n, line in enumerate(lines) if line[0].scale == scale)
            each_has = len(lines) // len(scales)
            is_high = high * layers[first_line] >= LOWEST_SHEET
            beside = slice(first_line, first_line + 1) if is_high else slice(number * each_has, (number + 1) * each_has)
        deep = layers[beside] if is_single else layers
        own = in_order[beside] if is_single else _of_scale(scale, lines, in_order)
        bar_beside(figure, scale, own, high * sum(deep) + _LINE * (len(deep) - 1))
    remark = style.fold(note((wide, high)), width - 0.16, style.TICK_SIZE)
    if handles:
        legend = figure.legend(handles=handles, loc="outside lower left", ncols=4, title=remark, **style.legend_looks())
        legend.set(alignment="left")
        legend.get_title().set(fontsize=style.TICK_SIZE, fontfamily=font_family(), color=style.INK)
    elif remark:
        below = figure.supxlabel(remark, x=0.08 / width, ha="left", fontsize=style.TICK_SIZE, color=style.INK)
        below.set_fontfamily(font_family())
    style.fit_height(figure, grid[:, 0], high * sum(layers))
    # Lines of a narrow sheet become rows again.
    remaining = iter(in_order)
    boxes = grid[0, 0].get_window_extent().size / figure.dpi / (heads[0], layers[0])
    return Sheet(figure, [list(islice(remaining, len(row))) for row in rows], (float(boxes[0]), float(boxes[1])))


def _lines(rows: Sequence[Sequence[Panel]], scales: int) -> tuple[Sequence[Sequence[Panel]], float]:
    """Returns the rows, each broken into lines of panels that are clear in a column, and the width of the page.

    The rows are planned for a full page. Very many heads or panels get it even in a column.
    """
    if style.in_column():
        for abreast in range(max(map(len, rows)), 0, -1):
            lines = [row[start : start + abreast] for row in rows for start in range(0, len(row), abreast)]
            bars, cell = BAR * min(scales, scales if abreast > 1 else 1), CLEAR_CELL if abreast > 1 else SMALLEST_CELL
            widest = max(cell * sum(item.values.shape[1] for item in line) + SIDE * len(line) for line in lines)
            high = sum(_LINE + SMALLEST_CELL * max(item.values.shape[0] for item in line) for line in lines)
            if widest + bars <= style.page_width() and high <= style.TALLEST:
                return lines, style.page_width()
    return rows, style.FULL_WIDTH


def _of_scale(scale: Scale, lines: Sequence[Sequence[Panel]], in_order: Sequence[Axes]) -> list[Axes]:
    """Returns the axes that the bar of a scale stands beside: the columns of its panels, or all if others are there."""
    panels = list(zip(((column, item) for line in lines for column, item in enumerate(line)), in_order, strict=True))
    columns = {column for (column, item), _ in panels if item.scale == scale}
    own = [(item, axes) for (column, item), axes in panels if column in columns]
    is_alone = all(item.scale == scale for item, _ in own) and max(columns) - min(columns) < len(columns)
    return [axes for _, axes in own] if is_alone else list(in_order)


def is_narrow(rows: Sequence[Sequence[Panel]]) -> bool:
    """Returns whether `head_grid_figure` draws rows for a column."""
    return _lines(rows, len(_scales(rows)))[1] < style.FULL_WIDTH


def _scales(rows: Sequence[Sequence[Panel]]) -> list[Scale]:
    """Returns the scales that have a bar."""
    return list(dict.fromkeys(item.scale for row in rows for item in row if item.scale.label))


def _paint(axes: Axes, item: Panel) -> None:
    """Colours the cells of a panel: grey where a head has no value, hatched where there is no head."""
    from matplotlib.colors import ListedColormap

    looks: dict[str, Any] = {"linewidths": 0.3, "linecolor": "white"}
    draw_cells(axes, np.where(item.present, 0.0, np.nan), cmap=ListedColormap([style.MISSING]), vmin=0, vmax=1, **looks)
    # Hatched, since the middle of a scale may be all but white.
    mark_cells(axes, ~item.present, facecolor="none", edgecolor=style.MISSING, hatch="////", linewidth=0)
    draw_cells(axes, item.values, **item.scale.limits, **looks)


def number_axes(axes: Axes, shape: tuple[int, ...], cell: tuple[float, float]) -> None:
    """Sets ticks at whole layers and heads, thinned where they would touch; layer 0 is at the bottom."""
    for axis, count, side, room in zip((axes.yaxis, axes.xaxis), shape, cell[::-1], (0.115, 0.15), strict=True):
        ticks = np.arange(0, count, style.tick_step(side, room))
        axis.set_ticks(ticks + 0.5, [str(tick) for tick in ticks])


def _name_columns(axes: Axes, names: Sequence[str], width: float) -> None:
    """Writes names below columns, upwards where cells are too narrow."""
    fits = 0.64 * style.TICK_SIZE / 72 * max(map(len, names)) <= 0.9 * width
    look: dict[str, Any] = {"fontsize": style.TICK_SIZE - (not fits), "fontfamily": font_family(), "color": style.INK}
    drawn = [drawable_text(name) for name in names]
    axes.set_xticks(np.arange(len(names)) + 0.5, drawn, rotation=0 if fits else 90, **look)


def each(sheet: Sheet, rows: Sequence[Sequence[Panel]]) -> Iterator[tuple[Axes, Panel]]:
    """Returns the axes of a sheet, each paired with the panel to be drawn there, row by row."""
    return zip(chain(*sheet.axes), chain(*rows), strict=True)
