"""Degrees of attention: quality by sparsity over BigBird's grid and learned degrees, and what was learned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from headlens.analyses.masks.options import LEARNED
from headlens.analyses.masks.study_figures import BLOCK, FULL, GRID, means
from headlens.errors import counted
from headlens.plots.axis_labels import FAMILY
from headlens.plots.curves import draw_intervals, draw_level
from headlens.plots.head_grid import float_column
from headlens.plots.mask_points import SHARE_LABEL, short_names
from headlens.plots.style import (
    FAINT,
    FULL_WIDTH,
    INK,
    LABEL_SIZE,
    ORANGE,
    PALE,
    SEQUENTIAL,
    TICK_SIZE,
    VERMILION,
    dress,
    further_lines,
    heading,
    headline,
    in_column,
    new_figure,
    page_width,
)

_MARKERS = "os^Dv"
_OTHERS = "PX*phd8<>"
# inches
_TOP, _SLOT, _PANEL, _WORDS, _LEGEND, _LINE = 0.35, 3.1, 2.4, 0.6, 1.5, 0.16
_ACROSS, _SIDE, _ROW, _NAMES = 4, 1.35, 0.15, 0.55


def quality_by_degrees(masks: pd.DataFrame) -> Figure | None:
    """The metric over the share of masked positions: BigBird's grid, learned degrees, and what else was trained.

    Every combination of degrees is a point: its colour tells how many neighbours to each side, its form how many
    tokens are global, and an open one has random keys. Learned degrees are joined by a line, from weak penalties to
    strong ones. A panel per model, task, metric and range of layers, masks with the diagonal alone.

    Args:
        masks: rows of `masks.csv`.

    Returns:
        The figure, or None where there is neither a grid nor a learned degree.
    """
    table = masks[masks["control"] == "kept"]
    degrees = table.drop_duplicates("pattern").set_index("pattern")[GRID].astype(float)
    grid = set(degrees.index[degrees.notna().all(axis=1)])
    learned = table["pattern"].str.startswith(LEARNED)
    if len(grid) < 2 and not learned.any():
        return None
    shown = means(table)
    full, others = shown[shown["pattern"] == FULL], shown[shown["pattern"] != FULL]
    blocks = list(others.groupby([*BLOCK, "layers"], sort=False))
    fewer = others[~others["pattern"].isin(grid) & ~others["pattern"].str.startswith(LEARNED)]
    names = list(dict.fromkeys(fewer["pattern"]))
    named = {name: _OTHERS[n % len(_OTHERS)] for n, name in enumerate(names)}
    forms = _Forms(degrees.loc[sorted(grid)])
    legend = list(forms.legend()) if grid else []
    legend += [_handle(color=VERMILION, marker="D", linestyle="-", label="learned degrees, by μ")] * bool(learned.any())
    labels = short_names(names)
    legend += [_handle(color=ORANGE, marker=named[name], label=labels[name]) for name in names]
    legend.append(_handle(color=INK, linestyle="--", label="no mask"))
    across = 1 if in_column() else min(2, len(blocks))
    # the legend stands on the right, in a column below
    side, foot = (0.0, 0.1 + _LINE * -(-len(legend) // 2)) if in_column() else (_LEGEND, 0.0)
    width = page_width() if in_column() else FULL_WIDTH * (across / 2) + side
    title = "Quality by sparsity: degrees of attention"
    top = _TOP + further_lines(title, width)
    height = top + -(-len(blocks) // across) * _SLOT + foot
    figure = new_figure(width, height)
    headline(figure, title)
    inside = (width - side) / across
    for number, (key, rows) in enumerate(blocks):
        line, column = divmod(number, across)
        low = height - top - (line + 1) * _SLOT + _WORDS
        left = column * inside + 0.5
        axes = figure.add_axes((left / width, low / height, (inside - 0.65) / width, _PANEL / height))
        model, task, metric, layers = key
        dress(axes, SHARE_LABEL, f"{metric} on {task}")
        parts = [str(model)] * (len(set(shown["model"])) > 1) + [f"layers {layers}"] * (layers != "all")
        axes.set_title(", ".join(parts), fontsize=TICK_SIZE, color=INK)
        level = full[(full[BLOCK] == list(key)[: len(BLOCK)]).all(axis=1)]
        draw_level(axes, level, "no mask")
        _points(axes, rows[rows["pattern"].isin(grid)], forms)
        _line(axes, rows[rows["pattern"].str.startswith(LEARNED)])
        _named(axes, rows[~rows["pattern"].isin(grid) & ~rows["pattern"].str.startswith(LEARNED)], named)
        axes.margins(x=0.12)
    figure.legend(
        handles=legend,
        loc="lower center" if foot else "center right",
        ncols=2 if foot else 1,
        frameon=False,
        prop={"family": FAMILY, "size": TICK_SIZE},
        borderpad=0.2,
    )
    return figure


class _Forms:
    """Styles of the points of a figure: colour by neighbour degree, marker by global degree, open with random keys."""

    def __init__(self, degrees: pd.DataFrame) -> None:
        self.degrees = degrees
        near = sorted(set(degrees["degree_neighbour"]))
        shades = colormaps[SEQUENTIAL](np.linspace(0.0, 0.88, len(near)))
        self.colours = dict(zip(near, shades, strict=True))
        self.markers = {
            value: _MARKERS[n % len(_MARKERS)] for n, value in enumerate(sorted(set(degrees["degree_global"])))
        }

    def of(self, pattern: str) -> dict[str, Any]:
        """Colour, marker, and filled or open."""
        degrees = self.degrees.loc[pattern]
        colour = self.colours[degrees["degree_neighbour"]]
        open_ = degrees["degree_random"] > 0
        return {
            "color": colour,
            "marker": self.markers[degrees["degree_global"]],
            "markerfacecolor": "white" if open_ else colour,
        }

    def legend(self) -> Iterator[Line2D]:
        """One entry for each value of each kind."""
        for value, colour in self.colours.items():
            yield _handle(color=colour, marker="o", label=f"{counted(int(value), 'neighbour')} a side")
        for value, marker in self.markers.items():
            yield _handle(color=FAINT, marker=marker, label=f"{value:g} global")
        if (self.degrees["degree_random"] > 0).any():
            yield _handle(color=FAINT, marker="o", markerfacecolor="white", label="with random keys")


def _handle(**looks: Any) -> Line2D:
    return Line2D([], [], **{"linestyle": "none", "markersize": 4.5, "linewidth": 1, **looks})


def _points(axes: Axes, rows: pd.DataFrame, forms: _Forms) -> None:
    for row in rows.to_dict("records"):
        point = pd.DataFrame([row])
        x = 100 * float_column(point, "sparsity_texts")
        looks = forms.of(str(row["pattern"]))
        draw_intervals(axes, x, point, looks["color"])
        axes.plot(x, float_column(point, "value"), linestyle="none", markersize=4.5, zorder=3, **looks)


def _line(axes: Axes, rows: pd.DataFrame) -> None:
    if rows.empty:
        return
    strengths = rows["pattern"].str.removeprefix(LEARNED).astype(float)
    rows = rows.loc[strengths.sort_values().index]
    x, y = 100 * float_column(rows, "sparsity_texts"), float_column(rows, "value")
    draw_intervals(axes, x, rows, VERMILION)
    axes.plot(x, y, "D-", color=VERMILION, markersize=4.5, linewidth=1, zorder=4)
    for place, value, strength in zip(x, y, sorted(strengths), strict=True):
        _say(axes, f"μ {strength:g}", (place, value), (5, 5), VERMILION)


def _named(axes: Axes, rows: pd.DataFrame, looks: dict[str, str]) -> None:
    for row in rows.to_dict("records"):
        point = pd.DataFrame([row])
        x = 100 * float_column(point, "sparsity_texts")
        draw_intervals(axes, x, point, ORANGE)
        marker = looks[str(row["pattern"])]
        axes.plot(x, float_column(point, "value"), marker, color=ORANGE, markersize=5, zorder=3, linestyle="none")


def _say(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], colour: str) -> None:
    axes.annotate(
        text,
        at,
        xytext=shift,
        textcoords="offset points",
        ha="left" if shift[0] > 0 else "right",
        fontsize=TICK_SIZE - 1,
        fontfamily=FAMILY,
        color=colour,
        zorder=2,
    )


def learned_degrees(degrees: pd.DataFrame) -> Figure | None:
    """How many heads of each layer come to which degree, a panel per penalty; over all seeds together.

    Args:
        degrees: rows of `degrees.csv`.

    Returns:
        The figure, or None where nothing was learned.
    """
    if degrees.empty:
        return None
    panels = list(degrees.groupby(["model", "pattern", "layers", "diagonal"], sort=False))
    layers = sorted(set(degrees["layer"]))
    across = 1 if in_column() else min(_ACROSS, len(panels))
    side, slot = _SIDE, _ROW * len(layers) + _NAMES
    width, height = 0.45 + across * (side + 0.12) + 0.6, _TOP + -(-len(panels) // across) * slot + 0.3
    figure = new_figure(max(width, 3.3), height)
    width = float(figure.get_figwidth())
    headline(figure, "Degrees of neighbours that were learned")
    image = None
    for number, (key, rows) in enumerate(panels):
        line, column = divmod(number, across)
        low = height - _TOP - (line + 1) * slot + 0.22
        box = (0.45 + column * (side + 0.12), low, side, _ROW * len(layers))
        axes = figure.add_axes((box[0] / width, low / height, side / width, box[3] / height))
        last = number + across >= len(panels)
        dress(axes, "neighbours a side" if last else "", "layer" if column == 0 else "")
        shares = _shares(rows, layers)
        image = axes.imshow(shares, cmap=PALE, vmin=0, vmax=1, aspect="auto", origin="lower", interpolation="nearest")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_yticks(range(len(layers)), list(map(str, layers)) if column == 0 else [])
        heading(axes, _title(key, rows, degrees), side)
    assert image is not None
    bar = figure.add_axes(((width - 0.5) / width, 0.5 / height, 0.08 / width, (height - 1.0) / height))
    figure.colorbar(image, cax=bar)
    bar.tick_params(labelsize=TICK_SIZE, length=2, width=0.5)
    bar.set_ylabel("share of heads", fontsize=LABEL_SIZE, color=INK)
    return figure


def _shares(rows: pd.DataFrame, layers: list[int]) -> npt.NDArray[np.float64]:
    """Of the heads of every layer, by degree: (layers, degrees)."""
    chosen = rows[rows["chosen"].astype(bool)]
    shares = np.zeros((len(layers), int(rows["degree"].max()) + 1))
    for place, layer in enumerate(layers):
        degrees = chosen.loc[chosen["layer"] == layer, "degree"].to_numpy(np.int64)
        shares[place] = np.bincount(degrees, minlength=shares.shape[1]) / max(len(degrees), 1)
    return shares


def _title(key: tuple[Any, ...], rows: pd.DataFrame, degrees: pd.DataFrame) -> str:
    model, pattern, layers, diagonal = key
    chosen = float_column(rows[rows["chosen"].astype(bool)], "degree")
    parts = [f"μ {pattern.removeprefix(LEARNED)}: mean {chosen.mean():.1f}"]
    parts += [str(model)] * (len(set(degrees["model"])) > 1)
    parts += [f"layers {layers}"] * (layers != "all") + ["no diagonal"] * (not diagonal)
    return ", ".join(parts)
