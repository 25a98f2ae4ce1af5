"""Where heads point, relative to the token they read from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bar, add_bars, paint, write
from headlens.plots.head_grid import (
    GAP,
    LEFT,
    TOP,
    Grid,
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
from headlens.plots.style import INK, MISSING, dress, heading, headline, in_column, new_figure, page_width, tick_step

OFFSETS = ("<-8", *map(str, range(-8, 9)), ">8")
_TALLEST = 7.0  # inches of the offset profile's columns
_NAMES = 0.30  # inches for the numbers of heads and of layers, beside a profile
_HEAD_SIZE = 5.0  # points


def positional_map(heads: pd.DataFrame) -> Figure | None:
    """The share of tokens at every head's commonest offset, with that offset in the cell.

    Args:
        heads: rows of `heads.csv`, of one model or several.

    Returns:
        The figure, or None when nothing was measured.
    """
    if not has_numbers(heads, "positional_share"):
        return None
    pieces = by_model_and_stack(heads)
    rows = flow([(p.model, panel(p.rows, float_column(p.rows, "positional_share"), p.name)) for p in pieces])
    sheet = head_grid_figure(rows, "Commonest offset of attention heads", side=BAR_SLOT + 0.15)
    # cells of a column are too narrow for more than a sign and a digit
    letters = 2 if in_column() else 5
    scale = Scale("share of tokens at that offset")
    ink = np.vectorize(scale.ink, otypes=[object])
    for (axes, item), part in zip(each(sheet, rows), pieces, strict=True):
        paint(axes, item, scale)
        words = np.array([_signed(v) for v in float_column(part.rows, "positional_offset")], object)
        write(axes, scatter_grid(part.rows, words, empty=""), ink(item.values), sheet.cell, letters)
    add_bars(sheet, scale)
    return sheet.figure


def offset_profile(positions: pd.DataFrame) -> Figure | None:
    """The whole histogram of offsets of every head: one line per head, layer 0 at the bottom.

    Numbers beside the lines are those of the heads, as many as can be read; outside of them, the layer.

    Args:
        positions: rows of `positions.csv`, of one model or several.

    Returns:
        The figure, or None when nothing was measured.
    """
    if not has_numbers(positions, "share"):
        return None
    pieces = [p for p in by_model_and_stack(positions) if has_numbers(p.rows, "share")]
    scale = Scale("share of query tokens")
    side = BAR_SLOT
    abreast = 1 if in_column() else len(pieces)
    below = len(pieces) // abreast
    column = min(3.2, (page_width() - side) / abreast)
    lines = max(len(_lines(p)) for p in pieces)
    length = float(np.clip(lines * 0.12, 1.6, max(1.6, _TALLEST / below)))
    slot = 0.4 + length + 0.5
    width, height = column * abreast + side, TOP + 0.4 + length + 0.5 + (below - 1) * slot
    figure = new_figure(width, height)
    headline(figure, "Offsets of attention heads")
    for number, part in enumerate(pieces):
        left, (line, place) = LEFT + _NAMES - 0.12, divmod(number, abreast)
        box = place * column + left, height - TOP - 0.4 - length - line * slot, column - left - GAP, length
        axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
        _profile(axes, part, scale)
        heading(axes, part.name, column - 0.1, shift=left - 0.1)
    add_bar(figure, scale, side - 0.08)
    return figure


def _signed(offset: float) -> str:
    return "" if np.isnan(offset) else f"{int(offset):+d}" if offset else "0"


def _lines(part: StackRows) -> pd.DataFrame:
    """The heads of a part, each once, from layer 0 upwards."""
    return part.rows[["layer", "head"]].drop_duplicates().sort_values(["layer", "head"]).reset_index(drop=True)


def histogram(part: StackRows) -> Grid:
    """Shares of a part's heads (heads, offsets), heads from layer 0 upwards."""
    lines = pd.MultiIndex.from_frame(_lines(part))
    grid = np.full((len(lines), len(OFFSETS)), np.nan)
    rows = lines.get_indexer(pd.MultiIndex.from_frame(part.rows[["layer", "head"]]))
    grid[rows, [OFFSETS.index(_offset(o)) for o in part.rows["offset"]]] = float_column(part.rows, "share")
    return grid


def _offset(cell: object) -> str:
    # a file gives text, a table in memory perhaps numbers
    return str(int(cell)) if isinstance(cell, int | float | np.number) else str(cell).strip()


def _profile(axes: Axes, part: StackRows, scale: Scale) -> None:
    values, lines = histogram(part), _lines(part)
    dress(axes, "offset of the\nmost attended token", "layer and head")
    axes.pcolormesh(
        np.arange(len(OFFSETS) + 1) - 0.5,
        np.arange(len(lines) + 1) - 0.5,
        np.ma.masked_invalid(values),
        cmap=scale.map,
        vmin=scale.low,
        vmax=scale.high,
    )
    axes.set_facecolor(MISSING)
    axes.set_xticks([0, 5, 9, 13, 18], ["<-8", "-4", "0", "+4", ">8"])
    starts = np.flatnonzero(np.diff(lines["layer"].to_numpy(), prepend=-1))
    _bands(axes, starts, lines["layer"].to_numpy())
    _number_heads(axes, lines, _inches(axes) / len(lines))


def _bands(axes: Axes, starts: npt.NDArray[np.intp], layers: npt.NDArray[np.int64]) -> None:
    ends = np.append(starts[1:], len(layers))
    axes.hlines(starts[1:] - 0.5, -0.5, len(OFFSETS) - 0.5, colors="white", linewidth=0.8)
    axes.set_ylim(-0.5, len(layers) - 0.5)
    step = -(-len(starts) // 40)
    axes.set_yticks((starts + ends - 1)[::step] / 2, [str(layers[i]) for i in starts[::step]])
    axes.tick_params(axis="y", which="major", pad=72 * _NAMES / 2, length=0)
    axes.yaxis.labelpad = 5


def _number_heads(axes: Axes, lines: pd.DataFrame, line: float) -> None:
    """Number the heads of every layer on the minor axis, in steps that leave room; `line` inches high each."""
    room = 1.25 * _HEAD_SIZE / 72
    step = tick_step(line, room)
    left = lines.groupby("layer")["head"].transform("size") - lines.groupby("layer").cumcount()
    # the last number of a layer must not touch the first one of the next
    shown = lines[(lines["head"] % step == 0) & (left * line >= room)]
    # the number of a layer stands beside one of a head; matplotlib would leave the latter out
    axes.yaxis.remove_overlapping_locs = False
    axes.set_yticks(shown.index.to_numpy(), shown["head"].astype(str).to_list(), minor=True)
    axes.tick_params(axis="y", which="minor", labelsize=_HEAD_SIZE, length=1.5, width=0.4, pad=1, labelcolor=INK)


def _inches(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    return axes.get_position().height * (figure.get_figheight() if figure is not None else 1.0)
