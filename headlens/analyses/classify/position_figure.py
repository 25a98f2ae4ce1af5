"""Where heads point, relative to the token they read from."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.plots import style
from headlens.plots.cell_drawing import BAR_SLOT, BAR_WIDTH, Scale, add_bars, bar_beside, paint, write
from headlens.plots.head_grid import (
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
from headlens.plots.style import INK

OFFSETS = ("<-8", *map(str, range(-8, 9)), ">8")
_TALLEST, _WORDS = 7.0, 0.8  # inches of the offset profile's columns, and of the words around them
_NAMES = 0.30  # inches for the numbers of heads and of layers, beside a profile
_HEAD_SIZE = 5.0  # points


def positional_map(heads: pd.DataFrame) -> Figure | None:
    """The share of tokens at every head's most frequent offset, 0 among them, with that offset in the cell.

    Args:
        heads: rows of `heads.csv`, of one model or several.

    Returns:
        The figure, or None when nothing was measured.
    """
    if not has_numbers(heads, "positional_share"):
        return None
    pieces = by_model_and_stack(heads)
    # A column of its own says how many look at themselves: that is the most frequent offset of many heads.
    shares = [np.fmax(float_column(p.rows, "positional_share"), float_column(p.rows, "self_share")) for p in pieces]
    rows = flow([(p.model, panel(p.rows, share, p.name)) for p, share in zip(pieces, shares, strict=True)])
    sheet = head_grid_figure(rows, "Most frequent offset of the most attended token", side=BAR_SLOT + 0.15)
    # cells of a column are too narrow for more than a sign and a digit
    letters = 2 if style.in_column() else 5
    scale = Scale("share of tokens at that offset")
    ink = np.vectorize(scale.ink, otypes=[object])
    for (axes, item), part in zip(each(sheet, rows), pieces, strict=True):
        paint(axes, item, scale)
        itself = float_column(part.rows, "self_share") > float_column(part.rows, "positional_share")
        offsets = np.where(itself, 0.0, float_column(part.rows, "positional_offset"))
        signed = ["" if np.isnan(v) else f"{v:+.0f}".replace("-", "−") if v else "0" for v in offsets]
        words = np.array(signed, object)
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
    tables = [histogram(part) for part in pieces]
    below, abreast = (len(pieces), 1) if style.in_column() else (1, len(pieces))
    length = float(np.clip(0.12 * max(len(table) for table in tables), 1.6, max(1.6, _TALLEST / below)))
    width = BAR_SLOT + min(3.2 * abreast, style.page_width() - BAR_SLOT)
    figure = style.constrained_figure(width, 0.3 + (length + _WORDS) * below, "Offsets of attention heads")
    grid = figure.subplots(below, abreast, squeeze=False)
    for axes, part, table in zip(grid.flat, pieces, tables, strict=True):
        _profile(axes, table, scale, length)
        style.heading(axes, part.name, (width - BAR_SLOT) / abreast - 0.6)
    bar_beside(figure, scale, grid, shrink=1 / below, anchor=(0, 1), aspect=length / BAR_WIDTH)
    return figure


def histogram(part: StackRows) -> pd.DataFrame:
    """Shares of a part's heads: a row for each, from layer 0 upwards, and a column for each of `OFFSETS`."""
    # A file gives text, a table in memory perhaps numbers.
    offsets = [str(int(o)) if isinstance(o, int | float | np.number) else str(o).strip() for o in part.rows["offset"]]
    rows = part.rows[["layer", "head"]].assign(offset=offsets, share=float_column(part.rows, "share"))
    # A pivot_table would leave out heads without any share.
    table = rows.pivot(index=["layer", "head"], columns="offset", values="share")  # noqa: PD010
    return table.reindex(columns=list(OFFSETS))


def _profile(axes: Axes, table: pd.DataFrame, scale: Scale, length: float) -> None:
    """Draws the heads of a histogram as lines, in axes that are about so many inches high."""
    values, lines = table.to_numpy(), table.index.to_frame(index=False)
    style.dress(axes, "offset of the\nmost attended token", "layer and head")
    borders = (np.arange(size + 1) - 0.5 for size in reversed(values.shape))
    axes.pcolormesh(*borders, np.ma.masked_invalid(values), **scale.limits)
    axes.set_facecolor(style.MISSING)
    axes.set_xticks([0, 5, 9, 13, 18], ["<−8", "−4", "0", "+4", ">8"])
    layers = lines["layer"].to_numpy()
    starts = np.flatnonzero(np.diff(layers, prepend=-1))
    middles = (starts + np.append(starts[1:], len(layers)) - 1) / 2
    axes.hlines(starts[1:] - 0.5, -0.5, len(OFFSETS) - 0.5, colors="white", linewidth=0.8)
    axes.set_ylim(-0.5, len(layers) - 0.5)
    step = -(-len(starts) // 40)
    axes.set_yticks(middles[::step], [str(layers[i]) for i in starts[::step]])
    axes.tick_params(axis="y", which="major", pad=72 * _NAMES / 2, length=0)
    axes.yaxis.labelpad = 5
    _number_heads(axes, lines, length / len(lines))


def _number_heads(axes: Axes, lines: pd.DataFrame, line: float) -> None:
    """Number the heads of every layer on the minor axis, in steps that leave room; `line` inches high each."""
    room = 1.25 * _HEAD_SIZE / 72
    step = style.tick_step(line, room)
    left = lines.groupby("layer")["head"].transform("size") - lines.groupby("layer").cumcount()
    # the last number of a layer must not touch the first one of the next
    shown = lines[(lines["head"] % step == 0) & (left * line >= room)]
    # the number of a layer stands beside one of a head; matplotlib would leave the latter out
    axes.yaxis.remove_overlapping_locs = False
    axes.set_yticks(shown.index.to_numpy(), shown["head"].astype(str).to_list(), minor=True)
    axes.tick_params(axis="y", which="minor", labelsize=_HEAD_SIZE, length=1.5, width=0.4, pad=1, labelcolor=INK)
