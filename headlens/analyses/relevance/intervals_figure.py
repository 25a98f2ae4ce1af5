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

from headlens.analyses.relevance.shares import described, even_shares, holds_zero, requested_rule, span
from headlens.plots.head_grid import GAP, TOP, Grid, StackRows, by_model_and_stack, float_column, has_numbers
from headlens.plots.interval_heatmap import short_number
from headlens.plots.style import (
    BLUE,
    FAINT,
    HEADING_SIZE,
    INK,
    TICK_SIZE,
    VERMILION,
    dress,
    fold,
    further_lines,
    headline,
    in_column,
    new_figure,
    page_width,
    tick_step,
)

# inches
_LEFT, _OVER, _NAME, _UNDER, _FOOT = 0.52, 0.20, 0.15, 0.34, 0.24
_LOWEST, _TALLEST, _PAGE = 0.55, 1.1, 9.0
_PER_HEAD, _NARROWEST = 0.105, 0.95
_DOT, _NUMBER = 2.6, 5.5  # points


@dataclass(frozen=True)
class _Block:
    """A part with one small panel per layer.

    Args:
        part: model, stack and rows.
        abreast: how many panels stand side by side.
        size: width and height of a panel with what is around it, inches.
    """

    part: StackRows
    abreast: int
    size: tuple[float, float]

    @property
    def layers(self) -> list[int]:
        return sorted(self.part.rows["layer"].astype(int).unique().tolist())

    @property
    def lines(self) -> int:
        return -(-len(self.layers) // self.abreast)

    @property
    def height(self) -> float:
        return _NAME + self.lines * self.size[1] + _UNDER


def relevance_intervals(relevance: pd.DataFrame) -> Figure | None:
    """The relevance of every head, under the rule that was asked for, with its 95 % bootstrap interval.

    One small panel per layer, all of a stack on one axis, with lines at 0 and at the even share 1 / heads. Open dots:
    the interval holds 0. What lies beyond the axis, which few outliers do not set, stands at its edge as a number.

    Args:
        relevance: rows of `relevance.csv`, of one model or several.

    Returns:
        The figure, or None when no head has a relevance.
    """
    _, rows = requested_rule(relevance)
    pieces = [p for p in by_model_and_stack(rows) if has_numbers(p.rows, "relevance")]
    if not pieces:
        return None
    blocks = _blocks(pieces)
    title = f"Relevance of attention heads with 95 % intervals ({described(rows)})"
    above, foot = TOP + further_lines(title, page_width()), _FOOT * _legend_lines()
    figure = new_figure(page_width(), above + sum(b.height for b in blocks) + foot)
    headline(figure, title)
    top = figure.get_figheight() - above
    for block in blocks:
        _draw_block(figure, block, top)
        top -= block.height
    _legend(figure)
    return figure


def _blocks(pieces: Sequence[StackRows]) -> list[_Block]:
    """Panels as wide as their heads need, as many abreast as there is room for, and as high as fits a page."""
    heads = max(int(p.rows["head"].max()) + 1 for p in pieces)
    layers = max(p.rows["layer"].nunique() for p in pieces)
    room = page_width() - _LEFT
    fitting = int(room // max(_NARROWEST, heads * _PER_HEAD + 2 * GAP))
    # more than three abreast even where dots come close: else a deep model of many heads fills pages
    abreast = min(layers, max(2 if in_column() else 3, fitting))
    abreast = -(-layers // -(-layers // abreast))
    lines: int = sum(-(-p.rows["layer"].nunique() // abreast) for p in pieces)
    free = _PAGE - TOP - _FOOT - len(pieces) * (_NAME + _UNDER) - lines * _OVER
    height = _OVER + float(np.clip(free / lines, _LOWEST, _TALLEST))
    return [_Block(part, abreast, (room / abreast, height)) for part in pieces]


def _draw_block(figure: Figure, block: _Block, top: float) -> None:
    width, height = figure.get_size_inches()
    name = fold(block.part.name, width - 0.2, HEADING_SIZE).split("\n")[0]
    figure.text(0.08 / width, (top - 0.03) / height, name, fontsize=HEADING_SIZE, color=INK, va="top")
    limits = span(*(float_column(block.part.rows, column) for column in ("relevance", "ci_low", "ci_high")))
    for number, layer in enumerate(block.layers):
        line, column = divmod(number, block.abreast)
        low = top - _NAME - (line + 1) * block.size[1]
        box = _LEFT + column * block.size[0], low, block.size[0] - 0.06, block.size[1] - _OVER
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
    axes.set_xticks(range(0, heads, tick_step((block.size[0] - 0.06) / heads, 0.15)))
    axes.yaxis.set_major_locator(MaxNLocator(4, min_n_ticks=3))


def _draw_layer(axes: Axes, rows: pd.DataFrame, limits: tuple[float, float]) -> None:
    axes.axhline(0, color=INK, linewidth=0.5, zorder=1)
    axes.axhline(even_shares(rows)[0], color=FAINT, linewidth=0.7, linestyle=(0, (3, 2)), zorder=1)
    values, heads = float_column(rows, "relevance"), rows["head"].to_numpy(np.float64)
    if not np.isfinite(values).any():
        axes.text(0.5, 0.62, "no value", transform=axes.transAxes, fontsize=TICK_SIZE, color=FAINT, ha="center")
        return
    colours = np.where(values < 0, BLUE, VERMILION)
    known, inside = np.isfinite(values), (values >= limits[0]) & (values <= limits[1])
    low, high = float_column(rows, "ci_low"), float_column(rows, "ci_high")
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
    shown = bounded & inside
    _going_on(axes, heads[shown & (high > limits[1])], 0.97, VERMILION)
    _going_on(axes, heads[shown & (low < limits[0])], 0.03, BLUE)


def _beyond(axes: Axes, heads: Grid, values: Grid) -> None:
    """Triangles at the edge for what lies beyond it, each with its number."""
    across = axes.get_xaxis_transform()
    for head, value in zip(heads, values, strict=True):
        up = bool(value > 0)
        colour = VERMILION if up else BLUE
        axes.scatter(
            head, 0.95 if up else 0.05, s=_DOT**2, c=colour, marker="^" if up else "v", transform=across, zorder=3
        )
        text = axes.text(head, 0.88 if up else 0.12, short_number(value), transform=across, rotation=90, zorder=3)
        text.set(fontsize=_NUMBER, color=colour, ha="center", va="top" if up else "bottom")
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.2, "alpha": 0.8})


def _going_on(axes: Axes, heads: Grid, height: float, colour: str) -> None:
    """Arrows where an interval goes on beyond the edge."""
    marker = "^" if height > 0.5 else "v"
    place = axes.get_xaxis_transform()
    axes.scatter(
        heads, np.full(len(heads), height), s=_DOT**2, c="white", marker=marker, edgecolors=colour,
        linewidths=0.6, transform=place, zorder=3,
    )  # fmt: skip


def _legend_lines() -> int:
    return 2 if in_column() else 1


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
        ncols=4 // _legend_lines(),
        fontsize=TICK_SIZE,
        frameon=False,
        handletextpad=0.4,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
