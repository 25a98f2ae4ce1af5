"""Masks as points: the metric under each over the share of the texts that it masks; learned ones as curves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from headlens.plots.curves import draw_intervals
from headlens.plots.head_grid import float_column
from headlens.plots.style import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, TICK_SIZE, VERMILION

WAYS = {"kept": (BLUE, "with the diagonal"), "dropped": (VERMILION, "without it")}
_CURVES = (ORANGE, GREEN, PURPLE, SKY)
# A mask of a sweep of train-dam: the run, and λ.
_LEARNED = re.compile(r"(?P<run>.+?)(?:/masks)?/penalty-(?P<strength>[^/]+?)(?:/mask\.safetensors)?")
_EDGE = 0.08  # of the width that points fill
# The share is that of the texts: a share of 128 tokens says little about a text of ten.
SHARE_LABEL = "masked positions of the texts, %"


def short_names(patterns: Iterable[object]) -> dict[str, str]:
    """Returns a short name for every pattern; for mask files the end of the path, as long as tells them apart."""
    names = list(dict.fromkeys(map(str, patterns)))
    paths = [[part for part in name.split("/") if part not in {"mask.safetensors", "masks"}] for name in names]
    parts = next((n for n in range(1, 9) if len({tuple(path[-n:]) for path in paths}) == len(paths)), 9)
    return {name: "/".join(path[-parts:]) for name, path in zip(names, paths, strict=True)}


def sweeps(patterns: Iterable[object]) -> dict[str, dict[str, str]]:
    """Returns λ by pattern, by the name of the run, of every run of `train-dam` that learned at least two masks."""
    by_run: dict[str, dict[str, str]] = {}
    for pattern in map(str, patterns):
        if match := _LEARNED.fullmatch(pattern):
            by_run.setdefault(match["run"], {})[pattern] = match["strength"]
    by_run = {run: strengths for run, strengths in by_run.items() if len(strengths) > 1}
    names = short_names(by_run)
    return {names[run]: strengths for run, strengths in by_run.items()}


def count_curves(rows: pd.DataFrame) -> int:
    """Returns how many curves `draw_masks` would draw."""
    learned = sweeps(rows["pattern"])
    return sum(rows.loc[rows["pattern"].isin(list(masks)), "layers"].nunique() for masks in learned.values())


def draw_masks(axes: Axes, rows: pd.DataFrame) -> None:
    """Draws masks with their intervals.

    Fixed patterns and single files have their names above them and a faint line to the same mask without the diagonal.
    The masks of a sweep are a curve, whose points are named by λ; without the diagonal they are open.

    Args:
        axes: axes to draw into.
        rows: see `headlens.analyses.masks.study_figures.means`, of a model, task and metric, no row without a mask.
    """
    learned = sweeps(rows["pattern"])
    learned_masks = {pattern for masks in learned.values() for pattern in masks}
    in_curve = rows["pattern"].isin(list(learned_masks))
    shares = 100 * float_column(rows, "sparsity_texts")
    _patterns(axes, rows[~in_curve], float(shares.min()), float(shares.max()))
    for number, (name, strengths) in enumerate(learned.items()):
        curves = rows[rows["pattern"].isin(list(strengths))]
        for layers, part in curves.groupby("layers", sort=False):
            where = "" if layers == "all" else f", layers {layers}"
            _curve(axes, part, strengths, f"{name}{where}, by λ", _CURVES[number % len(_CURVES)])
    axes.margins(x=0.12, y=0.1)  # room for the names


def _patterns(axes: Axes, rows: pd.DataFrame, left: float, right: float) -> None:
    for way, (colour, label) in WAYS.items():
        points = rows[rows["control"] == way]
        if len(points):
            x = 100 * float_column(points, "sparsity_texts")
            axes.plot(x, float_column(points, "value"), "o", color=colour, markersize=3.5, label=label, zorder=3)
            draw_intervals(axes, x, points, colour)
    for _, pair in rows[rows["control"].isin(WAYS)].groupby(["pattern", "layers"], sort=False):
        ends = 100 * float_column(pair, "sparsity_texts"), float_column(pair, "value")
        axes.plot(*ends, color=FAINT, linewidth=0.8, zorder=2)
    for (share, top), names in _names(rows[rows["control"] == "kept"]).items():
        axes.annotate(
            ", ".join(names),
            (share, top),
            # Above the interval: beside a point there are others.
            xytext=(0, 2),
            ha=_side(share, left, right),
            va="bottom",
            textcoords="offset points",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4},
            fontsize=TICK_SIZE - 1,
            color=INK,
        )


def _names(rows: pd.DataFrame) -> dict[tuple[float, float], list[str]]:
    """Returns the names above each interval, by the place of its end: masks that come out alike share one."""
    short = short_names(rows["pattern"])
    names: dict[tuple[float, float], list[str]] = {}
    for row in rows.to_dict("records"):
        where = "" if row["layers"] == "all" else f" {row['layers']}"
        top = row["value"] if math.isnan(row["ci_high"]) else row["ci_high"]
        place = round(100 * row["sparsity_texts"], 6), round(top, 9)
        names.setdefault(place, []).append(f"{short[str(row['pattern'])]}{where}")
    return names


def _side(x: float, left: float, right: float) -> str:
    """Returns the alignment of a name that keeps it within the panel, of which the points fill left to right."""
    if right - left > 0 and (x - left) / (right - left) < _EDGE:
        return "left"
    return "right" if right - left > 0 and (right - x) / (right - left) < _EDGE else "center"


def _curve(axes: Axes, rows: pd.DataFrame, strengths: dict[str, str], label: str, colour: str) -> None:
    for way in WAYS:
        points = rows[rows["control"] == way].sort_values("sparsity_texts")
        if points.empty:
            continue
        kept = way == "kept"
        x, y = 100 * float_column(points, "sparsity_texts"), float_column(points, "value")
        style: dict[str, Any] = {"label": label, "ls": "-"} if kept else {"markerfacecolor": "white", "ls": "none"}
        axes.plot(x, y, "D", color=colour, markersize=3, linewidth=1, zorder=4, **style)
        draw_intervals(axes, x, points, colour)
        for number, pattern in enumerate(points["pattern"] if kept else ()):
            axes.annotate(
                strengths[str(pattern)],
                (x[number], y[number]),
                xytext=(3, -7 if number % 2 else 2),  # neighbours are close to each other
                textcoords="offset points",
                fontsize=TICK_SIZE - 2,
                color=INK,
                zorder=5,
            )
