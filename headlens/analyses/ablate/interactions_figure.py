"""How pairs of heads interact, as a heatmap of heads by heads."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headlens.analyses.ablate.figures import panel_title
from headlens.analyses.ablate.rankings import sets_have_no_verdicts
from headlens.heads import KEY_COLUMNS, STACKS
from headlens.plots import style
from headlens.plots.cell_drawing import Ends, Scale, bar_beside, colour_cells, mark_cells, write
from headlens.plots.head_grid import Grid, float_column, has_numbers
from headlens.plots.heatmaps import limit, power_of_unit, power_text
from headlens.statistics.non_inferiority import LEVEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELL, _BESIDE, _BELOW = 0.42, 1.9, 1.2  # inches: of a cell, of names and a bar beside cells, of names below them
_TITLE = "Shapley interactions of pairs of heads"
_DOT = "Dot: p < 0.05 after Holm's correction for all pairs of the model."


def interactions_map(interactions: pd.DataFrame, pruning: pd.DataFrame) -> Figure | None:
    """Draws the interaction of every pair in colours around 0, with a dot where it is significant; a panel per model.

    Args:
        interactions: rows of `interactions.csv`, of one model or several.
        pruning: rows of `pruning.csv` of the same run: models without verdicts are titled so, and have no dots.

    Returns:
        The figure, or None without numbers.
    """
    if not has_numbers(interactions, "interaction"):
        return None
    models = {str(name): rows for name, rows in interactions.groupby("model", sort=False)}
    # Not fitted to noise: twice the usual standard error is pale.
    end = max(limit(float_column(rows, "interaction")) for rows in models.values())
    errors = float_column(interactions, "se")
    end = max(end, 4 * float(np.nanmedian(errors))) if np.isfinite(errors).any() else end
    values = float_column(interactions, "interaction")
    low, high = bool((values < -end).any()), bool((values > end).any())
    beyond: Ends = "both" if low and high else "min" if low else "max" if high else "neither"
    # Digits of small numbers have no room in a cell.
    power = power_of_unit(values)
    end *= 10.0**power
    scale = Scale(
        "interaction, of the loss of an example\n(red: each stands in for the other)",
        -end,
        end,
        style.DIVERGING,
        beyond,
    )
    places = max(0, 1 - math.floor(math.log10(end)))
    scaled = {name: rows.assign(interaction=rows["interaction"] * 10.0**power) for name, rows in models.items()}
    parts = {name: named(rows) for name, rows in scaled.items()}
    for name, rows in pruning.groupby(pruning["model"].astype(str)):
        if name in parts and sets_have_no_verdicts(rows):
            parts[name][-1][:] = False
    sizes = [len(names) for names, _, _ in parts.values()]
    side = min(_CELL, (style.page_width() - _BESIDE) / max(sizes))
    width = max(style.COLUMN_WIDTH, _BESIDE + side * max(sizes))
    unit = f", in units of {power_text(power)}" * bool(power)
    examples = " to ".join(dict.fromkeys(f"{n:,.0f}" for n in (interactions["n"].min(), interactions["n"].max())))
    height = sum(side * size + _BELOW for size in sizes)
    figure = style.constrained_figure(width, height, f"{_TITLE}{unit}, n = {examples}")
    lines = figure.subplots(len(parts), 1, squeeze=False, height_ratios=sizes)[:, 0]
    for axes, (name, (names, matrix, _)) in zip(lines, parts.items(), strict=True):
        colour_cells(axes, matrix, scale)
        mark_cells(axes, np.isnan(matrix), facecolor="white", edgecolor=style.MISSING, hatch="////", linewidth=0)
        axes.set_aspect("equal", anchor="W")
        style.dress(axes, "", "")
        style.heading(axes, panel_title(name, pruning), width - _BESIDE)
        for ticks, turned in ((axes.set_xticks, 90), (axes.set_yticks, 0)):
            ticks(np.arange(len(names)) + 0.5, names, rotation=turned)
        axes.tick_params(labelsize=style.TICK_SIZE - 1)
        bar_beside(figure, scale, axes, side * len(names))
    if any(sure.any() for _, _, sure in parts.values()):
        figure.supxlabel(style.fold(_DOT, width - 0.2, style.TICK_SIZE), fontsize=style.TICK_SIZE, color=style.INK)
    style.fit_height(figure, lines, side * sum(sizes))
    for axes, (names, matrix, sure) in zip(lines, parts.values(), strict=True):
        # As large as they became.
        cell = axes.get_window_extent().width / figure.dpi / len(names)
        inks = np.vectorize(scale.ink, otypes=[object])(matrix)
        words = np.vectorize(partial(_digits, places=places), otypes=[object])(matrix)
        write(axes, words, inks, (cell, cell), max(map(len, words.flat)))
        down, across = np.nonzero(sure)
        axes.scatter(across + 0.85, down + 0.85, s=5, c=list(inks[sure]), linewidths=0)
    return figure


def _digits(value: float, places: int) -> str:
    text = "" if np.isnan(value) else f"{value:.{places}f}"
    text = text if not text or float(text) else text.removeprefix("-")
    return text.replace("0.", ".", 1).replace("-", "−")


def named(rows: pd.DataFrame) -> tuple[list[str], Grid, Grid]:
    """Returns names of heads in the order of the model, their interactions, and which of these are significant.

    Args:
        rows: of interactions.csv, of one model.

    Returns:
        The matrices are (heads, heads), the same above the diagonal and below it, and without numbers on it.
    """
    sides = [rows[[f"{prefix}{name}" for name in KEY_COLUMNS]].to_numpy(object) for prefix in ("", "other_")]
    keys = sorted({tuple(key) for side in sides for key in side}, key=lambda key: (STACKS.index(key[0]), *key[1:]))
    places = [np.array([keys.index(tuple(key)) for key in side], int) for side in sides]
    matrix, sure = np.full((len(keys), len(keys)), np.nan), np.zeros((len(keys), len(keys)), bool)
    for one, other in (places, places[::-1]):
        matrix[one, other] = float_column(rows, "interaction")
        sure[one, other] = float_column(rows, "p_holm") < LEVEL
    return [".".join(map(str, key)) for key in keys], matrix, sure
