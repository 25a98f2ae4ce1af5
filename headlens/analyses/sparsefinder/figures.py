"""The figures of `headlens sparsefinder` (Treviso et al. 2022): Pareto curves, heads, what clusters hold, examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.errors import counted
from headlens.heads import KEY_COLUMNS
from headlens.learning.alphas_figure import ALPHAS, alpha_histograms
from headlens.maps.map_figures import MapBlock, draw_blocks
from headlens.pages.command_report import Figures
from headlens.plots import style
from headlens.plots.axis_labels import font_family, token_label
from headlens.plots.cell_drawing import Scale, bar_beside, colour_cells
from headlens.plots.curves import (
    VALUES,
    draw_chance,
    draw_intervals,
    draw_level,
    draw_same_answers,
    examples_text,
    legend_below,
)
from headlens.plots.curves import panels as curve_panels
from headlens.plots.head_grid import float_column, has_numbers, head_name
from headlens.plots.heatmaps import paired_maps
from headlens.tables.sparsefinder_tables import GOLD, SPARSE_EXAMPLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SPECIAL = "special"  # what special tokens have in the place of a part of speech
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
# What the parameter of the methods is called whose heads are drawn.
_PARAMETERS = {"distance": "threshold", "bucket": "buckets", "cluster": "clusters"}
# inches
_PANEL, _ROW = 2.4, 0.15
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
    about = _measured(tables.get("pareto", tables.get("heads", pd.DataFrame())))
    if "pareto" in tables:
        points, examples = tables["pareto"], examples_text(tables.get("metrics", tables["pareto"]))
        few = "areas" in tables and not has_numbers(tables["areas"].query("quality == 'recall'"), "ci_low")
        by_stack = points[points["head"].isna()].groupby("stack", sort=False)
        for number, (stack, rows) in enumerate(by_stack):
            name = f"pareto_{stack}" if number else "pareto"
            yield name, pareto_curves(rows, "all" if len(by_stack) == 1 else str(stack), examples, few=few)
    if "heads" in tables:
        yield "heads", sparse_heads(tables["heads"], about)
        if "clusters" in tables:
            yield "clusters", cluster_pictures(tables["clusters"], tables["heads"], about)
    if "pos_pairs" in tables:
        for number, (stack, rows) in enumerate(tables["pos_pairs"].groupby("stack", sort=False)):
            yield f"pos_pairs_{stack}" if number else "pos_pairs", pos_pair_maps(rows, about)
    if "examples" in tables:
        by_stack = tables["examples"].groupby("stack", sort=False)
        for stack, rows in by_stack:
            yield "examples" if len(by_stack) == 1 else f"examples_{stack}", example_maps(rows, about)
    if ALPHAS in tables:
        yield ALPHAS, alpha_histograms(tables[ALPHAS])


def pareto_curves(points: pd.DataFrame, stack: str, examples: str = "", *, few: bool = False) -> Figure | None:
    """Recall over sparsity, the best points of each method; beside it, where it was tried, the metric of a task.

    Args:
        points: rows of `pareto.csv` over all heads of a stack, or of all stacks.
        stack: which stack that is, or `all`.
        examples: of how many the task is, see `examples_text`.
        few: whether recall is that of too few sentences for intervals, which is told.

    Returns:
        The figure, or None without points.
    """
    gold, methods = (points[same] for same in (points["method"] == GOLD, points["method"] != GOLD))
    curves, tried = methods[methods["on_curve"].astype(bool)], methods[methods["value"].notna()]
    if curves.empty:
        return None
    where = "all heads" if stack == "all" else f"heads of the {stack} stack"
    where += ", too few sentences for intervals" * few
    panels = [("recall", "sparsity", "recall", where, curves)]
    if len(tried):
        metric, task = str(tried["metric"].iloc[0]), str(tried["task"].iloc[0])
        label = f"{_METRICS.get(metric, metric)} {_TASKS.get(task, f'on {task}')}"
        panels.append(("value", "task_sparsity", label, f"the task{examples}", tried))
    across = 1 if style.in_column() else len(panels)
    shown = "recall, task and sparsity" if len(panels) > 1 else "recall and sparsity"
    width = min(style.page_width(), style.FULL_WIDTH * across / 2)
    title = _titled(f"Predicted attention: {shown}", _measured(points))
    figure, drawn = curve_panels(title, [words for *_, words, _ in panels], width, across)
    for axes, (column, place, label, _, rows) in zip(drawn, panels, strict=True):
        style.dress(axes, "sparsity", style.one_line(label, _PANEL, style.LABEL_SIZE))
        _draw_methods(axes, rows, place, column)
        faint: dict[str, Any] = {"color": style.FAINT, "linewidth": 0.8, "zorder": 1}
        for sparsity in gold[place].dropna():
            axes.axvline(sparsity, linestyle="-.", label="sparsity of entmax", **faint)
        if column == "recall":
            axes.set_ylim(0, 1.03)
            axes.plot([0, 1], [1, 0], label="recall of random graphs", **faint)
        else:
            draw_level(axes, gold, "entmax itself")
            for rows_of_task in (gold, rows):
                draw_same_answers(axes, rows_of_task[place].to_numpy(np.float64), rows_of_task)
            known = pd.concat([gold, rows])[list(VALUES)].to_numpy(np.float64)
            low, high = np.nanmin(known), np.nanmax(known)
            if high - low < _LEAST_HEIGHT:  # the metric is the same everywhere, but for rounding
                bottom = max((low + high - _LEAST_HEIGHT) / 2, -0.05 * _LEAST_HEIGHT if low >= 0 else -np.inf)
                axes.set_ylim(bottom, bottom + _LEAST_HEIGHT)
            draw_chance(axes, float(next(iter(float_column(gold, "chance")), np.nan)))
    legend_below(figure, drawn)
    style.fit_height(figure, drawn[::across], _PANEL * len(drawn[::across]))
    return figure


def _measured(rows: pd.DataFrame) -> str:
    """The models of a table, and what is said of their attention if that was switched."""
    return ", ".join(
        str(name) for column in ("model", "attention") if column in rows for name in rows[column].dropna().unique()
    )


def _titled(title: str, about: str) -> str:
    return "\n".join(filter(None, [title, about]))


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


def sparse_heads(heads: pd.DataFrame, about: str = "") -> Figure | None:
    """How sparse every head is, and how well its own best method of Sparsefinder predicts that.

    Args:
        heads: rows of `heads.csv`.
        about: last line of the title, here and below: the model, and its attention if that was switched.

    Returns:
        The figure, or None when nothing was measured.
    """
    columns = [name for name in ("area_distance", "area_bucket", "area_cluster") if name in heads]
    # (area - 1/2) as a share of that of a method that finds everything, s / 2
    areas = heads[columns].apply(pd.to_numeric, errors="coerce")
    predicted = (2 * areas.max(axis=1) - 1) / heads["sparsity"].where(heads["sparsity"] >= _ALL_BUT_DENSE)
    titles = {"sparsity": "sparsity of entmax", "predicted": "predicted by its best of distance, buckets, clusters"}
    scales = [Scale("share of pairs without weight"), Scale("normalised area under the curve", colours="cividis")]
    title = _titled("Sparsity of attention heads, and how predictable it is", about)
    return paired_maps(heads.assign(predicted=predicted), titles, scales, title)


def cluster_pictures(clusters: pd.DataFrame, heads: pd.DataFrame, about: str = "") -> Figure | None:
    """How often each part of speech is among the queries and the keys of each cluster.

    Three heads of a model, those whose clusters tell most about parts of speech, a row of panels each.

    Args:
        clusters: rows of `clusters.csv`.
        heads: rows of `heads.csv`, for `information`.
        about: last line of the title.

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
        both = "clusters of both sides explain"
        told = f"{both} {100 * row['information']:.0f} % of the entropy of parts of speech"
        for side, title in {"query": f"{head_name(row)}: queries ({told})", "key": "keys"}.items():
            key = (row["model"], *(row[name] for name in KEY_COLUMNS), side)
            rows = pd.MultiIndex.from_tuples([(*key, cluster) for cluster in numbers])
            panels.append((title, shares.reindex(index=rows, columns=tags).set_axis(numbers)))
    scale, axis = Scale(f"share of the cluster (grey: fewer than {_FEWEST_TOKENS} tokens)"), ("", "cluster")
    return _share_maps(_titled("Parts of speech in clusters", about), panels, scale, axis, shared=True)


def pos_pair_maps(pairs: pd.DataFrame, about: str = "") -> Figure | None:
    """Which parts of speech attend to each other: entmax itself, and the graph that is predicted, on one scale.

    The share of the pairs of two tags that are in a graph, as a multiple of that of all pairs, special tokens left out.

    Args:
        pairs: rows of `pos_pairs.csv` of one stack; counts of its heads are added up.
        about: last line of the title.

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
    axis = "part of speech of the key", "part of speech of the query"
    headline = f"Parts of speech that attend to each other, {pairs['stack'].iloc[0]}"
    return _share_maps(_titled(headline, about), panels, scale, axis, shared=False)


def _share_maps(
    headline: str, panels: Sequence[tuple[str, pd.DataFrame]], scale: Scale, axis: tuple[str, str], *, shared: bool
) -> Figure:
    """Draws shares of tags with the title of each panel, two abreast, in a column one below the other; NaN is grey.

    Args:
        headline: of the figure.
        panels: a title and shares each, rows by tags.
        scale: of all.
        axis: what stands along the tags and beside the first rows.
        shared: whether the names of tags stand below the last ones only.
    """
    abreast = 1 if style.in_column() else 2
    lines, inside, width = len(panels) // abreast, len(panels[0][1]) * _ROW, style.page_width()
    figure = style.constrained_figure(width, lines * (inside + 1) + 1, headline)
    grid = figure.subplots(lines, abreast, squeeze=False)
    bar_beside(figure, scale, grid, lines * inside)
    for number, (axes, (title, shares)) in enumerate(zip(grid.flat, panels, strict=True)):
        is_first, is_last = number % abreast == 0, number + abreast >= len(panels)
        style.dress(axes, axis[0], axis[1] if is_first else "")
        colour_cells(axes, shares.to_numpy(np.float64), scale, linewidths=0.3, linecolor="white")
        axes.invert_yaxis()
        tags = [token_label(str(tag).lower()) for tag in shares.columns] if is_last or not shared else []
        axes.set_xticks(
            np.arange(len(tags)) + 0.5, tags, rotation=90, fontsize=style.TICK_SIZE, fontfamily=font_family()
        )
        rows = shares.index.astype(str).tolist() if is_first else list[str]()
        axes.set_yticks(np.arange(len(rows)) + 0.5, rows, fontsize=style.TICK_SIZE)
        axes.tick_params(length=0)
        style.heading(axes, title, width / abreast - 0.8)
    style.fit_height(figure, grid[:, 0], lines * inside)
    return figure


def example_maps(examples: pd.DataFrame, about: str = "") -> Figure | None:
    """Heads on a sentence: where entmax looks, what is predicted, and where it looks over the prediction.

    Args:
        examples: rows of `examples.csv` of one stack.
        about: last line of the title.

    Returns:
        The figure, or None without rows.
    """
    if examples.empty:
        return None
    maps, titles, dense = [], [], list[str]()
    for _, rows in examples.groupby(KEY_COLUMNS, sort=False):
        first = rows.iloc[0]
        shown = f"predicted (dark): {_point_text(first)}"
        if "recall" in first and not np.isnan(first["recall"]):  # not of older runs
            shown += f"; over all sentences: recall {first['recall']:.2f}, sparsity {first['sparsity']:.2f}"
            dense += [head_name(first)] * bool(first["sparsity"] < SPARSE_EXAMPLE)
        titles += [f"{head_name(first)}: all positions", shown, "predicted positions alone"]
        for column in ("weight", "predicted", "restricted"):
            matrix = rows.pivot_table(index="query", columns="key", values=column)
            maps.append(matrix.to_numpy(np.float64))
    queries, keys = (
        examples.drop_duplicates(side).sort_values(side)[f"{side}_token"].astype(str).tolist()
        for side in ("query", "key")
    )
    title = f"Attention over predicted positions, method {examples['method'].iloc[0]}"
    if dense:
        title += f"\n{', '.join(dense)}: no setting predicts at most half of the pairs; shown is the sparsest tried"
    title = _titled(title, about)
    return draw_blocks([MapBlock(np.stack(maps), queries, keys, titles)], title, across=3)


def _point_text(row: pd.Series) -> str:
    """The method of a head that is drawn with its parameters, as far as known: older runs have fewer columns."""
    parts = [str(row["method"])]
    known = row.dropna()
    if "value_of_parameter" in known and row["method"] in _PARAMETERS:
        parts.append(f"{_PARAMETERS[row['method']]} {row['value_of_parameter']:g}")
    if "window" in known:
        parts.append(window_text(float(row["window"])))
    if known.get("global_tokens", 0) > 0:
        parts.append(counted(int(row["global_tokens"]), "global token"))
    return ", ".join(parts)


def window_text(window: float) -> str:
    """The window of a point in words; NaN where it is not known."""
    if np.isnan(window):
        return "unknown window"
    return f"window of {counted(int(window), 'key')}" if window > 0 else "no window"
