"""Degrees of attention: quality by sparsity over BigBird's grid and learned degrees, and what was learned.

What each kind of BigBird's connections is worth comes from a regression over the grid (Brahma et al. 2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from headlens.analyses.masks.learned_options import LEARNED, MADE
from headlens.analyses.masks.options import KINDS, strength_of
from headlens.analyses.masks.study_figures import BLOCK, FULL, GRID, means, titled, within_bounds
from headlens.errors import counted
from headlens.heads import KEY_COLUMNS
from headlens.pages.formatting import NOTHING, escaped, markdown_lines, unsigned, value_text
from headlens.plots import style
from headlens.plots.axis_labels import FAMILY
from headlens.plots.cell_drawing import Scale
from headlens.plots.curves import draw_intervals, draw_level
from headlens.plots.head_grid import float_column
from headlens.plots.heatmaps import paired_maps
from headlens.plots.mask_points import SHARE_LABEL, short_names

EFFECTS_COLUMNS = [
    *("model", "task", "metric", "layers", "kind", "effect", "ci_low", "ci_high", "p_value", "density"),
    *("effect_per_percent", "n", "r_squared"),
]
_NOTHING = 1e-9  # of a text's positions
_REGRESSED = [*BLOCK, "layers"]
_MARKERS = "os^Dv"
_OTHERS = "PX*phd8<>"
# inches
_TOP, _SLOT, _PANEL, _WORDS, _LEGEND, _LINE = 0.35, 3.1, 2.4, 0.6, 1.5, 0.16
_ACROSS, _SIDE, _ROW, _NAMES = 4, 1.35, 0.15, 0.55


def quality_by_degrees(masks: pd.DataFrame) -> Figure | None:
    """The metric over the share of masked positions: BigBird's grid, learned degrees, and what else was trained.

    Every combination of degrees is a point: its colour tells how many neighbours to each side, its form how many
    tokens are global, and an open one has random keys. Learned degrees are joined by a line, from weak penalties to
    strong ones, and so are adaptive spans. A panel per model, task, metric and range of layers, masks with the diagonal
    alone.

    Args:
        masks: rows of `masks.csv`.

    Returns:
        The figure, or None where there is neither a grid nor a learned degree or span.
    """
    table = masks[masks["control"] == "kept"]
    degrees = table.drop_duplicates("pattern").set_index("pattern")[GRID].astype(float)
    grid = {name for name in degrees.index[degrees.notna().all(axis=1)] if not name.startswith(LEARNED)}
    learned, spanned = (table["pattern"].str.startswith(name).any() for name in MADE)
    if len(grid) < 2 and not (learned or spanned):
        return None
    shown = within_bounds(means(table))
    full, others = shown[shown["pattern"] == FULL], shown[shown["pattern"] != FULL]
    blocks = list(others.groupby([*BLOCK, "layers"], sort=False))
    fewer = others[~others["pattern"].isin(grid) & ~others["pattern"].str.startswith(MADE)]
    names = list(dict.fromkeys(fewer["pattern"]))
    styles, legend = _grid_styles(degrees.loc[sorted(grid)])
    for there, colour, label in (
        (learned, style.VERMILION, "learned degrees, by μ"),
        (spanned, style.BLUE, "adaptive spans, by μ"),
    ):
        legend += [_handle(color=colour, marker="D", linestyle="-", label=label)] * bool(there)
    for (name, label), marker in zip(short_names(names).items(), cycle(_OTHERS), strict=False):
        styles[name] = {"color": style.ORANGE, "marker": marker, "markersize": 5}
        legend.append(_handle(color=style.ORANGE, marker=marker, label=label))
    legend.append(_handle(color=style.INK, linestyle="--", label="no mask"))
    across = 1 if style.in_column() else min(2, len(blocks))
    # the legend stands on the right, in a column below
    side, foot = (0.0, 0.1 + _LINE * -(-len(legend) // 2)) if style.in_column() else (_LEGEND, 0.0)
    width = style.page_width() if style.in_column() else style.FULL_WIDTH * (across / 2) + side
    title = titled("Quality by sparsity: degrees of attention", shown)
    top = _TOP + style.further_lines(title, width)
    height = top + -(-len(blocks) // across) * _SLOT + foot
    figure = style.new_figure(width, height)
    style.headline(figure, title)
    inside = (width - side) / across
    for number, (key, rows) in enumerate(blocks):
        line, column = divmod(number, across)
        low = height - top - (line + 1) * _SLOT + _WORDS
        left = column * inside + 0.5
        axes = figure.add_axes((left / width, low / height, (inside - 0.65) / width, _PANEL / height))
        model, task, metric, layers = key
        style.dress(axes, SHARE_LABEL, style.one_line(f"{metric} on {task}", _PANEL, style.LABEL_SIZE))
        parts = [str(model)] * (len(set(shown["model"])) > 1) + [f"layers {layers}"] * (layers != "all")
        name = style.one_line(", ".join(parts), inside - 0.65, style.TICK_SIZE)
        axes.set_title(name, fontsize=style.TICK_SIZE, fontfamily=FAMILY, color=style.INK)
        draw_level(axes, full[(full[BLOCK] == list(key)[: len(BLOCK)]).all(axis=1)], "no mask")
        _points(axes, rows[rows["pattern"].isin(grid)], styles)
        for name, colour in zip(MADE, (style.VERMILION, style.BLUE), strict=True):
            _line(axes, rows[rows["pattern"].str.startswith(name)], colour)
        _points(axes, rows[rows["pattern"].isin(names)], styles)
        axes.margins(x=0.12)
    figure.legend(
        handles=legend,
        loc="lower center" if foot else "center right",
        ncols=2 if foot else 1,
        frameon=False,
        prop={"family": FAMILY, "size": style.TICK_SIZE},
        borderpad=0.2,
    )
    return figure


def _grid_styles(degrees: pd.DataFrame) -> tuple[dict[str, dict[str, Any]], list[Line2D]]:
    """Styles of the points of a grid, by pattern, and the entries of its legend.

    The colour tells the neighbour degree, the marker the global degree, and an open point has random keys.
    """
    near, tokens = (sorted(set(degrees[name])) for name in ("degree_neighbour", "degree_global"))
    colours = dict(zip(near, colormaps[style.SEQUENTIAL](np.linspace(0.0, 0.88, len(near))), strict=True))
    markers = dict(zip(tokens, cycle(_MARKERS), strict=False))
    styles = {}
    for pattern, row in degrees.to_dict("index").items():
        colour, marker = colours[row["degree_neighbour"]], markers[row["degree_global"]]
        face = "white" if row["degree_random"] > 0 else colour
        styles[str(pattern)] = {"color": colour, "marker": marker, "markerfacecolor": face}
    legend = [
        _handle(color=c, marker="o", label=f"{counted(int(n), 'neighbour')} per side") for n, c in colours.items()
    ]
    legend += [
        _handle(color=style.FAINT, marker=marker, label=f"{counted(int(n), 'global token')}")
        for n, marker in markers.items()
    ]
    if (degrees["degree_random"] > 0).any():
        legend.append(_handle(color=style.FAINT, marker="o", markerfacecolor="white", label="with random keys"))
    return styles, legend


def _handle(**looks: Any) -> Line2D:
    return Line2D([], [], **{"linestyle": "none", "markersize": 4.5, "linewidth": 1, **looks})


def _points(axes: Axes, rows: pd.DataFrame, styles: dict[str, dict[str, Any]]) -> None:
    for row in rows.to_dict("records"):
        point, look = pd.DataFrame([row]), styles[str(row["pattern"])]
        x = 100 * float_column(point, "sparsity_texts")
        draw_intervals(axes, x, point, look["color"])
        axes.plot(x, float_column(point, "value"), zorder=3, **{"linestyle": "none", "markersize": 4.5, **look})


def _line(axes: Axes, rows: pd.DataFrame, colour: str) -> None:
    if rows.empty:
        return
    strengths = rows["pattern"].map(strength_of)
    rows = rows.loc[strengths.sort_values().index]
    x, y = 100 * float_column(rows, "sparsity_texts"), float_column(rows, "value")
    draw_intervals(axes, x, rows, colour)
    axes.plot(x, y, "D-", color=colour, markersize=4.5, linewidth=1, zorder=4)
    # Strengths that come to the same have one label.
    told: dict[tuple[float, float], list[str]] = {}
    for place, value, strength in zip(x, y, sorted(strengths), strict=True):
        told.setdefault((round(place, 3), round(value, 6)), []).append(f"{strength:g}")
    for place, names in told.items():
        axes.annotate(
            f"μ {', '.join(names)}",
            place,
            xytext=(5, 5),
            textcoords="offset points",
            fontsize=style.TICK_SIZE - 1,
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
    # Runs before there were other kinds have neighbours alone, and no column.
    degrees = degrees if "kind" in degrees else degrees.assign(kind="neighbour")
    panels = list(degrees.groupby(["model", "pattern", "layers", "diagonal", "kind"], sort=False))
    layers = sorted(set(degrees["layer"]))
    across = 1 if style.in_column() else min(_ACROSS, len(panels))
    side, slot = _SIDE, _ROW * len(layers) + _NAMES
    width, height = 0.45 + across * (side + 0.12) + 0.6, _TOP + -(-len(panels) // across) * slot + 0.3
    figure = style.new_figure(max(width, 3.3), height)
    width = float(figure.get_figwidth())
    several = set(degrees["kind"]) != {"neighbour"}
    style.headline(figure, "Learned degrees" if several else "Learned degrees of neighbours")
    image = None
    for number, (key, rows) in enumerate(panels):
        line, column = divmod(number, across)
        low = height - _TOP - (line + 1) * slot + 0.22
        left = 0.45 + column * (side + 0.12)
        axes = figure.add_axes((left / width, low / height, side / width, _ROW * len(layers) / height))
        last = number + across >= len(panels)
        style.dress(
            axes, ("degree" if several else "neighbours per side") if last else "", "layer" if column == 0 else ""
        )
        chosen = rows[rows["chosen"].astype(bool)]
        # Of the heads of every layer, by degree: (layers, degrees)
        shares = pd.crosstab(chosen["layer"], chosen["degree"], normalize="index").reindex(
            index=layers, columns=range(int(rows["degree"].max()) + 1), fill_value=0
        )
        image = axes.imshow(
            shares, cmap=style.PALE, vmin=0, vmax=1, aspect="auto", origin="lower", interpolation="nearest"
        )
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_yticks(range(len(layers)), list(map(str, layers)) if column == 0 else [])
        style.heading(axes, _title(key, float_column(chosen, "degree").mean(), degrees), side)
    assert image is not None
    bar = figure.add_axes(((width - 0.5) / width, 0.5 / height, 0.08 / width, (height - 1.0) / height))
    figure.colorbar(image, cax=bar)
    bar.tick_params(labelsize=style.TICK_SIZE, length=2, width=0.5)
    bar.set_ylabel("share of heads", fontsize=style.LABEL_SIZE, color=style.INK)
    return figure


def learned_spans(spans: pd.DataFrame) -> Figure | None:
    """How far every head looks, its span z, a map per penalty; of several seeds the mean.

    Args:
        spans: rows of `spans.csv`.

    Returns:
        The figure, or None where nothing was learned.
    """
    if spans.empty:
        return None
    words = {}
    for pattern, layers, diagonal in spans[["pattern", "layers", "diagonal"]].drop_duplicates().itertuples(index=False):
        more = [f"layers {layers}"] * (layers != "all") + ["no diagonal"] * (not diagonal)
        words[f"{pattern}|{layers}|{diagonal}"] = ", ".join([f"μ {strength_of(pattern):.10g}", *more])
    named = spans.assign(name=spans["pattern"] + "|" + spans["layers"] + "|" + spans["diagonal"].astype(str))
    table = named.pivot_table(index=["model", *KEY_COLUMNS], columns="name", values="span").reset_index()
    scale = Scale("span, tokens to each side", high=float(spans["span"].max()))
    return paired_maps(table, words, [scale], "Learned attention spans")


def _title(key: tuple[Any, ...], mean: float, degrees: pd.DataFrame) -> str:
    model, pattern, layers, diagonal, kind = key
    parts = [f"μ {strength_of(pattern):.10g}: mean {mean:.1f}"]
    parts += [str(kind)] * (set(degrees["kind"]) != {"neighbour"})
    parts += [str(model)] * (len(set(degrees["model"])) > 1)
    parts += [f"layers {layers}"] * (layers != "all") + ["no diagonal"] * (not diagonal)
    return ", ".join(parts)


def degree_effects(masks: pd.DataFrame) -> pd.DataFrame:
    """How much a metric changes with each degree of BigBird: least squares over all trainings of a grid.

        metric = a_seed + b_global · g + b_random · r + b_neighbour · w

    with an intercept of its own for every seed, for its examples and its new weights are the same in all its trainings.

    Args:
        masks: rows of `masks.csv`. Patterns with all three degrees and the diagonal count, and kinds that have more
            than one value.

    Returns:
        A row per kind of degree. `effect` is b, what one token more is worth, with its 95 % interval and the p-value of
        Student's t; `density` is how much one token more opens of a text's positions, by a regression of the same
        form; `effect_per_percent` is what one per cent of the positions is worth when spent on this kind. `n` counts
        trainings. Empty where no degree varies, or where degrees vary together so that their effects cannot be told
        apart; no intervals where there are no more trainings than coefficients.
    """
    rows = masks[(masks["control"] == "kept") & masks[GRID].notna().all(axis=1) & masks["value"].notna()]
    rows = rows[~rows["pattern"].str.startswith(LEARNED)]
    found = (
        dict(zip(_REGRESSED, key, strict=True)) | row
        for key, group in rows.groupby(_REGRESSED, sort=False)
        for row in _effects(group)
    )
    return pd.DataFrame(found, columns=EFFECTS_COLUMNS)


def effects_markdown(effects: pd.DataFrame) -> str:
    """The same as a table for each model and metric."""
    parts = ["## What each degree of BigBird is worth [95 % interval]"]
    for (model, metric), rows in effects.groupby(["model", "metric"], sort=False):
        lines = [
            [
                "task",
                "layers",
                "kind",
                "effect of one more token",
                "p",
                "positions it opens, %",
                "effect per 1 % of positions",
            ]
        ]
        lines.append(["---", "---", "---", "---:", "---:", "---:", "---:"])
        for row in rows.to_dict("records"):
            effect = value_text(row["effect"], row["ci_low"], row["ci_high"])
            p = NOTHING if np.isnan(row["p_value"]) else f"{row['p_value']:.2g}"
            words = [escaped(str(row[name])) for name in ("task", "layers", "kind")]
            spent = (f"{100 * row['density']:.2f}", f"{row['effect_per_percent']:.4f}")
            lines.append([*words, effect, p, *(NOTHING if text == "nan" else unsigned(text) for text in spent)])
        parts += [f"\n### {escaped(str(metric))} of {escaped(str(model))}", "", *markdown_lines(lines)]
    return "\n".join(parts) + "\n"


def _effects(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    from statsmodels.regression.linear_model import OLS  # noqa: PLC0415 - slow to import, and needed here alone

    kinds = [kind for kind in KINDS if len(set(rows[f"degree_{kind}"])) > 1]
    if not kinds:
        return
    degrees = rows[[f"degree_{kind}" for kind in kinds]].to_numpy(np.float64)
    # A column for each seed is its intercept: (trainings, kinds + seeds).
    design = np.hstack([degrees, pd.get_dummies(rows["seed"]).to_numpy(np.float64)])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return
    values = float_column(rows, "value")
    fitted = OLS(values, design).fit()
    open_share = OLS(1 - float_column(rows, "sparsity_texts"), design).fit().params
    known = fitted.df_resid > 0
    # Around the mean of all, as R² is of a model with intercepts.
    spread = float(((values - values.mean()) ** 2).sum())
    bounds: npt.NDArray[np.float64] = fitted.conf_int() if known else np.full((len(kinds), 2), np.nan)
    # Where all trainings give the same there is nothing to test.
    tested = known and spread > 0
    for place, kind in enumerate(kinds):
        effect, density = float(fitted.params[place]), float(open_share[place])
        yield {
            "kind": kind,
            "effect": effect,
            "ci_low": float(bounds[place, 0]),
            "ci_high": float(bounds[place, 1]),
            "p_value": float(fitted.pvalues[place]) if tested else np.nan,
            "density": density,
            "effect_per_percent": effect / (100 * density) if abs(density) > _NOTHING else np.nan,
            "n": len(rows),
            "r_squared": 1 - float(fitted.ssr) / spread if tested else np.nan,
        }
