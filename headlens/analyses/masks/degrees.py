"""Degrees of attention: quality by sparsity over BigBird's grid and learned degrees, what was learned, and draws of it.

What each kind of BigBird's connections is worth comes from a regression over the grid (Brahma et al. 2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

from headlens.analyses.masks.options import KINDS
from headlens.analyses.masks.study_figures import (
    BLOCK,
    FULL,
    means,
    of_kind,
    one_of,
    share_axes,
    titled,
    within_bounds,
    without_mask,
)
from headlens.attention_masks.named_masks import LearnedDegrees, LearnedInRun, LearnedSpans, strength_of
from headlens.errors import counted
from headlens.heads import KEY_COLUMNS
from headlens.pages.formatting import NOTHING, escaped, markdown_table, unsigned, value_text
from headlens.plots import style
from headlens.plots.axis_labels import FAMILY
from headlens.plots.cell_drawing import Scale
from headlens.plots.curves import VALUES, draw_intervals, draw_level
from headlens.plots.head_grid import float_column
from headlens.plots.heatmaps import paired_maps
from headlens.plots.mask_points import short_names
from headlens.plots.panel_grid import panel_grid
from headlens.plots.point_rows import PointGroup, PointPanel, point_rows
from headlens.tables.mask_tables import EFFECTS, GRID

_EFFECT_WORDS = ("task", "layers", "kind")
_EFFECT_NUMBERS = ("effect of one more token", "p", "positions it opens, %", "effect per 1 % of positions")
_NOTHING = 1e-9  # of a text's positions
_REGRESSED = [*BLOCK, "layers"]
# Statistics of the draws from one distribution.
SPREAD = ("draws", "mean", "standard deviation", "lowest to highest", "different")
_LEARNED_KEYS = [*BLOCK, "pattern", "layers", "diagonal", "seed"]
_LEARNED_LOOKS = {
    LearnedDegrees: (style.VERMILION, "learned degrees, by μ"),
    LearnedSpans: (style.BLUE, "adaptive spans, by μ"),
}
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
    known = degrees.index[degrees.notna().all(axis=1)].to_series()
    grid = set(known[~of_kind(known, LearnedDegrees)])
    made = [look for kind, look in _LEARNED_LOOKS.items() if of_kind(table["pattern"], kind).any()]
    if len(grid) < 2 and not made:
        return None
    shown = within_bounds(means(table))
    full, others = shown[shown["pattern"] == FULL], shown[shown["pattern"] != FULL]
    blocks = list(others.groupby([*BLOCK, "layers"], sort=False))
    fewer = others[~others["pattern"].isin(grid) & ~of_kind(others["pattern"], LearnedInRun)]
    names = list(dict.fromkeys(fewer["pattern"]))
    styles, legend = _grid_styles(degrees.loc[sorted(grid)])
    legend += [_handle(color=colour, marker="D", linestyle="-", label=label) for colour, label in made]
    for (name, label), marker in zip(short_names(names).items(), cycle(_OTHERS), strict=False):
        styles[name] = {"color": style.ORANGE, "marker": marker, "markersize": 5}
        legend.append(_handle(color=style.ORANGE, marker=marker, label=label))
    legend.append(_handle(color=style.INK, linestyle="--", label="no mask"))
    across = 1 if style.in_column() else min(2, len(blocks))
    # the legend stands on the right, in a column below
    side, foot = (0.0, 0.1 + _LINE * -(-len(legend) // 2)) if style.in_column() else (_LEGEND, 0.0)
    width = style.page_width() if style.in_column() else style.FULL_WIDTH * (across / 2) + side
    title, inside = titled("Quality by sparsity: degrees of attention", shown), (width - side) / across
    columns = [(column * inside + 0.5) / width for column in range(across)], (inside - 0.65) / width
    margins = _TOP + style.further_lines(title, width), foot
    figure, panels = panel_grid(title, len(blocks), width, columns, (_SLOT, _WORDS, _PANEL), margins)
    for axes, ((model, task, metric, layers), rows) in zip(panels, blocks, strict=True):
        words = ", ".join(filter(None, [one_of(shown, model), *_where(layers)]))
        share_axes(axes, f"{metric} on {task}", _PANEL, words, inside - 0.65)
        draw_level(axes, full[(full[BLOCK] == [model, task, metric]).all(axis=1)], "no mask")
        _points(axes, rows[rows["pattern"].isin(grid)], styles)
        for kind, (colour, _) in _LEARNED_LOOKS.items():
            _line(axes, rows[of_kind(rows["pattern"], kind)], colour)
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
    widths = sorted(set(degrees["degree_neighbour"]))
    colours = dict(zip(widths, colormaps[style.SEQUENTIAL](np.linspace(0.0, 0.88, len(widths))), strict=True))
    markers = dict(zip(sorted(set(degrees["degree_global"])), cycle(_MARKERS), strict=False))
    styles = {}
    for pattern, tokens, keys, width in degrees.itertuples():
        face = "white" if keys > 0 else colours[width]
        styles[str(pattern)] = {"color": colours[width], "marker": markers[tokens], "markerfacecolor": face}
    near = [(c, "o", f"{counted(int(n), 'neighbour')} per side") for n, c in colours.items()]
    far = [(style.FAINT, marker, counted(int(n), "global token")) for n, marker in markers.items()]
    legend = [_handle(color=colour, marker=marker, label=label) for colour, marker, label in (*near, *far)]
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
    rows = rows.assign(strength=rows["pattern"].map(strength_of)).sort_values("strength")
    x, y = 100 * float_column(rows, "sparsity_texts"), float_column(rows, "value")
    draw_intervals(axes, x, rows, colour)
    axes.plot(x, y, "D-", color=colour, markersize=4.5, linewidth=1, zorder=4)
    # Strengths that come to the same have one label.
    for (at, value), alike in rows["strength"].groupby([x.round(3), y.round(6)], sort=False):
        words = f"μ {', '.join(f'{strength:g}' for strength in alike)}"
        text = axes.annotate(words, (at, value), (5, 5), textcoords="offset points", color=colour, zorder=2)
        text.set(fontsize=style.TICK_SIZE - 1, fontfamily=FAMILY)


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
    width = max(0.45 + across * (side + 0.12) + 0.6, 3.3)
    several = set(degrees["kind"]) != {"neighbour"}
    title, label = (
        ("Learned degrees", "degree") if several else ("Learned degrees of neighbours", "neighbours per side")
    )
    columns = [(0.45 + column * (side + 0.12)) / width for column in range(across)], side / width
    figure, drawn = panel_grid(title, len(panels), width, columns, (slot, 0.22, _ROW * len(layers)), (_TOP, 0.3))
    for number, (axes, (key, rows)) in enumerate(zip(drawn, panels, strict=True)):
        first = number % across == 0
        style.dress(axes, label if number + across >= len(panels) else "", "layer" if first else "")
        chosen = rows[rows["chosen"].astype(bool)]
        # Of the heads of every layer, by degree: (layers, degrees)
        shares = pd.crosstab(chosen["layer"], chosen["degree"], normalize="index").reindex(
            index=layers, columns=range(int(rows["degree"].max()) + 1), fill_value=0
        )
        image = axes.imshow(
            shares, cmap=style.PALE, vmin=0, vmax=1, aspect="auto", origin="lower", interpolation="nearest"
        )
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_yticks(range(len(layers)), list(map(str, layers)) if first else [])
        style.heading(axes, _title(key, float_column(chosen, "degree").mean(), degrees), side)
    height = float(figure.get_figheight())
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
    words = {
        f"{pattern}|{layers}|{diagonal}": ", ".join(
            [f"μ {strength_of(pattern):.10g}", *_where(layers, diagonal=diagonal)]
        )
        for pattern, layers, diagonal in spans[["pattern", "layers", "diagonal"]].itertuples(index=False)
    }
    labelled = spans.assign(name=spans["pattern"] + "|" + spans["layers"] + "|" + spans["diagonal"].astype(str))
    table = labelled.pivot_table(index=["model", *KEY_COLUMNS], columns="name", values="span").reset_index()
    scale = Scale("span, tokens to each side", high=float(spans["span"].max()))
    return paired_maps(table, words, [scale], "Learned attention spans")


def _title(key: tuple[Any, ...], mean: float, degrees: pd.DataFrame) -> str:
    model, pattern, layers, diagonal, kind = key
    kinds = [str(kind)] * (set(degrees["kind"]) != {"neighbour"})
    parts = [f"μ {strength_of(pattern):.10g}: mean {mean:.1f}", *kinds, one_of(degrees, model)]
    return ", ".join(filter(None, [*parts, *_where(layers, diagonal=diagonal)]))


def _where(layers: object, *, diagonal: bool = True) -> list[str]:
    """The layers of a mask, and whether it has the diagonal, where that has to be said."""
    return [f"layers {layers}"] * (layers != "all") + ["no diagonal"] * (not diagonal)


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
    rows = rows[~of_kind(rows["pattern"], LearnedDegrees)]
    records = (
        dict(zip(_REGRESSED, key, strict=True)) | row
        for key, group in rows.groupby(_REGRESSED, sort=False)
        for row in _effects(group)
    )
    return EFFECTS.frame(records)


def effects_markdown(effects: pd.DataFrame) -> str:
    """The effects of degrees as a table for each model and metric."""
    parts = ["## What each degree of BigBird is worth [95 % interval]"]
    for (model, metric), rows in effects.groupby(["model", "metric"], sort=False):
        lines = []
        for row in rows.to_dict("records"):
            words = [escaped(str(row[name])) for name in _EFFECT_WORDS]
            effect = value_text(row["effect"], row["ci_low"], row["ci_high"])
            numbers = (f"{row['p_value']:.2g}", f"{100 * row['density']:.2f}", f"{row['effect_per_percent']:.4f}")
            lines.append([*words, effect, *(NOTHING if text == "nan" else unsigned(text) for text in numbers)])
        table = markdown_table(_EFFECT_WORDS, _EFFECT_NUMBERS, lines)
        parts += [f"\n### {escaped(str(metric))} of {escaped(str(model))}", "", *table]
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


def draw_summary(draws: pd.DataFrame, masks: pd.DataFrame) -> list[dict[str, Any]]:
    """How good masks are that were drawn from the same degrees, beside the mask that stays.

    Args:
        draws: rows of `draws.csv`.
        masks: rows of `masks.csv`.

    Returns:
        A row for each model, task, metric, pattern, layers, diagonal and seed: how many `draws`, their `mean`, standard
        deviation `sd`, `lowest` and `highest` value; how many are `different`, by a paired 95 % interval that leaves 0
        out; `value`, `ci_low` and `ci_high` of the mask that stays, whose interval is over the examples.
    """
    stays = masks[of_kind(masks["pattern"], LearnedDegrees)][[*_LEARNED_KEYS, *VALUES]]
    rows = []
    for key, group in draws.groupby(_LEARNED_KEYS, sort=False):
        values, of_draws = group["value"], dict(zip(_LEARNED_KEYS, key, strict=True))
        apart = (float_column(group, "delta_low") > 0) | (float_column(group, "delta_high") < 0)
        of_draws |= {"draws": len(group), "different": int(apart.sum())}
        of_draws |= {"mean": values.mean(), "sd": values.std(ddof=1), "lowest": values.min(), "highest": values.max()}
        staying = stays[(stays[_LEARNED_KEYS] == list(key)).all(axis=1)]
        rows.append(of_draws | {name: float(staying[name].mean()) for name in VALUES})
    return rows


def draws_markdown(draws: pd.DataFrame, masks: pd.DataFrame) -> str:
    """The section of results.md on drawn masks: a row per task, metric and mask, and how a draw counts as different."""
    lines = []
    for row in draw_summary(draws, masks):
        words = [escaped(str(text)) for text in (row["task"], row["metric"], mask_words(row))]
        lines.append([*words, *spread_texts(row), value_text(*(row[name] for name in VALUES))])
    table = markdown_table(("task", "metric", "mask"), (*SPREAD, "the median mask [95 % interval]"), lines)
    about = (
        "The model that learned the degrees is evaluated under every draw. A draw counts as different if the 95 % "
        "interval of its difference from the median mask, paired over the examples, excludes 0."
    )
    return "\n".join(["## Masks drawn from learned degrees", "", *table, "", about]) + "\n"


def mask_words(row: Mapping[str, Any]) -> str:
    """What was learned, in words: pattern, layers, diagonal, seed."""
    return ", ".join([str(row["pattern"]), *_where(row["layers"], diagonal=row["diagonal"]), f"seed {row['seed']}"])


def spread_texts(row: Mapping[str, Any]) -> list[str]:
    """The columns `SPREAD` of a row of the summary, in words."""
    span = unsigned(f"{row['lowest']:.3f} to {row['highest']:.3f}")
    return [str(row["draws"]), unsigned(f"{row['mean']:.3f}"), f"{row['sd']:.4f}", span, str(row["different"])]


def quality_of_draws(draws: pd.DataFrame, masks: pd.DataFrame) -> Figure | None:
    """Draws of every mask that was learned, from the lowest to the highest, beside the mask that stays.

    A panel per model, task and metric; the dashed line is the model without a mask, mean over seeds.

    Args:
        draws: rows of `draws.csv`.
        masks: rows of `masks.csv`.

    Returns:
        The figure, or None where nothing was drawn.
    """
    if draws.empty:
        return None
    summary = pd.DataFrame(draw_summary(draws, masks))
    full, panels = without_mask(masks), []
    for (model, task, metric), rows in summary.groupby(BLOCK, sort=False):
        names = [mask_words({str(k): v for k, v in row.items()}) for row in rows.to_dict("records")]
        level = full[(full[BLOCK] == [model, task, metric]).all(axis=1)]
        ranges = rows[["mean", "lowest", "highest"]].set_axis(list(VALUES), axis=1)
        most = counted(int(rows["draws"].max()), "draw")
        groups = [
            PointGroup("the median mask, 95 % interval", style.BLUE, names, rows[list(VALUES)]),
            PointGroup(f"{most} of masks: mean, lowest to highest", style.VERMILION, names, ranges),
        ]
        panels.append(PointPanel(f"{metric} on {task}", names, groups, level, "no mask", one_of(summary, model)))
    return point_rows("Masks drawn from learned degrees", panels)
