"""How much every head contributes, as a heatmap with the intervals in its cells."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.report.cells import BAR_SLOT, Ends, Scale, add_bars, paint, write
from headlens.report.labels import FAMILY
from headlens.report.panels import (
    Grid,
    Panel,
    Part,
    Sheet,
    each,
    flow,
    has_numbers,
    lay_out,
    numbers,
    panel,
    parts,
    scatter_grid,
)
from headlens.report.shares import asked, described, holds_zero, limit
from headlens.report.style import DIVERGING, INK, TICK_SIZE

_ABREAST = 12  # heads in a row of panels: cells stay wide enough for numbers
_NOTE, _CELL = 0.12, 0.34  # inches
_NUMBERS, _ZERO = "±: half the 95 % interval. ", "Dot: the interval holds 0."


def relevance_map(relevance: pd.DataFrame) -> Figure | None:
    """The relevance of every head under the rule that was asked for, in colours that have 0 in their middle.

    Cells that are large enough hold the value and half the width of its 95 % interval; a dot marks heads whose
    interval holds 0. Few outliers do not set the colours: they have the colour of the end of the scale.

    Args:
        relevance: rows of `relevance.csv`, of one model or several.

    Returns:
        The figure, or None when no head has a relevance.
    """
    _, rows = asked(relevance)
    if not has_numbers(rows, "relevance"):
        return None
    pieces = parts(rows)
    plan = flow([(p.model, panel(p.rows, numbers(p.rows, "relevance"), p.name)) for p in pieces], _ABREAST)
    sheet = lay_out(
        plan, f"Relevance of attention heads ({described(rows)})", side=BAR_SLOT + 0.15, foot=_NOTE, tallest_cell=_CELL
    )
    scale = relevance_scale(numbers(rows, "relevance"))
    for (axes, item), part in zip(each(sheet, plan), pieces, strict=True):
        paint(axes, item, scale)
        _fill(axes, item, part, (scale, sheet))
    add_bars(sheet, scale)
    _note(sheet)
    return sheet.figure


def relevance_scale(values: Grid) -> Scale:
    """Colours for shares of relevance: symmetric, 0 in the middle, open where outliers lie beyond the ends."""
    end = limit(values)
    known = values[np.isfinite(values)]
    low, high = bool((known < -end).any()), bool((known > end).any())
    beyond: Ends = "both" if low and high else "min" if low else "max" if high else "neither"
    return Scale("share of the layer's relevance", -end, end, DIVERGING, beyond)


def _fill(axes: Axes, item: Panel, part: Part, look: tuple[Scale, Sheet]) -> None:
    scale, sheet = look
    inks = np.vectorize(scale.ink, otypes=[object])(item.values)
    write(axes, scatter_grid(part.rows, _words(part.rows), empty=""), inks, sheet.cell)
    unsure = scatter_grid(part.rows, holds_zero(part.rows), empty=False).astype(bool) & np.isfinite(item.values)
    layers, heads = np.nonzero(unsure)
    # in the upper right corner, where the numbers leave some room
    inset = [2.6 / 72 / side for side in sheet.cell]
    axes.scatter(
        heads + 0.5 - inset[0],
        layers + 0.5 - inset[1],
        s=min(2.4, 0.15 * 72 * min(sheet.cell)) ** 2,
        c=list(inks[unsure]),
        linewidths=0,
        zorder=3,
    )


def _words(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    halves = (numbers(rows, "ci_high") - numbers(rows, "ci_low")) / 2
    pairs = zip(numbers(rows, "relevance"), halves, strict=True)
    return np.array([_word(value, half) for value, half in pairs], object)


def _word(value: float, half: float) -> str:
    if np.isnan(value):
        return ""
    shown = short_number(value)
    return shown if np.isnan(half) else f"{shown}\n±{short_number(half)}"


def short_number(value: float) -> str:
    """A share in at most a few letters: three decimals, fewer for large ones, with a true minus."""
    text = f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"
    text = text.removeprefix("-") if not float(text) else text
    return text.replace("-", "−")


def _note(sheet: Sheet) -> None:
    width, height = sheet.figure.get_size_inches()
    written = any("±" in text.get_text() for row in sheet.axes for axes in row for text in axes.texts)
    text = (_NUMBERS if written else "") + _ZERO
    sheet.figure.text(0.08 / width, 0.06 / height, text, fontsize=TICK_SIZE, fontfamily=FAMILY, color=INK)
