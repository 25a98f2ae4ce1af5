"""The figures of `headlens sparsefinder` (Treviso et al. 2022): Pareto curves, heads, what clusters hold, examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.analyses.attend.figures import attention_maps
from headlens.analyses.sparsefinder.cluster_figure import cluster_pictures
from headlens.heads import KEY_COLUMNS, STACKS, Head
from headlens.pages.command_report import Caption, CommandReport, Figures
from headlens.pages.formatting import value_text
from headlens.pages.head_cards import HeadFacts, HeadSeries
from headlens.pages.page_tables import Cell, PageTable, number_text, page_table
from headlens.plots.cell_drawing import Scale
from headlens.plots.curves import draw_intervals, draw_level, legend_below
from headlens.plots.heatmaps import paired_maps
from headlens.plots.style import (
    BLUE,
    FAINT,
    FULL_WIDTH,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    dress,
    heading,
    headline,
    in_column,
    new_figure,
    page_width,
)
from headlens.runs.folder import RunFolder
from headlens.runs.reading import Columns, RecordedRun

# Sparsefinder's own are solid, what it is compared with dashed.
LOOKS = {
    "distance": (VERMILION, "-", "Sparsefinder, distance"),
    "bucket": (ORANGE, "-", "Sparsefinder, buckets"),
    "cluster": (PURPLE, "-", "Sparsefinder, clusters"),
    "routing": (BLUE, "--", "clusters as in Routing"),
    "lsh": (SKY, "--", "hashes as in Reformer"),
    "bigbird": (GREEN, "--", "BigBird"),
    "longformer": (YELLOW, "--", "Longformer"),
    "random": (INK, ":", "random and window"),
    "window": (FAINT, ":", "window"),
}
# inches
_TOP, _PANEL, _WORDS = 0.35, 2.4, 0.65
_LEGEND = {(1, 1): (6, 1.1), (1, 2): (3, 0.6), (2, 1): (6, 1.1)}  # lines and height by how panels stand


GOLD = "entmax"  # what attention itself leaves, among the methods of pareto.csv
# How axes call what is measured
_METRICS = {"bleu": "BLEU", "chrf": "chrF"}
_TASKS = {
    "mlm": "of masked words",
    "translation": "of translations",
    "translation-loss": "of next words of translations",
}
_LEAST_HEIGHT = 0.01  # of an axis of a metric
_ALL_BUT_DENSE = 0.01  # sparsities below leave nothing to predict


def sparsefinder_figures(tables: Mapping[str, pd.DataFrame]) -> Figures:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: `pareto`, `heads`, `clusters` and `examples`, as far as there.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    if "pareto" in tables:
        points = tables["pareto"]
        points = points[points["head"].isna()]
        stacks = list(dict.fromkeys(points["stack"]))
        for stack in stacks:
            name = "pareto" if stack == stacks[0] else f"pareto_{stack}"
            yield name, pareto_curves(points[points["stack"] == stack], stack)
    if "heads" in tables:
        yield "heads", sparse_heads(tables["heads"])
        if "clusters" in tables:
            yield "clusters", cluster_pictures(tables["clusters"], tables["heads"])
    if "examples" in tables:
        stacks = list(dict.fromkeys(tables["examples"]["stack"]))
        for stack in stacks:
            own = tables["examples"][tables["examples"]["stack"] == stack]
            yield "examples" if len(stacks) == 1 else f"examples_{stack}", example_maps(own)


def write_sparsefinder(run: RunFolder, tables: Mapping[str, pd.DataFrame], *, figures: bool = True) -> None:
    """Write every table as CSV, then, if wanted, every figure.

    Args:
        run: the folder, started.
        tables: by name.
        figures: whether to draw.
    """
    for name, frame in tables.items():
        run.table(name, frame)
    for name, figure in sparsefinder_figures(tables) if figures else ():
        run.figure(name, figure)


def pareto_curves(points: pd.DataFrame, stack: str) -> Figure | None:
    """Recall over sparsity, the best points of each method; beside it, where it was tried, the metric of a task.

    Args:
        points: rows of `pareto.csv` over all heads of a stack, or of all stacks.
        stack: which.

    Returns:
        The figure, or None without points.
    """
    curves = points[points["on_curve"].astype(bool) & (points["method"] != GOLD)]
    gold = points[points["method"] == GOLD]
    if curves.empty:
        return None
    tried = points[points["value"].notna() & (points["method"] != GOLD)]
    panels = [("recall", "recall", curves)]
    if len(tried):
        panels.append(("value", _asked(str(tried["metric"].iloc[0]), str(tried["task"].iloc[0])), tried))
    across = 1 if in_column() else len(panels)
    stacked = len(panels) // across
    width = min(page_width(), FULL_WIDTH * across / 2)
    lines, below = _LEGEND[stacked, across]
    height = _TOP + _PANEL + _WORDS + below + (stacked - 1) * (_PANEL + _WORDS)
    figure = new_figure(width, height)
    headline(figure, "Predicted attention: what is found, and how sparse it is")
    drawn = []
    for number, (column, label, rows) in enumerate(panels):
        line, place = divmod(number, across)
        bottom = below + 0.4 + (stacked - 1 - line) * (_PANEL + _WORDS)
        axes = figure.add_axes(((place + 0.14) / across, bottom / height, 0.8 / across, _PANEL / height))
        dress(axes, "sparsity", str(label))
        _panel(axes, rows, column)
        for sparsity in gold["sparsity"] if column == "recall" else gold["task_sparsity"].dropna():
            axes.axvline(sparsity, color=FAINT, linewidth=0.8, linestyle="-.", label="sparsity of entmax", zorder=1)
        if column == "value":
            draw_level(axes, gold, "entmax itself")
            low, high = axes.get_ylim()
            if high - low < _LEAST_HEIGHT:  # the metric is the same everywhere, but for rounding
                axes.set_ylim((low + high - _LEAST_HEIGHT) / 2, (low + high + _LEAST_HEIGHT) / 2)
        else:
            axes.plot([0, 1], [1, 0], color=FAINT, linewidth=0.8, label="by chance", zorder=1)
        where = "all heads" if stack in {"all", "encoder"} else f"heads of the {stack} stack"
        heading(axes, where if column == "recall" else "the task", 3.0)
        drawn.append(axes)
    legend_below(figure, drawn, lines)
    return figure


def _asked(metric: str, task: str) -> str:
    """Describes a metric and the task that it measures in words, as the label of an axis."""
    return f"{_METRICS.get(metric, metric)} {_TASKS.get(task, f'on {task}')}"


def _panel(axes: Axes, curves: pd.DataFrame, column: str) -> None:
    for method, (colour, line, label) in LOOKS.items():
        place = "task_sparsity" if column == "value" else "sparsity"
        own = curves[(curves["method"] == method) & curves[column].notna()].sort_values(place)
        if len(own):
            x, y = own[place].to_numpy(np.float64), own[column].to_numpy(np.float64)
            axes.plot(x, y, line, color=colour, marker="o", markersize=2, linewidth=1, label=label)
            if column == "value":
                draw_intervals(axes, x, own, colour)
    axes.set_xlim(0, 1.02)
    if column == "recall":
        axes.set_ylim(0, 1.03)


def method_areas(areas: pd.DataFrame) -> list[tuple[tuple[str, str], list[dict[str, str]]]]:
    """The methods of every model and stack in the order of the area under recall, as a short table.

    Args:
        areas: rows of `areas.csv`.
    """
    found = []
    for key, own in areas.groupby(["model", "stack"], sort=False):
        model, stack = key
        by_quality = {
            str(quality): {str(row["method"]): row for row in rows.to_dict("records")}
            for quality, rows in own.sort_values("area", ascending=False, kind="stable").groupby("quality", sort=False)
        }
        recall = by_quality.pop("recall")
        rows = [
            {
                "method": _said(method),
                "area": f"{row['area']:.3f}",
                "of the possible": _share(row),
                "recall at sparsity 0.9": f"{row['at_90']:.3f}",
                **{
                    f"{quality}: of the possible": _share(tried[method]) if method in tried else ""
                    for quality, tried in by_quality.items()
                },
            }
            for method, row in recall.items()
        ]
        found.append(((str(model), str(stack)), rows))
    return found


def _share(row: Mapping[Any, Any]) -> str:
    """The share of the possible and its interval, which entmax itself does not need."""
    value, low, high = (float(row[name]) for name in ("share", "share_ci_low", "share_ci_high"))
    return value_text(value, np.nan if row["method"] == GOLD else low, high)


def _said(method: str) -> str:
    return LOOKS[method][2] if method in LOOKS else "entmax itself"


def sparse_heads(heads: pd.DataFrame) -> Figure | None:
    """How sparse every head is, and how well its own best method of Sparsefinder predicts that.

    Args:
        heads: rows of `heads.csv`.

    Returns:
        The figure, or None when nothing was measured.
    """
    own = [name for name in ("area_distance", "area_bucket", "area_cluster") if name in heads]
    # (area - 1/2) as a share of that of a method that finds everything, s / 2
    known = (2 * heads[own].max(axis=1) - 1) / heads["sparsity"].where(heads["sparsity"] >= _ALL_BUT_DENSE)
    shown = heads.assign(predicted=known)
    columns = {"sparsity": "sparsity of entmax", "predicted": "how well it is predicted"}
    scales = [Scale("share of pairs without weight"), Scale("share of the possible", colours="cividis")]
    return paired_maps(shown, columns, scales, "Sparse heads")


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
    for _, own in examples.groupby(KEY_COLUMNS, sort=False):
        first = own.iloc[0]
        name = str(Head(first["stack"], int(first["layer"]), int(first["head"])))
        for column, words in (("weight", "entmax"), ("predicted", "predicted"), ("restricted", "over the prediction")):
            maps.append(own.pivot_table(index="query", columns="key", values=column).to_numpy(np.float64))
            titles.append({"weight": f"{name}: {words}", "predicted": f"{words}{_reach(first)}"}.get(column, words))
    queries = examples.drop_duplicates("query").sort_values("query")["query_token"].astype(str).tolist()
    keys = examples.drop_duplicates("key").sort_values("key")["key_token"].astype(str).tolist()
    title = f"Predicted heads, by {examples['method'].iloc[0]}"
    return attention_maps(np.stack(maps), queries, keys, titles, title, across=3)


def _reach(row: pd.Series[Any]) -> str:
    """What a head's graphs find and leave out, where `examples.csv` says so; those of older runs do not."""
    if "recall" not in row or np.isnan(row["recall"]):
        return ""
    return f": recall {row['recall']:.2f}, sparsity {row['sparsity']:.2f}"


def _draw(run: RecordedRun) -> Figures:
    return sparsefinder_figures(run.tables)


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    records = [
        {
            "folder": run.folder.name,
            "stack": row["stack"],
            "method": _said(str(row["method"])),
            "of": row["quality"],
            "area": Cell(number_text(row["area"]), repr(row["area"])),
            "of the possible": Cell(_share(row), repr(row["share"])),
            "at sparsity 0.9": row["at_90"],
        }
        for run in runs
        if "areas" in run.tables
        for row in run.tables["areas"].to_dict("records")
    ]
    about = (
        "The area over sparsities from 0 to 1 under the line around each method's points and the graphs of all pairs "
        "and of none, of recall and of the task's metric. Of what lies between those two alone and entmax itself, a "
        "method has a share: 0 by chance, 1 if it finds everything and nothing else; 95 % intervals are over "
        "sentences, of a metric over the task's examples."
    )
    return [page_table("How well attention is predicted", records, about)] if records else []


def _heads(run: RecordedRun) -> HeadFacts:
    heads = run.tables.get("heads")
    if heads is None:
        return HeadFacts()
    series = [
        HeadSeries(
            "sparsity", "sparsity of entmax", "Share of the pairs that entmax leaves without weight.", heads, "sparsity"
        )
    ]
    for name, (_, _, title) in LOOKS.items():
        if f"area_{name}" in heads:
            about = "Area under recall over sparsity: 0.5 by chance, (1 + sparsity) / 2 if all is known."
            series.append(HeadSeries(f"area {name}", f"predicted by {title}", about, heads, f"area_{name}"))
    return HeadFacts(series)


def _findings(run: RecordedRun) -> list[str]:
    if "areas" not in run.tables:
        return []
    found = []
    areas = run.tables["areas"]
    for (model, stack), rows in areas[areas["quality"] == "recall"].groupby(["model", "stack"], sort=False):
        gold, tried = rows[rows["method"] == GOLD], rows[rows["method"] != GOLD].dropna(subset=["area"])
        if gold.empty or tried.empty:
            continue
        ends = np.argmax(tried["area"]), np.argmin(tried["area"])
        best, worst = (tried.iloc[int(place)] for place in ends)
        where = model if stack == "all" else f"{model}, {stack}"
        # The area of entmax itself is (1 + sparsity) / 2.
        sparsity = 2 * float(gold["area"].iloc[0]) - 1
        if tried["share"].isna().all():
            found.append(f"{where}: entmax leaves {sparsity:.1%} of the pairs without weight: nothing to predict.")
            continue
        found.append(
            f"{where}: entmax leaves {sparsity:.1%} of the pairs without weight. Best at predicting "
            f"which is {LOOKS[best['method']][2]} (area under recall and sparsity {float(best['area']):.3f}), worst "
            f"{LOOKS[worst['method']][2]} ({float(worst['area']):.3f})."
        )
    return found


CAPTIONS = {
    "pareto": Caption(
        "Pareto curves",
        "Every method with all its parameters and windows: the points that no other one of it beats. On the left the "
        "share of the pairs with weight that are found, the mean over sentences and heads; on the right, if a task was "
        "asked, its metric while attention looks only where is predicted, with 95 % intervals, over the sparsity that "
        "attention had meanwhile. Lines join points; areas in tables are under the hull of these, which may lie "
        "above. The upright line is the sparsity of entmax itself, the grey one from 1 to 0 what graphs drawn at "
        "random find.",
    ),
    "heads": Caption(
        "Sparse heads",
        "On the left the share of the pairs of a head that have no weight. On the right how much of that the best of "
        "distance, buckets and clusters knows beforehand, by the area under recall: 0 by chance, 1 for all; grey where "
        "next to nothing is without weight.",
    ),
    "clusters": Caption(
        "What clusters hold",
        "Of the heads whose clusters tell most about parts of speech: how often each part of speech is among the "
        "queries and the keys of each cluster.",
    ),
    "examples": Caption(
        "Predicted heads on a sentence",
        "Rows are heads, named or those of which distance knows most beyond windows and global tokens: where "
        "entmax looks, the pairs that are predicted, and where the head looks if it may look nowhere else. Each is "
        "predicted at the distance that finds most with half of the pairs or fewer; recall and sparsity are the head's "
        "over all sentences held out.",
    ),
}

_SITE = {"model": (), "stack": STACKS}
_METHODS = (GOLD, *LOOKS)
REPORT = CommandReport(
    "sparsefinder",
    tables={
        "pareto": Columns(
            numbers=("recall", "sparsity", "exact", "mass", "value", "ci_low", "ci_high", "task_sparsity"),
            words={"model": (), "stack": ("all", *STACKS), "method": _METHODS, "on_curve": ()},
            identity=("model", *KEY_COLUMNS, "method", "value_of_parameter", "window", "global_tokens"),
        ),
        "heads": Columns(keys=("layer", "head"), numbers=("sparsity",), words=_SITE, identity=("model", *KEY_COLUMNS)),
        "clusters": Columns(
            keys=("layer", "head", "cluster"),
            numbers=("share",),
            words={**_SITE, "side": ("query", "key"), "tag": ()},
            identity=("model", *KEY_COLUMNS, "cluster", "side", "tag"),
        ),
        "examples": Columns(
            keys=("layer", "head", "query", "key"),
            numbers=("weight", "predicted", "restricted"),
            words={**_SITE, "query_token": (), "key_token": ()},
            identity=("model", *KEY_COLUMNS, "query", "key"),
        ),
        "areas": Columns(
            numbers=("area", "ci_low", "ci_high", "share", "share_ci_low", "share_ci_high", "at_90"),
            words={"model": (), "stack": ("all", *STACKS), "method": _METHODS, "quality": ()},
            identity=("model", "stack", "method", "quality"),
        ),
    },
    needed=("pareto", "areas", "heads"),
    figures=_draw,
    captions=CAPTIONS,
    sources={
        "pareto": ("pareto",),
        "heads": ("heads",),
        "clusters": (
            "clusters",
            "heads",
        ),
        "examples": ("examples",),
    },
    overviews=_overviews,
    heads=_heads,
    findings=_findings,
)
