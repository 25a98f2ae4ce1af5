"""The relevance of every head with its interval, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from headlens.report.panels import GAP, TOP, Grid, Part, has_numbers, numbers, parts
from headlens.report.relevance_map import short_number
from headlens.report.shares import asked, even_shares, holds_zero, span
from headlens.report.style import (
    BLUE,
    FAINT,
    FULL_WIDTH,
    HEADING_SIZE,
    INK,
    TICK_SIZE,
    VERMILION,
    dress,
    fold,
    headline,
    new_figure,
    tick_step,
)

# inches
_LEFT, _BOX, _ROW, _NAME, _UNDER, _FOOT = 0.52, 0.62, 0.82, 0.20, 0.28, 0.24
_PER_HEAD, _NARROWEST = 0.105, 0.95
_DOT = 2.6  # points


@dataclass(frozen=True)
class _Block:
    """A part with one small panel per layer: how many stand abreast, how wide each is, in inches."""

    part: Part
    abreast: int
    width: float

    @property
    def layers(self) -> list[int]:
        return sorted(self.part.rows["layer"].astype(int).unique().tolist())

    @property
    def lines(self) -> int:
        return -(-len(self.layers) // self.abreast)

    @property
    def height(self) -> float:
        return _NAME + self.lines * _ROW + _UNDER


def relevance_intervals(relevance: pd.DataFrame) -> Figure | None:
    """The relevance of every head, under the rule that was asked for, with its 95 % bootstrap interval.

    One small panel per layer, all of a stack on one axis, with lines at 0 and at the even share 1 / heads. Open dots:
    the interval holds 0. What lies beyond the axis, which few outliers do not set, stands at its edge as a number.

    Args:
        relevance: rows of `relevance.csv`, of one model or several.

    Returns:
        The figure, or None when no head has a relevance.
    """
    rule, rows = asked(relevance)
    pieces = [p for p in parts(rows) if has_numbers(p.rows, "relevance")]
    if not pieces:
        return None
    abreast, width = _columns(pieces)
    blocks = [_Block(part, abreast, width) for part in pieces]
    figure = new_figure(FULL_WIDTH, TOP + sum(b.height for b in blocks) + _FOOT)
    headline(figure, f"Relevance of attention heads with 95 % intervals ({rule})")
    top = figure.get_figheight() - TOP
    for block in blocks:
        _draw_block(figure, block, top)
        top -= block.height
    _legend(figure)
    return figure


def _columns(pieces: Sequence[Part]) -> tuple[int, float]:
    """How many layers stand abreast, and the width of each: as few as the heads need, and no more than there are."""
    heads = max(int(p.rows["head"].max()) + 1 for p in pieces)
    layers = max(p.rows["layer"].nunique() for p in pieces)
    room = FULL_WIDTH - _LEFT
    fitting = int(room // max(_NARROWEST, heads * _PER_HEAD + 2 * GAP))
    # more than three abreast even where dots come close: else a deep model of many heads fills pages
    abreast = min(layers, max(3, fitting))
    lines = -(-layers // abreast)
    return -(-layers // lines), room / -(-layers // lines)


def _draw_block(figure: Figure, block: _Block, top: float) -> None:
    width, height = figure.get_size_inches()
    name = fold(block.part.name, FULL_WIDTH - 0.2, HEADING_SIZE).split("\n")[0]
    figure.text(0.08 / width, (top - 0.03) / height, name, fontsize=HEADING_SIZE, color=INK, va="top")
    limits = span(*(numbers(block.part.rows, column) for column in ("relevance", "ci_low", "ci_high")))
    for number, layer in enumerate(block.layers):
        line, column = divmod(number, block.abreast)
        low = top - _NAME - line * _ROW - (_ROW - _BOX) - _BOX
        box = _LEFT + column * block.width, low, block.width - 0.06, _BOX
        axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
        rows = block.part.rows[block.part.rows["layer"].astype(int) == layer]
        last = number + block.abreast >= len(block.layers)
        dress(axes, "head" if last else "", "share" if column == 0 else "")
        _number(axes, block, limits)
        axes.tick_params(labelleft=column == 0, labelbottom=last)
        axes.set_title(f"layer {layer}", fontsize=TICK_SIZE, color=INK, loc="left", pad=2)
        _draw_layer(axes, rows, limits)


def _number(axes: Axes, block: _Block, limits: tuple[float, float]) -> None:
    heads = int(block.part.rows["head"].max()) + 1
    axes.set_xlim(-0.7, heads - 0.3)
    axes.set_ylim(*limits)
    axes.set_xticks(range(0, heads, tick_step((block.width - 0.06) / heads, 0.15)))
    axes.yaxis.set_major_locator(MaxNLocator(4, min_n_ticks=3))


def _draw_layer(axes: Axes, rows: pd.DataFrame, limits: tuple[float, float]) -> None:
    axes.axhline(0, color=INK, linewidth=0.5, zorder=1)
    axes.axhline(even_shares(rows)[0], color=FAINT, linewidth=0.7, linestyle=(0, (3, 2)), zorder=1)
    values, heads = numbers(rows, "relevance"), rows["head"].to_numpy(np.float64)
    if not np.isfinite(values).any():
        axes.text(0.5, 0.62, "no value", transform=axes.transAxes, fontsize=TICK_SIZE, color=FAINT, ha="center")
        return
    colours = np.where(values < 0, BLUE, VERMILION)
    known, inside = np.isfinite(values), (values >= limits[0]) & (values <= limits[1])
    low, high = numbers(rows, "ci_low"), numbers(rows, "ci_high")
    bounded = known & np.isfinite(low) & np.isfinite(high)
    axes.vlines(heads[bounded], low[bounded], high[bounded], colors=list(colours[bounded]), linewidth=0.9, zorder=2)
    faces = np.where(holds_zero(rows), "white", colours)
    axes.scatter(
        heads[inside],
        values[inside],
        s=_DOT**2,
        c=list(faces[inside]),
        edgecolors=list(colours[inside]),
        linewidths=0.7,
        zorder=3,
    )
    _beyond(axes, heads[known & ~inside], values[known & ~inside])


def _beyond(axes: Axes, heads: Grid, values: Grid) -> None:
    """Numbers at the edge for what lies beyond it, with an arrow that says on which side."""
    for head, value in zip(heads, values, strict=True):
        up = value > 0
        text = axes.text(head, 0.97 if up else 0.03, f"{'↑' if up else '↓'}{short_number(value)}")
        text.set(transform=axes.get_xaxis_transform(), fontsize=5.5, color=VERMILION if up else BLUE, rotation=90)
        text.set(ha="center", va="top" if up else "bottom")
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.3})


def _legend(figure: Figure) -> None:
    dots = {"above 0": (VERMILION, VERMILION), "below 0": (BLUE, BLUE), "interval holds 0": ("white", INK)}
    handles = [
        Line2D([], [], linestyle="", marker="o", markersize=4, label=name, markerfacecolor=face, markeredgecolor=edge)
        for name, (face, edge) in dots.items()
    ]
    handles.append(Line2D([], [], color=FAINT, linewidth=0.9, linestyle=(0, (3, 2)), label="even share, 1 / heads"))
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 0.0),
        ncols=4,
        fontsize=TICK_SIZE,
        frameon=False,
        handletextpad=0.4,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
