"""The report of `headlens sparsefinder`: how well methods predict, captions of figures, and columns of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.sparsefinder.figures import LOOKS, sparsefinder_figures, window_text
from headlens.errors import counted
from headlens.findings.verdicts import (
    VERDICTS_KEY,
    chosen_text,
    foremost,
    has_no_verdicts,
    known_verdicts,
    not_apart,
    overlap_text,
    taken_away_text,
    tied,
    verdict_cells,
)
from headlens.findings.without_skill import (
    gives_one_answer,
    no_skill_text,
    one_answer_text,
    within_guesses,
)
from headlens.learning.alphas_figure import ALPHAS, CAPTION
from headlens.pages.command_report import Caption, CommandReport
from headlens.pages.formatting import value_text
from headlens.pages.head_cards import HeadFacts, HeadSeries
from headlens.pages.page_tables import Cell, PageTable, difference_cell, number_cell, page_table
from headlens.plots.curves import VALUES, examples_text
from headlens.plots.head_grid import float_column
from headlens.runs.reading import RecordedRun, tables_of
from headlens.tables.every_table import TABLES
from headlens.tables.sparsefinder_tables import GOLD
from headlens.tasks.task_options import LOWER_IS_BETTER

_NORMALISED = ("share", "share_ci_low", "share_ci_high")
_NO_ZEROS = 0.0005  # share of pairs
_FEW_POINTS = 3  # fewer of them do not show the form of a curve of the task


def method_areas(areas: pd.DataFrame) -> list[tuple[tuple[str, str], list[dict[str, str]]]]:
    """Lists the methods of every model and stack in the order of the area under recall, as a short table.

    Args:
        areas: rows of `areas.csv`.
    """
    tables = []
    for (model, stack), rows in areas.groupby(["model", "stack"], sort=False):
        ordered = rows.sort_values("area", ascending=False, kind="stable")
        shares = {(row["quality"], row["method"]): _share(row) for row in ordered.to_dict("records")}
        others = [quality for quality in ordered["quality"].unique() if quality != "recall"]
        records = [
            {
                "method": _name(row["method"]),
                "area": f"{row['area']:.3f}",
                "normalised area": _share(row),
                "recall at sparsity 0.9": value_text(row["at_90"], np.nan, np.nan),
                **{f"{quality}: normalised area": shares.get((quality, row["method"]), "") for quality in others},
            }
            for row in ordered[ordered["quality"] == "recall"].to_dict("records")
        ]
        tables.append(((str(model), str(stack)), records))
    return tables


def _share(row: Mapping[Any, Any]) -> str:
    """Formats the normalised area of a method with the ends of its interval, and of how many points where few."""
    text = _with_ends(row, *_NORMALISED)
    of_few = row["quality"] != "recall" and row["method"] != GOLD and row.get("points", np.nan) < _FEW_POINTS
    return f"{text} from {counted(int(row['points']), 'point')}" if of_few and np.isfinite(row["share"]) else text


def _with_ends(row: Mapping[Any, Any], *names: str) -> str:
    """Formats what the first of some columns holds, between the ends of an interval that the other two hold."""
    return value_text(*(float(row[name]) for name in names))


def _name(method: str) -> str:
    """The name of a method in tables, of entmax too."""
    return LOOKS[method][2] if method in LOOKS else "entmax itself"


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    records = [
        {
            "folder": run.folder.name,
            "stack": row["stack"],
            "method": _name(str(row["method"])),
            "quality": row["quality"],
            "area": Cell(_with_ends(row, "area", "ci_low", "ci_high"), repr(row["area"])),
            "normalised area": Cell(_share(row), repr(row["share"])),
            "metric at sparsity 0.9": number_cell(row["at_90"]),
        }
        for run in runs
        if "areas" in run.tables
        for row in run.tables["areas"].to_dict("records")
    ]
    about = (
        "The area under the convex hull of each method's points, the full graph and the empty graph, against sparsity, "
        "for recall and for the task's metric. The normalised area says how far a method gets from the straight line "
        "between full attention and the empty graph (0) to entmax itself (1: it finds everything and nothing else). Of "
        "recall, this line is what random graphs have; of a task's metric, it is no chance level, as a model without "
        "attention may be below what guesses give. 95 % intervals are over sentences, and "
        "for a metric over the task's examples; the hull takes the best points, which chance alone can bring above 1. "
        "Methods whose points all are denser than 0.9 have no number there."
    )
    tables = [page_table("How well attention is predicted", records, about)] if records else []
    tasks = [
        {
            "folder": run.folder.name,
            "stack": row["stack"],
            "graph": _graph(row),
            "sparsity on the task": row["task_sparsity"],
            "task": row["task"],
            "metric": row["metric"],
            **{name: row[name] for name in VALUES},
            "difference from entmax itself": difference_cell(row),
            **verdict_cells(row),
        }
        for run, rows in tables_of(runs, "metrics")
        if "verdict" in rows
        for row in rows.to_dict("records")
    ]
    about = (
        "The task with attention restricted to predicted graphs, with 95 % intervals. Differences from entmax itself "
        f"are paired by example; verdicts are corrected for the number of graphs (Holm). {VERDICTS_KEY}"
    )
    return tables + ([page_table("A task over predicted graphs", tasks, about)] if tasks else [])


def _graph(row: Mapping[Any, Any]) -> str:
    """The method of a point with its parameters, in words."""
    if row["method"] == GOLD:
        return _name(GOLD)
    parts = [_name(str(row["method"]))]
    if row["method"] != "window" and np.isfinite(float(row["value_of_parameter"])):
        parts.append(f"{str(row['parameter']).replace('_', ' ')} {float(row['value_of_parameter']):g}")
    parts.append(window_text(float(row["window"])))
    return ", ".join(parts)


def _heads(run: RecordedRun) -> HeadFacts:
    heads = run.tables.get("heads")
    if heads is None:
        return HeadFacts()
    about = "Share of the pairs that entmax leaves without weight."
    series = [HeadSeries("sparsity", "sparsity of entmax", about, heads, "sparsity", unit="share of pairs", high=1.0)]
    about = "Area under the recall-sparsity curve: 0.5 by chance, (1 + sparsity) / 2 for perfect prediction."
    for method, (_, _, title) in LOOKS.items():
        if f"area_{method}" in heads:
            series.append(
                HeadSeries(f"area {method}", f"predicted by {title}", about, heads, f"area_{method}", high=1.0)
            )
    return HeadFacts(series)


def task_sentences(metrics: pd.DataFrame) -> list[str]:
    """Sentences on the task over the sparsest graphs that lose less than the margin, or over others where none does.

    They are of its main metric, as everywhere, also where the figure shows one of which more is better.

    Args:
        metrics: rows of `metrics.csv`.
    """
    sentences = []
    for model, rows in _of_metrics(metrics)[0].groupby("model", sort=False):
        whole = rows[rows["method"] == GOLD]
        constant = len(whole) > 0 and all(map(gives_one_answer, whole.to_dict("records")))
        # Losses are tested by example, which leaves no trace in the table but this.
        of_loss = str(rows["metric"].iloc[0]) in LOWER_IS_BETTER
        if has_no_verdicts(rows) and (constant or of_loss or within_guesses(whole)):
            n = int(np.nanmax([0, *float_column(rows, "n")]))
            told = one_answer_text if constant else no_skill_text
            text = told(str(rows["metric"].iloc[0]), n, "evaluation examples", "predicted graphs")
            sentences.append(f"{model}: {text}")
        known = known_verdicts(rows)
        # Keys that are drawn at random, once, are the control.
        chosen = known[known["method"] != "random"]
        if chosen.empty:
            continue
        row = foremost(chosen, "task_sparsity")
        pairs = f"{row['task_sparsity']:.1%} of the pairs left out ({_graph(row)}){tied(row['alike'], 'graphs')}"
        drawn_at_random = (known["method"] == "random") & (known["verdict"] == row["verdict"])
        only = "not random" * bool(drawn_at_random.any())
        text = chosen_text(row, known, "graphs", most="sparsest", least="densest", only=only)
        sentences.append(f"{model}: {text}{taken_away_text(row, pairs, len(known), 'graphs')}")
    return sentences


def _of_metrics(metrics: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of the main metric, and of the one that is drawn if that is another: the first that grows with skill."""
    main, drawn = metrics["metric"].iloc[:1], metrics["metric"][~metrics["metric"].isin(LOWER_IS_BETTER)].iloc[:1]
    return [metrics[metrics["metric"] == name] for name in dict.fromkeys([*main, *drawn])] or [metrics]


def task_tables(metrics: pd.DataFrame) -> list[tuple[str, list[dict[str, Any]]]]:
    """Lists the graphs that a task was tried with in the order of their sparsity, as a short table of every model.

    Args:
        metrics: rows of `metrics.csv`.

    Returns:
        Titles and tables.
    """
    return [
        (
            f"{rows['task'].iloc[0]} over predicted graphs, {model}{examples_text(rows)}",
            [
                {
                    "graph": _graph(row),
                    "sparsity on the task": f"{row['task_sparsity']:.3f}",
                    row["metric"]: _with_ends(row, *VALUES),
                    "difference from entmax itself": difference_cell(row).text,
                    "verdict": row["verdict"],
                }
                for row in rows.sort_values("task_sparsity", kind="stable").to_dict("records")
            ],
        )
        for of_metric in _of_metrics(metrics)
        for model, rows in of_metric.groupby("model", sort=False)
    ]


def sparsefinder_findings(tables: Mapping[str, pd.DataFrame], *, few: bool = False) -> list[str]:
    """Sentences on how well the zeros of entmax are predicted, and on the task over predicted graphs.

    Args:
        tables: `areas` and `metrics`, as far as there.
        few: whether recall was measured at few points of each method.
    """
    return [
        *_area_sentences(tables, "Of the few points tried, " * few),
        *(task_sentences(tables["metrics"]) if "metrics" in tables else ()),
    ]


def _area_sentences(tables: Mapping[str, pd.DataFrame], of: str) -> list[str]:
    if "areas" not in tables:
        return []
    sentences = []
    areas = tables["areas"]
    for (model, stack), rows in areas[areas["quality"] == "recall"].groupby(["model", "stack"], sort=False):
        gold, methods = rows[rows["method"] == GOLD], rows[rows["method"] != GOLD].dropna(subset=["area"])
        if gold.empty or methods.empty:
            continue
        where = model if stack == "all" else f"{model}, {stack}"
        # The area of entmax itself is (1 + sparsity) / 2.
        sparsity = 2 * float(gold["area"].iloc[0]) - 1
        sentence = f"{where}: entmax leaves {sparsity:.1%} of the pairs without weight"
        # As many as print as none: methods cannot differ there.
        if methods["share"].isna().all() or sparsity < _NO_ZEROS:
            sentences.append(f"{sentence}: nothing to predict.")
            continue
        methods = methods.reindex(columns=methods.columns.union(list(_NORMALISED))).dropna(subset=["share"])
        best, lowest = (int(place(methods["share"])) for place in (np.argmax, np.argmin))
        names = [LOOKS[method][2] for method in methods["method"]]
        areas_of = [value_text(*row) for row in methods[list(_NORMALISED)].itertuples(index=False)]
        area, beside = f"normalised area under the recall-sparsity curve {areas_of[best]}", _beside(methods, best)
        first = "Among the best is the prediction" if beside else "Best predicted"
        last = f"; lowest is {names[lowest]} ({areas_of[lowest]}{_beside(methods, lowest)})"
        comparison = f"{first} by {names[best]} ({area}{beside}){last}"
        if f"{methods['share'].iloc[best]:.3f}" == f"{methods['share'].iloc[lowest]:.3f}":
            comparison = f"Predicted by {', '.join(names)}{' equally well' if len(methods) > 1 else ''} ({area})"
        comparison = f"{of}{comparison[0].lower()}{comparison[1:]}" if of else comparison
        if not np.isfinite(float_column(methods, "share_ci_low")).any():
            comparison += "; of so few sentences there are no intervals, and no difference is tested"
        sentences.append(f"{sentence}. {comparison}.")
    return sentences


def _beside(methods: pd.DataFrame, place: int) -> str:
    """Which methods are not told apart from one of them: by their intervals, or, without these, as they are printed.

    Args:
        methods: rows of `areas.csv`.
        place: of the one.
    """
    if near := not_apart(methods, place, _NORMALISED):
        return f"; {overlap_text(near, 'methods')}"
    printed = methods["share"].map("{:.3f}".format)
    alike = methods["method"][printed == printed.iloc[place]].drop(methods.index[place])
    return f"; tied with {' and with '.join(LOOKS[method][2] for method in alike)}" if len(alike) else ""


CAPTIONS = {
    "pareto": Caption(
        "Pareto curves",
        "For every method, the points over all its parameters and windows that no other point of the same method "
        "dominates. On the left the share of the pairs with weight that are found, the mean over sentences and heads; "
        "on the right, if there is a task, its metric with attention restricted to the predicted pairs, with 95 % "
        "intervals, against the sparsity of that attention (whether the task needs what a graph leaves out, paired "
        "differences and verdicts in the table tell). Lines join points; the areas in tables are under their "
        "convex hull, which may lie above the lines. The vertical line is the sparsity of entmax itself, the "
        "dotted one the chance level of the task, where it is near; the grey line from 1 to 0 is the recall of "
        "random graphs.",
    ),
    "heads": Caption(
        "Sparse heads",
        "On the left the share of the pairs of a head that have no weight. On the right, how well the best of "
        "distance, buckets and clusters predicts them, by the normalised area under the recall-sparsity "
        "curve: 0 by chance, 1 for perfect prediction; grey where almost all pairs have weight. The method is chosen "
        "for each head on the pairs that it is scored on; a window alone may predict as well, which the table of areas "
        "tells.",
    ),
    "clusters": Caption(
        "Contents of clusters",
        "For the heads whose clusters say most about parts of speech: how often each part of speech is among the "
        "queries and the keys of each cluster. Above each head, the share of the entropy of parts of speech that the "
        "cluster of a token tells: of queries and keys together, without special tokens, corrected for chance. "
        "Grey: clusters of fewer than ten of them.",
    ),
    "pos_pairs": Caption(
        "Parts of speech that attend to each other",
        "Of all pairs of a query and a key of these parts of speech in the sentences held out, those to which entmax "
        "gives weight, and those that are predicted because both are in one cluster; all heads together. Each share is "
        "divided by the same share over all pairs of words: above 1 where two parts of speech attend to each other "
        "more often than words do on average, "
        "however frequent they are. Grey: fewer than 30 pairs.",
    ),
    "examples": Caption(
        "Predicted heads on a sentence",
        "Rows are heads: those asked for, or those for which the method improves most over windows and global tokens. "
        "From left to right: where entmax looks, the predicted pairs, and where the head looks when it is "
        "restricted to them. The method's parameters are those with the highest recall among those that predict at "
        "most half of the pairs or, where the title says that there are none, the sparsest that was tried; recall and "
        "sparsity are for the head over all held-out sentences, not for this one.",
    ),
    ALPHAS: CAPTION,
}

REPORT = CommandReport(
    "sparsefinder",
    tables=TABLES["sparsefinder"],
    needed=("pareto", "areas", "heads"),
    figures=lambda run: sparsefinder_figures(run.tables),
    captions=CAPTIONS,
    sources={**{name: (name,) for name in CAPTIONS}, "clusters": ("clusters", "heads")},
    overviews=_overviews,
    heads=_heads,
    findings=lambda run: sparsefinder_findings(run.tables, few=run.record.get("coarse_grid") is True),
)
