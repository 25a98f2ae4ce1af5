"""The figures of `headlens sparsefinder` (Treviso et al. 2022): Pareto curves, heads, what clusters hold, examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.heads import KEY_COLUMNS
from headlens.learning.alphas_figure import ALPHAS, alpha_histograms
from headlens.maps.map_figures import MapBlock, draw_blocks
from headlens.pages.command_report import Figures
from headlens.plots import style
from headlens.plots.axis_labels import FAMILY, token_label
from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bar
from headlens.plots.curves import draw_chance, draw_intervals, draw_level, legend_below
from headlens.plots.head_grid import float_column, has_numbers, head_name
from headlens.plots.heatmaps import paired_maps

_SPECIAL = "special"  # what special tokens have in the place of a part of speech
GOLD = "entmax"  # what attention itself leaves, among the methods of pareto.csv
# Colour, line and name of each method: Sparsefinder's own are solid, what it is compared with dashed.
LOOKS = {
    "distance": (style.VERMILION, "-", "Sparsefinder, distance"),
    "bucket": (style.ORANGE, "-", "Sparsefinder, buckets"),
    "cluster": (style.PURPLE, "-", "Sparsefinder, clusters"),
    "routing": (style.BLUE, "--", "clusters as in Routing"),
    "lsh": (style.SKY, "--", "hashes as in Reformer"),
    "bigbird": (style.GREEN, "--", "BigBird"),
    "longformer": (style.YELLOW, "--", "Longformer"),
    "random": (style.INK, ":", "random and window"),
    "window": (style.FAINT, ":", "window"),
    "block_v1": (style.PURPLE, "-", "Sparsefinder, blocks v1"),
    "block_v2": (style.PURPLE, "-", "Sparsefinder, blocks v2"),
    "block_bigbird": (style.GREEN, "--", "BigBird on blocks"),
    "block_longformer": (style.YELLOW, "--", "Longformer on blocks"),
}
# Graphs of blocks have the colours of the same of tokens, and squares; those of the second version are open.
_SQUARE: dict[str, Any] = {"marker": "s", "markersize": 3}
MARKERS = {name: _SQUARE for name in LOOKS if name.startswith("block_")}
MARKERS["block_v2"] = {**_SQUARE, "markerfacecolor": "white"}
# inches
_TOP, _PANEL, _WORDS = 0.35, 2.4, 0.65
_LEGEND = {(1, 1): (6, 1.1), (1, 2): (3, 0.6), (2, 1): (6, 1.1)}  # lines and height by how panels stand
_LEFT, _CLUSTERS_TOP, _TITLE, _NAMES, _GAP, _ROW = 0.45, 0.32, 0.3, 0.55, 0.15, 0.15  # of clusters
# Words of an axis for a metric and its task.
_METRICS = {"bleu": "BLEU", "chrf": "chrF"}
_TASKS = {
    "mlm": "on masked words",
    "translation": "of translations",
    "translation-loss": "on next-word prediction in translations",
}
_LEAST_HEIGHT = 0.01  # of an axis of a metric
_ALL_BUT_DENSE = 0.01  # sparsities below leave nothing to predict
_CLUSTER_HEADS = 3  # heads whose clusters are drawn
_FEWEST_TOKENS = 10  # of a cluster, that tell anything about its parts of speech
_FEWEST_PAIRS = 30  # of a head, that tell anything about two parts of speech


def sparsefinder_figures(tables: Mapping[str, pd.DataFrame]) -> Figures:
    """Draws every figure one after the other, so that only one is in memory.

    Args:
        tables: `pareto`, `heads`, `clusters`, `pos_pairs`, `examples` and `alphas`, as far as there.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    if "pareto" in tables:
        points = tables["pareto"]
        for number, (stack, rows) in enumerate(points[points["head"].isna()].groupby("stack", sort=False)):
            yield f"pareto_{stack}" if number else "pareto", pareto_curves(rows, str(stack))
    if "heads" in tables:
        yield "heads", sparse_heads(tables["heads"])
        if "clusters" in tables:
            yield "clusters", cluster_pictures(tables["clusters"], tables["heads"])
    if "pos_pairs" in tables:
        for number, (stack, rows) in enumerate(tables["pos_pairs"].groupby("stack", sort=False)):
            yield f"pos_pairs_{stack}" if number else "pos_pairs", pos_pair_maps(rows)
    if "examples" in tables:
        by_stack = tables["examples"].groupby("stack", sort=False)
        for stack, rows in by_stack:
            yield "examples" if len(by_stack) == 1 else f"examples_{stack}", example_maps(rows)
    if ALPHAS in tables:
        yield ALPHAS, alpha_histograms(tables[ALPHAS])


def pareto_curves(points: pd.DataFrame, stack: str) -> Figure | None:
    """Recall over sparsity, the best points of each method; beside it, where it was tried, the metric of a task.

    Args:
        points: rows of `pareto.csv` over all heads of a stack, or of all stacks.
        stack: which stack that is, or `all`.

    Returns:
        The figure, or None without points.
    """
    gold, methods = (points[same] for same in (points["method"] == GOLD, points["method"] != GOLD))
    curves, tried = methods[methods["on_curve"].astype(bool)], methods[methods["value"].notna()]
    if curves.empty:
        return None
    where = "all heads" if stack in {"all", "encoder"} else f"heads of the {stack} stack"
    panels = [("recall", "sparsity", "recall", where, curves)]
    if len(tried):
        metric, task = str(tried["metric"].iloc[0]), str(tried["task"].iloc[0])
        label = f"{_METRICS.get(metric, metric)} {_TASKS.get(task, f'on {task}')}"
        panels.append(("value", "task_sparsity", label, "the task", tried))
    across = 1 if style.in_column() else len(panels)
    stacked = len(panels) // across
    shown = "recall, task and sparsity" if len(panels) > 1 else "recall and sparsity"
    width = min(style.page_width(), style.FULL_WIDTH * across / 2)
    names = [*points["model"].astype(str).unique(), *points.get("attention", pd.Series(dtype=str)).dropna().unique()]
    title = "\n".join([f"Predicted attention: {shown}", ", ".join(names)])
    lines, below = _LEGEND[stacked, across]
    if not MARKERS.keys().isdisjoint(methods["method"]):
        lines, below = lines * 4 // 3, below * 4 / 3
    height = _TOP + style.further_lines(title, width) + stacked * (_PANEL + _WORDS) + below
    figure = style.new_figure(width, height)
    style.headline(figure, title)
    for number, (column, place, label, title, rows) in enumerate(panels):
        line, slot = divmod(number, across)
        bottom = below + 0.4 + (stacked - 1 - line) * (_PANEL + _WORDS)
        axes = figure.add_axes(((slot + 0.14) / across, bottom / height, 0.8 / across, _PANEL / height))
        style.dress(axes, "sparsity", style.one_line(label, _PANEL, style.LABEL_SIZE))
        _draw_methods(axes, rows, place, column)
        faint: dict[str, Any] = {"color": style.FAINT, "linewidth": 0.8, "zorder": 1}
        for sparsity in gold[place].dropna():
            axes.axvline(sparsity, linestyle="-.", label="sparsity of entmax", **faint)
        if column == "recall":
            axes.set_ylim(0, 1.03)
            axes.plot([0, 1], [1, 0], label="chance level", **faint)
        else:
            draw_level(axes, gold, "entmax itself")
            draw_chance(axes, float(next(iter(float_column(gold, "chance")), np.nan)))
            low, high = axes.get_ylim()
            if high - low < _LEAST_HEIGHT:  # the metric is the same everywhere, but for rounding
                axes.set_ylim((low + high - _LEAST_HEIGHT) / 2, (low + high + _LEAST_HEIGHT) / 2)
        style.heading(axes, title, 3.0)
    legend_below(figure, figure.axes, lines)
    return figure


def _draw_methods(axes: Axes, curves: pd.DataFrame, place: str, column: str) -> None:
    """Draws a line for each method, and intervals of a metric."""
    for method, (colour, line, label) in LOOKS.items():
        rows = curves[(curves["method"] == method) & curves[column].notna()].sort_values(place)
        if len(rows):
            x, y = rows[[place, column]].to_numpy(np.float64).T
            look: dict[str, Any] = {"marker": "o", "markersize": 2, **MARKERS.get(method, {})}
            axes.plot(x, y, line, color=colour, linewidth=1, label=label, **look)
            if column == "value":
                draw_intervals(axes, x, rows, colour)
    axes.set_xlim(0, 1.02)


def sparse_heads(heads: pd.DataFrame) -> Figure | None:
    """How sparse every head is, and how well its own best method of Sparsefinder predicts that.

    Args:
        heads: rows of `heads.csv`.

    Returns:
        The figure, or None when nothing was measured.
    """
    columns = [name for name in ("area_distance", "area_bucket", "area_cluster") if name in heads]
    # (area - 1/2) as a share of that of a method that finds everything, s / 2
    areas = heads[columns].apply(pd.to_numeric, errors="coerce")
    predicted = (2 * areas.max(axis=1) - 1) / heads["sparsity"].where(heads["sparsity"] >= _ALL_BUT_DENSE)
    titles = {"sparsity": "sparsity of entmax", "predicted": "predicted by its best of distance, buckets, clusters"}
    scales = [Scale("share of pairs without weight"), Scale("normalised area under the curve", colours="cividis")]
    return paired_maps(
        heads.assign(predicted=predicted), titles, scales, "Sparsity of attention heads, and how predictable it is"
    )


def cluster_pictures(clusters: pd.DataFrame, heads: pd.DataFrame) -> Figure | None:
    """How often each part of speech is among the queries and the keys of each cluster.

    Three heads of a model, those whose clusters tell most about parts of speech, a row of panels each.

    Args:
        clusters: rows of `clusters.csv`.
        heads: rows of `heads.csv`, for `information`.

    Returns:
        The figure, or None where no part of speech is known. Clusters of few tokens are grey.
    """
    if clusters.empty or not has_numbers(heads, "information"):
        return None
    known = heads.dropna(subset="information").nlargest(_CLUSTER_HEADS, "information")
    tags = clusters.groupby("tag")["count"].sum().sort_values(ascending=False, kind="stable").index
    numbers = sorted(set(clusters["cluster"]))
    of = ["model", *KEY_COLUMNS, "side", "cluster"]
    shares = clusters.pivot_table(index=of, columns="tag", values="share", fill_value=0.0)
    shares = shares[clusters.groupby(of)["count"].sum().reindex(shares.index) >= _FEWEST_TOKENS]
    panels = []
    for row in known.to_dict("records"):
        queries = f"{head_name(row)}: queries ({row['information']:.0%} of tag entropy)"
        for side, title in {"query": queries, "key": "keys"}.items():
            key = (row["model"], *(row[name] for name in KEY_COLUMNS), side)
            rows = pd.MultiIndex.from_tuples([(*key, cluster) for cluster in numbers])
            panels.append((title, shares.reindex(index=rows, columns=tags).set_axis(numbers)))
    scale, axis = Scale(f"share of the cluster (grey: fewer than {_FEWEST_TOKENS} tokens)"), ("", "cluster")
    return _share_maps("Parts of speech in clusters", panels, scale, axis, _LEFT, 0.12, _NAMES)


def pos_pair_maps(pairs: pd.DataFrame) -> Figure | None:
    """Which parts of speech attend to each other: entmax itself, and the graph that is predicted, on one scale.

    The share of the pairs of two tags that are in a graph, as a multiple of that of all pairs, special tokens left out.

    Args:
        pairs: rows of `pos_pairs.csv` of one stack; counts of its heads are added up.

    Returns:
        The figure, or None without rows. Tags of which there are few pairs are grey.
    """
    pairs = pairs[~pairs[["query_tag", "key_tag"]].isin([_SPECIAL]).any(axis=1)]
    if pairs.empty:
        return None
    n_heads = len(pairs[["model", *KEY_COLUMNS]].drop_duplicates())
    possible, *counts = (
        pairs.pivot_table(index="query_tag", columns="key_tag", values=name, aggfunc="sum")
        for name in ("pairs", "gold", "predicted")
    )
    many = possible >= _FEWEST_PAIRS * n_heads
    tags = possible.sum(axis=1).sort_values(ascending=False, kind="stable").index
    tags = tags[[bool(many.loc[tag].any()) for tag in tags]]
    shares = [
        (count / possible / (count.sum(axis=None) / possible.sum(axis=None)))
        .where(many)
        .reindex(index=tags, columns=tags)
        for count in counts
    ]
    scale = Scale(
        "share chosen of these pairs / of all pairs (grey: few pairs)",
        high=float(np.nanmax([share.to_numpy(np.float64) for share in shares])),
    )
    names = [token_label(str(tag).lower()) for tag in tags]
    panels = [
        (title, share.set_axis(names)) for title, share in zip(("entmax", "predicted by clusters"), shares, strict=True)
    ]
    beside = _NAMES + 0.15  # names of tags, and what they are of
    axis = "part of speech of the key", "part of speech of the query"
    headline = f"Parts of speech that attend to each other, {pairs['stack'].iloc[0]}"
    return _share_maps(headline, panels, scale, axis, beside, beside)


def _share_maps(
    headline: str,
    panels: Sequence[tuple[str, pd.DataFrame]],
    scale: Scale,
    axis: tuple[str, str],
    left: float,
    below: float,
    names: float = 0.0,
) -> Figure:
    """Draws shares of tags with the title of each panel, two abreast, in a column one below the other; NaN is grey.

    Args:
        headline: of the figure.
        panels: a title and shares each, rows by tags.
        scale: of all.
        axis: what stands along the tags and beside the first rows.
        left: inches to the left of the first panel.
        below: inches below each.
        names: inches below the last ones for names of tags, which then the others do without.
    """
    abreast = 1 if style.in_column() else 2
    lines, inside = len(panels) // abreast, len(panels[0][1]) * _ROW
    slot = _TITLE + inside + below
    width, height = style.page_width(), _CLUSTERS_TOP + lines * slot + names
    across = (width - left - BAR_SLOT - 0.1) / abreast - _GAP
    figure = style.new_figure(width, height)
    style.headline(figure, headline)
    for number, (title, shares) in enumerate(panels):
        line, column = divmod(number, abreast)
        corner = left + column * (across + _GAP), height - _CLUSTERS_TOP - line * slot - _TITLE - inside
        axes = figure.add_axes((corner[0] / width, corner[1] / height, across / width, inside / height))
        style.dress(axes, axis[0], "" if column else axis[1])
        axes.set_facecolor(style.MISSING)
        cells, (low, high) = np.ma.masked_invalid(shares.to_numpy(np.float64)), (scale.low, scale.high)
        axes.pcolormesh(cells, cmap=scale.map, vmin=low, vmax=high, edgecolors="white", linewidth=0.3)
        axes.invert_yaxis()
        rows, columns = (np.arange(count) + 0.5 for count in shares.shape)
        tags = [token_label(str(tag).lower()) for tag in shares.columns]
        axes.set_xticks(columns, tags, rotation=90, fontsize=style.TICK_SIZE, fontfamily=FAMILY)
        axes.set_yticks(rows, shares.index.astype(str), fontsize=style.TICK_SIZE)
        axes.tick_params(length=0)
        style.heading(axes, title, across)
        if column:
            axes.set_yticklabels([])
        if names and line < lines - 1:
            axes.set_xticklabels([])
    add_bar(figure, scale, BAR_SLOT, _CLUSTERS_TOP + _TITLE)
    return figure


def example_maps(examples: pd.DataFrame) -> Figure | None:
    """Heads on a sentence: where entmax looks, what is predicted, and where it looks over the prediction.

    Args:
        examples: rows of `examples.csv` of one stack.

    Returns:
        The figure, or None without rows.
    """
    if examples.empty:
        return None
    maps, titles = [], []
    for _, rows in examples.groupby(KEY_COLUMNS, sort=False):
        first = rows.iloc[0]
        reach = ""  # of older runs, whose examples.csv does not have it
        if "recall" in first and not np.isnan(first["recall"]):
            reach = f": recall {first['recall']:.2f}, sparsity {first['sparsity']:.2f}"
        titles += [f"{head_name(first)}: all positions", f"predicted (dark){reach}", "predicted positions alone"]
        for column in ("weight", "predicted", "restricted"):
            matrix = rows.pivot_table(index="query", columns="key", values=column)
            maps.append(matrix.to_numpy(np.float64))
    queries, keys = (
        examples.drop_duplicates(side).sort_values(side)[f"{side}_token"].astype(str).tolist()
        for side in ("query", "key")
    )
    title = f"Attention over predicted positions, method {examples['method'].iloc[0]}"
    return draw_blocks([MapBlock(np.stack(maps), queries, keys, titles)], title, across=3)
