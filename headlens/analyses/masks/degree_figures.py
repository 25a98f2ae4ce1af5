"""Figures of degrees of attention: quality by sparsity over BigBird's grid, learned degrees and spans, and draws."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.analyses.masks.degree_tables import (
    UNSETTLED,
    draw_summary,
    mask_scope,
    mask_words,
    unsettled,
    unsettled_spans,
)
from headlens.analyses.masks.study_figures import (
    BLOCK,
    FULL,
    means,
    of_kind,
    one_of,
    share_axes,
    titled,
    with_model,
    within_bounds,
    without_mask,
)
from headlens.attention_masks.named_masks import LearnedDegrees, LearnedInRun, LearnedSpans, strength_of
from headlens.errors import counted
from headlens.heads import KEY_COLUMNS
from headlens.plots import style
from headlens.plots.axis_labels import font_family
from headlens.plots.cell_drawing import Scale
from headlens.plots.curves import SAME_ANSWER, VALUES, draw_intervals, draw_level, draw_rims, draw_same_answers
from headlens.plots.head_grid import float_column
from headlens.plots.heatmaps import paired_maps
from headlens.plots.mask_points import short_names
from headlens.plots.point_rows import PointGroup, PointPanel, point_rows
from headlens.tables.mask_tables import GRID
from headlens.tables.same_answers import NEARLY_ALL, answer_shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Colour, words, and how far their labels stand above their points.
_LEARNED_LOOKS = {
    LearnedDegrees: (style.VERMILION, "learned degrees, by μ", 5),
    LearnedSpans: (style.BLUE, "adaptive spans, by μ", -10),
}
_MARKERS = "os^Dv"
_OTHERS = "PX*phd8<>"
# inches
_TOP, _SLOT, _PANEL, _WORDS, _LEGEND, _LINE, _MARKS = 0.35, 3.1, 2.4, 0.6, 1.6, 0.16, 0.4
_ACROSS, _SIDE, _ROW, _NAMES = 4, 1.35, 0.15, 0.55


def quality_by_degrees(masks: pd.DataFrame) -> Figure | None:
    """The metric over the share of masked positions: BigBird's grid, learned degrees, and what else was trained.

    Every combination of degrees is a point: its colour tells how many neighbours to each side, its form how many
    tokens are global, and an open one has random keys. Learned degrees are joined by a line, from weak penalties to
    strong ones, and so are adaptive spans. A panel per model, task, metric and range of layers, masks as they are
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
    legend += [_handle(color=colour, marker="D", linestyle="-", label=label) for colour, label, _ in made]
    for (name, label), marker in zip(short_names(names).items(), cycle(_OTHERS), strict=False):
        styles[name] = {"color": style.ORANGE, "marker": marker, "markersize": 5}
        legend.append(_handle(color=style.ORANGE, marker=marker, label=label))
    legend.append(_handle(color=style.INK, linestyle="--", label="no mask"))
    if (answer_shares(others) >= NEARLY_ALL).any():
        legend.append(_handle(color=style.INK, marker="s", markerfacecolor="none", label=SAME_ANSWER))
    across = 1 if style.in_column() else min(2, len(blocks))
    room = style.page_width() / 2 if style.in_column() else _LEGEND
    for handle in legend:  # what is longer than its column is broken
        handle.set_label(style.fold(str(handle.get_label()), room - _MARKS, style.TICK_SIZE))
    # the legend stands on the right, in a column below
    half = -(-len(legend) // 2)
    lines = max(sum(str(h.get_label()).count("\n") + 1 for h in part) for part in (legend[:half], legend[half:]))
    side, foot = (0.0, 0.1 + _LINE * lines) if style.in_column() else (_LEGEND, 0.0)
    width = style.page_width() if style.in_column() else style.FULL_WIDTH * (across / 2) + side
    title = titled("Quality by sparsity: degrees of attention", shown, full, with_chance=True)
    inside = (width - side) / across
    columns = [(column * inside + 0.5) / width for column in range(across)], (inside - 0.65) / width
    margins = _TOP + style.further_lines(title, width), foot
    figure, panels = style.panel_grid(title, len(blocks), width, columns, (_SLOT, _WORDS, _PANEL), margins)
    for axes, ((model, task, metric, layers), rows) in zip(panels, blocks, strict=True):
        words = ", ".join(filter(None, [one_of(shown, model), *mask_scope(layers)]))
        share_axes(axes, f"{metric} on {task}", _PANEL, words, inside - 0.65)
        draw_level(axes, full[(full[BLOCK] == [model, task, metric]).all(axis=1)], "no mask")
        _points(axes, rows[rows["pattern"].isin(grid)], styles)
        for kind, (colour, _, above) in _LEARNED_LOOKS.items():
            _line(axes, rows[of_kind(rows["pattern"], kind)], colour, above)
        _points(axes, rows[rows["pattern"].isin(names)], styles)
        axes.margins(x=0.2)
        draw_rims(axes)
        draw_same_answers(axes, 100 * float_column(rows, "sparsity_texts"), rows)
    figure.legend(
        handles=legend,
        loc="lower center" if foot else "center right",
        ncols=2 if foot else 1,
        frameon=False,
        prop={"family": font_family(), "size": style.TICK_SIZE},
        borderpad=0.2,
    )
    return figure


def _grid_styles(degrees: pd.DataFrame) -> tuple[dict[str, dict[str, Any]], list[Line2D]]:
    """Styles of the points of a grid, by pattern, and the entries of its legend.

    The colour tells the neighbour degree, the marker the global degree, and an open point has random keys.
    """
    from matplotlib import colormaps

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
    from matplotlib.lines import Line2D

    return Line2D([], [], **{"linestyle": "none", "markersize": 4.5, "linewidth": 1, **looks})


def _points(axes: Axes, rows: pd.DataFrame, styles: dict[str, dict[str, Any]]) -> None:
    for row in rows.to_dict("records"):
        point, look = pd.DataFrame([row]), styles[str(row["pattern"])]
        x = 100 * float_column(point, "sparsity_texts")
        draw_intervals(axes, x, point, look["color"])
        axes.plot(x, float_column(point, "value"), zorder=3, **{"linestyle": "none", "markersize": 4.5, **look})


def _line(axes: Axes, rows: pd.DataFrame, colour: str, above: int) -> None:
    if rows.empty:
        return
    rows = rows.assign(strength=rows["pattern"].map(strength_of)).sort_values("strength")
    x, y = 100 * float_column(rows, "sparsity_texts"), float_column(rows, "value")
    draw_intervals(axes, x, rows, colour)
    axes.plot(x, y, "D-", color=colour, markersize=4.5, linewidth=1, zorder=4)
    # Strengths that come to the same have one label.
    for (at, value), alike in rows["strength"].groupby([x.round(3), y.round(6)], sort=False):
        words = f"μ {', '.join(f'{strength:g}' for strength in alike)}"
        text = axes.annotate(words, (at, value), (5, above), textcoords="offset points", color=colour, zorder=5)
        text.set(fontsize=style.TICK_SIZE - 1, fontfamily=font_family())


def learned_degrees(degrees: pd.DataFrame) -> Figure | None:
    """How many heads of each layer come to which degree, a panel per penalty; over all seeds together.

    Args:
        degrees: rows of `degrees.csv`.

    Returns:
        The figure, or None where nothing was learned.
    """
    from matplotlib.ticker import MaxNLocator

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
    open_share = unsettled(degrees)
    title = with_model(title, degrees) + (f"\n({open_share:.0%} have not settled)" if open_share > UNSETTLED else "")
    columns = [(0.45 + column * (side + 0.12)) / width for column in range(across)], side / width
    margins = _TOP + style.further_lines(title, width), 0.3
    figure, drawn = style.panel_grid(title, len(panels), width, columns, (slot, 0.22, _ROW * len(layers)), margins)
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
            [f"μ {strength_of(pattern):.10g}", *mask_scope(layers, diagonal=diagonal)]
        )
        for pattern, layers, diagonal in spans[["pattern", "layers", "diagonal"]].itertuples(index=False)
    }
    labelled = spans.assign(name=spans["pattern"] + "|" + spans["layers"] + "|" + spans["diagonal"].astype(str))
    table = labelled.pivot_table(index=["model", *KEY_COLUMNS], columns="name", values="span").reset_index()
    scale = Scale("span, tokens to each side", high=float(spans["span"].max()))
    trainings = labelled.groupby(["name", "model", "seed"])["span"]
    alike = (trainings.max() - trainings.min() < 1) & (trainings.size() > 1)
    shown = "" if not alike.any() else "all" if alike.all() else f"{alike.sum()} of {len(alike)}"
    title = "Learned attention spans"
    if shown:
        title += f"\n({shown} trainings: spans differ by less than a token, and tell nothing of single heads)"
    if (share := unsettled_spans(spans)) > UNSETTLED:
        title += f"\n({share:.0%} have not settled)"
    return paired_maps(table, words, [scale], title)


def _title(key: tuple[Any, ...], mean: float, degrees: pd.DataFrame) -> str:
    model, pattern, layers, diagonal, kind = key
    kinds = [str(kind)] * (set(degrees["kind"]) != {"neighbour"})
    parts = [f"μ {strength_of(pattern):.10g}: mean {mean:.1f}", *kinds, one_of(degrees, model)]
    return ", ".join(filter(None, [*parts, *mask_scope(layers, diagonal=diagonal)]))


def quality_of_draws(draws: pd.DataFrame, masks: pd.DataFrame) -> Figure | None:
    """Draws of every mask that was learned, from the lowest to the highest, beside the mask that stays.

    A panel per model, task, metric and seed; the dashed line is the model of that seed without a mask.

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
    several = len(set(summary["seed"])) > 1
    for (*block, seed), rows in summary.groupby([*BLOCK, "seed"], sort=False):
        model, task, metric = block
        names = [mask_words({str(k): v for k, v in row.items()}) for row in rows.to_dict("records")]
        level = full[(full[BLOCK] == block).all(axis=1) & (full["seed"] == seed)]
        ranges = rows[["mean", "lowest", "highest"]].set_axis(list(VALUES), axis=1)
        most = counted(int(rows["draws"].max()), "draw")
        groups = [
            PointGroup("the median mask, 95 % interval", style.BLUE, names, rows[list(VALUES)]),
            PointGroup(f"{most} of masks: mean, lowest to highest", style.VERMILION, names, ranges),
        ]
        title = ", ".join(filter(None, [one_of(summary, model), f"seed {seed}" * several]))
        panels.append(PointPanel(f"{metric} on {task}", names, groups, level, "no mask", title))
    unmasked = without_mask(means(masks)).assign(seeds=1)  # every panel is of one
    shown = unmasked[unmasked["model"].isin(summary["model"]) & unmasked["task"].isin(summary["task"])]
    return point_rows(titled("Masks drawn from learned degrees", shown, shown, with_chance=True), panels)
