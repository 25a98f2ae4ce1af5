"""The relevance of every head with its interval: as a heatmap, and layer by layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.plots import style
from headlens.plots.head_grid import StackRows, by_model_and_stack, float_column, has_numbers
from headlens.plots.heatmaps import Cells, holds_zero, interval_map, power_text, short_number
from headlens.plots.style import FAINT, GAIN, HALF_FILLED, INK, LOSS, TICK_SIZE
from headlens.relevance_propagation.shares import (
    CANCEL,
    MARGIN,
    OPEN,
    OPPOSES,
    UNTESTED,
    Marks,
    even_shares,
    figure_title,
    gives_magnitudes,
    layer_signs,
    opposing,
    relevance_scale,
    requested_rule,
    span,
    unclear_direction,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# inches
_TITLES, _NAME, _TALLEST, _PAGE = 0.5, 0.55, 1.25, 9.4
_PER_HEAD, _NARROWEST = 0.105, 0.95
_DOT, _NUMBER = 2.6, 5.5  # points
_AGAINST = "Triangle: the layer as a whole works against the target. Blue: in the direction of its layer."
_WITHIN = "Shares compare the heads of a layer, not layers; relevance_raw compares all."
_NO_SIGN = "Magnitudes: this rule does not tell which heads work against the target. "
_PALE = "Pale: the interval contains 0"
_UNCLEAR = ", or the heads of the layer cancel, or are not shown to serve or oppose the target: shares mean little."
_UNTESTED = "Pale: with fewer than ten examples, it is not tested whether layers serve or oppose the target."
_IN_TITLE = {
    OPPOSES: " (against the target)",
    CANCEL: " (heads cancel)",
    OPEN: " (direction not decided)",
    UNTESTED: " (direction not tested)",
}
_EVEN: dict[str, Any] = {"color": FAINT, "linewidth": 0.8, "linestyle": (0, (3, 2))}


def relevance_map(relevance: pd.DataFrame) -> Figure | None:
    """The relevance of every head under the rule that was asked for, in colours that have 0 in their middle.

    Cells that are large enough hold the value and half the width of its 95 % interval; heads whose interval holds 0 are
    pale. Few outliers do not set the colours: they have the colour of the end of the scale.

    Args:
        relevance: rows of `relevance.csv`, of one model or several.

    Returns:
        The figure, or None when no head has a relevance.
    """
    _, rows = requested_rule(relevance)
    if not has_numbers(rows, "relevance"):
        return None
    scale = relevance_scale("share of the layer's relevance", rows, "relevance", rows)
    pale = _PALE + (_UNCLEAR if unclear_direction(rows).any() else ".")
    if (layer_signs(rows) == UNTESTED).all():
        pale = _UNTESTED
    cells = Cells(
        "relevance",
        warned=opposing,
        warning=_AGAINST,
        remark=f"{_NO_SIGN * gives_magnitudes(rows)}{_WITHIN}" if has_numbers(rows, "raw") else "",
        unsure=lambda part: holds_zero(part) | unclear_direction(part),
        pale="" if gives_magnitudes(rows) else pale,
    )
    return interval_map(rows, cells, scale, figure_title("Relevance of attention heads", rows))


def raw_map(relevance: pd.DataFrame) -> Figure | None:
    """The contribution of every head in units of the output, the only number that compares heads of different layers.

    Under the rule that was asked for, with half the width of its 95 % interval. Small numbers are multiplied by a power
    of ten, which the colour bar names.

    Args:
        relevance: rows of `relevance.csv`, of one model or several.

    Returns:
        The figure, or None when no head has one.
    """
    _, rows = requested_rule(relevance)
    if not has_numbers(rows, "raw"):
        return None
    largest = np.nanmax(np.abs(float_column(rows, "raw")))
    power = max(0, -math.floor(math.log10(largest))) if 0 < largest < 0.1 else 0
    names = {"raw": "raw", "raw_low": "ci_low", "raw_high": "ci_high"}
    rows = rows.assign(**{name: float_column(rows, column) * 10.0**power for column, name in names.items()})
    unit = "units of the output" if not power else f"{power_text(power)} units of the output"
    scale = relevance_scale(f"contribution (raw), {unit}", rows, "raw", rows)
    several = " Models with other targets have other units." * (len(set(rows["model"])) > 1)
    colours = _NO_SIGN.strip() if gives_magnitudes(rows) else "Blue for the target, red against it."
    pale = "" if gives_magnitudes(rows) else f"{_PALE}."
    several += " No intervals: fewer than ten examples." * ("raw_low" in rows and not has_numbers(rows, "raw_low"))
    several += " Grey: without a path of its own to the target." * bool(np.isnan(float_column(rows, "raw")).any())
    cells = Cells("raw", remark=f"Comparable between layers. {colours}{several}", pale=pale)
    return interval_map(rows, cells, scale, figure_title("Contributions of attention heads", rows))


def relevance_intervals(relevance: pd.DataFrame) -> Figure | None:
    """The relevance of every head, under the rule that was asked for, with its 95 % bootstrap interval.

    One small panel per layer, all on one axis, with lines at 0 and at the even share 1 / heads. Open dots:
    the interval holds 0. What lies beyond the axis, which few outliers do not set, stands at its edge as a number.

    Args:
        relevance: rows of `relevance.csv`, of one model or several.

    Returns:
        The figure, or None when no head has a relevance.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    _, rows = requested_rule(relevance)
    pieces = [p for p in by_model_and_stack(rows) if has_numbers(p.rows, "relevance")]
    if not pieces:
        return None
    heads, layers = int(rows["head"].max()) + 1, [p.rows["layer"].nunique() for p in pieces]
    fitting = int(style.page_width() // max(_NARROWEST, heads * _PER_HEAD))
    # More than three abreast even where dots come close: else a deep model of many heads fills pages.
    abreast = min(max(layers), max(2 if style.in_column() else 3, fitting))
    abreast = -(-max(layers) // -(-max(layers) // abreast))  # lines that are equally full
    lines = [-(-count // abreast) for count in layers]
    height = min(_PAGE, _TITLES + len(pieces) * _NAME + sum(lines) * _TALLEST)
    with_intervals = has_numbers(rows, "ci_low")
    title = figure_title("Relevance of attention heads" + " with 95 % intervals" * with_intervals, rows)
    limits = span(
        *(float_column(part.rows, column) for part in pieces for column in ("relevance", "ci_low", "ci_high"))
    )
    figure = style.constrained_figure(style.page_width(), height, title)
    blocks = figure.subfigures(len(pieces), 1, squeeze=False, height_ratios=[_NAME + n * _TALLEST for n in lines])
    for part, block, line_count in zip(pieces, blocks.flat, lines, strict=True):
        name = style.one_line(part.name, style.page_width() - 0.2, style.HEADING_SIZE)
        block.suptitle(name, x=0.08 / style.page_width(), ha="left", fontsize=style.HEADING_SIZE, color=INK)
        grid = block.subplots(line_count, abreast, sharex=True, sharey=True, squeeze=False)
        for number, (axes, layer) in enumerate(zip(grid.flat, sorted(part.rows["layer"].unique()), strict=False)):
            last = number + abreast >= part.rows["layer"].nunique()
            style.dress(axes, "head" if last else "", "" if number % abreast else "share of its layer")
            axes.tick_params(labelbottom=last)
            does = layer_signs(part.rows[part.rows["layer"] == layer])[0]
            name = f"layer {layer}" + _IN_TITLE.get(does, "")
            axes.set_title(name, fontsize=TICK_SIZE, color=LOSS if does == OPPOSES else INK, loc="left", pad=2)
            _draw_layer(axes, part, layer, limits)
        for axes in grid.flat[part.rows["layer"].nunique() :]:
            axes.remove()
        first = grid[0, 0]
        part_heads = int(part.rows["head"].max()) + 1
        step = style.tick_step((style.page_width() / abreast - 0.2) / part_heads, 0.15)
        first.set(xlim=(-0.7, part_heads - 0.3), xticks=range(0, part_heads, step))
        first.yaxis.set_major_locator(MaxNLocator(4, min_n_ticks=3))
    dots = {"above 0": (GAIN, GAIN), "below 0": (LOSS, LOSS)}
    if with_intervals:
        dots["95 % interval contains 0"] = ("white", INK)
    looks: dict[str, Any] = {"ls": "", "marker": "o", "markersize": 4}
    handles = [Line2D([], [], **looks, label=n, mfc=face, mec=edge) for n, (face, edge) in dots.items()]
    if not _has_interval(rows).all():
        handles.append(Line2D([], [], **looks, **HALF_FILLED, label="no interval", color=INK))
    handles.append(Line2D([], [], label="equal share, 1 / heads", **_EVEN))
    drawn = {collection.get_gid() for axes in figure.get_axes() for collection in axes.collections}
    for gid, face, name in (("beyond", INK, "at the edge or beyond"), ("longer", "white", "interval beyond the axis")):
        if gid in drawn:
            handles.append(Line2D([], [], **{**looks, "marker": "^"}, label=name, mfc=face, mec=INK))
    figure.legend(
        handles=handles, loc="outside lower left", ncols=2 if style.in_column() else 4, **style.legend_looks()
    )
    return figure


def _has_interval(rows: pd.DataFrame) -> Marks:
    """Which rows have an interval, or no share that could have one."""
    return np.isfinite(float_column(rows, "ci_low")) | np.isnan(float_column(rows, "relevance"))


def _draw_layer(axes: Axes, part: StackRows, layer: int, limits: tuple[float, float]) -> None:
    rows = part.rows[part.rows["layer"] == layer]
    axes.set_ylim(*limits)
    axes.axhline(0, color=INK, linewidth=0.5, zorder=1)
    axes.axhline(even_shares(rows)[0], **_EVEN, zorder=1)
    values, heads = float_column(rows, "relevance"), rows["head"].to_numpy(np.float64)
    if not np.isfinite(values).any():
        axes.text(0.5, 0.62, "no value", transform=axes.transAxes, fontsize=TICK_SIZE, color=FAINT, ha="center")
        return
    colours = np.where(values < 0, LOSS, GAIN)
    # What reaches into the margin would meet the triangles there.
    margin = 0.99 * MARGIN / (1 + 2 * MARGIN) * (limits[1] - limits[0])
    outside = {1: values > limits[1] - margin, -1: values < limits[0] + margin}
    inside = np.isfinite(values) & ~outside[1] & ~outside[-1]
    low, high = float_column(rows, "ci_low"), float_column(rows, "ci_high")
    bounded = np.isfinite(values) & np.isfinite(low) & np.isfinite(high)
    axes.vlines(heads[bounded], low[bounded], high[bounded], colors=list(colours[bounded]), linewidth=0.9, zorder=2)
    faces = np.where(holds_zero(rows), "white", colours)
    tested = inside & bounded
    dots = axes.scatter(heads[tested], values[tested], s=_DOT**2, c=list(faces[tested]), linewidths=0.7, zorder=3)
    dots.set_edgecolor(list(colours[tested]))
    half: dict[str, Any] = {"marker": "o", "markersize": _DOT, "markeredgewidth": 0.7, "zorder": 3, **HALF_FILLED}
    for head, value, colour in zip(*(of[inside & ~bounded] for of in (heads, values, colours)), strict=True):
        axes.plot(head, value, color=colour, **half)
    across = axes.get_xaxis_transform()
    for sign, marker, edge, end, colour in ((1, "^", limits[1], high, GAIN), (-1, "v", limits[0], low, LOSS)):
        longer = bounded & inside & (sign * end > sign * edge)
        # At the edge full triangles for shares beyond it, each with its number, and open ones for longer intervals.
        for gid, marked, place, face in (("beyond", outside[sign], 0.45, colour), ("longer", longer, 0.47, "white")):
            if not marked.any():
                continue
            looks: dict[str, Any] = {"c": face, "edgecolors": colour, "marker": marker, "linewidths": 0.6, "gid": gid}
            places = np.full(marked.sum(), 0.5 + sign * place)
            axes.scatter(heads[marked], places, s=_DOT**2, **looks, transform=across, zorder=3)
        for head, value in zip(heads[outside[sign]], values[outside[sign]], strict=True):
            text = axes.text(head, 0.5 + 0.38 * sign, short_number(value), transform=across, rotation=90, zorder=3)
            text.set(fontsize=_NUMBER, color=colour, ha="center", va="top" if sign > 0 else "bottom")
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.2, "alpha": 0.8})
