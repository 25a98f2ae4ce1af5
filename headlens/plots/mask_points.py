"""Masks as points: the metric under each over the share of the texts that it masks; learned ones as curves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from headlens.plots.curves import draw_intervals, draw_same_answers
from headlens.plots.head_grid import float_column
from headlens.plots.style import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, TICK_SIZE, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAYS = {"kept": (BLUE, "the mask as it is"), "dropped": (VERMILION, "without the diagonal")}
_CURVES = (ORANGE, GREEN, PURPLE, SKY)
# A mask of a sweep of train-dam: the run, and λ.
_LEARNED = re.compile(r"(?P<run>.+?)(?:/masks)?/penalty-(?P<strength>[^/]+?)(?:/mask\.safetensors)?")
# A part of such a mask, by learned importance: the mask and the order, and the share that is kept.
_KEPT = re.compile(r"(?P<run>.+@(most|least|random))=(?P<strength>[^@=]+)")
_ORDERS = {"most": "most important", "least": "least important", "random": "random ones"}
_NO_DIAGONAL: dict[str, Any] = {"label": "no diagonal", "marker": "x", "ls": "none"}
_EDGE = 0.08  # of the width that points fill
# The share is that of the texts: a share of 128 tokens says little about a text of ten.
SHARE_LABEL = "masked positions in the texts, %"


def short_names(patterns: Iterable[object]) -> dict[str, str]:
    """Returns a short name for every pattern; for mask files the end of the path, as long as tells them apart."""
    names = list(dict.fromkeys(map(str, patterns)))
    paths = [[part for part in name.split("/") if part not in {"mask.safetensors", "masks"}] for name in names]
    parts = next((n for n in range(1, 9) if len({tuple(path[-n:]) for path in paths}) == len(paths)), 9)
    return {name: "/".join(path[-parts:]) for name, path in zip(names, paths, strict=True)}


def sweeps(patterns: Iterable[object]) -> dict[str, dict[str, str]]:
    """Returns λ by pattern, by the name of the run, of every run of `train-dam` that learned at least two masks.

    Of a mask of which at least two parts were taken by importance the share that is kept, by its name and the order.
    """
    by_run: dict[str, dict[str, str]] = {}
    for pattern in map(str, patterns):
        if match := _KEPT.fullmatch(pattern) or _LEARNED.fullmatch(pattern):
            by_run.setdefault(match["run"], {})[pattern] = match["strength"]
    by_run = {run: strengths for run, strengths in by_run.items() if len(strengths) > 1}
    return dict(zip(short_names(by_run).values(), by_run.values(), strict=True))


class MaskCurve(NamedTuple):
    """The masks of a sweep in the same layers: what the legend calls them, their rows, and what names each mask."""

    label: str
    rows: pd.DataFrame
    strengths: dict[str, str]
    colour: str


def mask_curves(rows: pd.DataFrame) -> list[MaskCurve]:
    """Returns the curves among the masks of a model, task and metric, as `draw_masks` draws them."""
    curves = []
    for number, (name, strengths) in enumerate(sweeps(rows["pattern"]).items()):
        for layers, part in rows[rows["pattern"].isin(list(strengths))].groupby("layers", sort=False):
            where = "" if layers == "all" else f", layers {layers}"
            run, _, order = name.partition("@")
            label = f"{run}{where}: {_ORDERS.get(order, order)} kept" if order else f"{name}{where}, by λ"
            curves.append(MaskCurve(label, part, strengths, _CURVES[number % len(_CURVES)]))
    return curves


def draw_masks(axes: Axes, rows: pd.DataFrame) -> None:
    """Draws masks with their intervals.

    Fixed patterns and single files have their names above them and a faint line to the same mask without the diagonal.
    The masks of a sweep are a curve, whose points are named by λ; without the diagonal they are crosses.

    Args:
        axes: axes to draw into.
        rows: see `headlens.analyses.masks.study_figures.means`, of a model, task and metric, no row without a mask.
    """
    rows = rows.assign(share=100 * float_column(rows, "sparsity_texts"))
    curves = mask_curves(rows)
    in_curve = rows["pattern"].isin([pattern for curve in curves for pattern in curve.strengths])
    lines = _patterns(axes, rows[~in_curve], rows["share"].min(), rows["share"].max())
    for number, curve in enumerate(curves):
        _draw_curve(axes, curve, number)
    axes.margins(x=0.12, y=0.1 + 0.07 * max(0, lines - 1))  # room for the names


def _patterns(axes: Axes, rows: pd.DataFrame, left: float, right: float) -> int:
    """Draws masks as points and returns how many lines the longest name above them has."""
    for way, (colour, label) in WAYS.items():
        points = rows[rows["control"] == way]
        if len(points):
            x = float_column(points, "share")
            axes.plot(x, float_column(points, "value"), "o", color=colour, markersize=3.5, label=label, zorder=3)
            draw_intervals(axes, x, points, colour)
            draw_same_answers(axes, x, points)
    for _, pair in rows[rows["control"].isin(WAYS)].groupby(["pattern", "layers"], sort=False):
        axes.plot(pair["share"], float_column(pair, "value"), color=FAINT, linewidth=0.8, zorder=2)
    short = short_names(rows["pattern"])
    # Masks of one share have their names above their highest interval, in the order of what they achieve: names beside
    # points would hide others.
    names: dict[float, dict[float, list[str]]] = {}
    tops: dict[float, float] = {}
    for row in rows[rows["control"] == "kept"].sort_values("value", ascending=False, kind="stable").to_dict("records"):
        where = "" if row["layers"] == "all" else f" {row['layers']}"
        top = row["value"] if math.isnan(row["ci_high"]) else row["ci_high"]
        share, name = round(row["share"], 6), f"{short[str(row['pattern'])]}{where}"
        names.setdefault(share, {}).setdefault(round(row["value"], 9), []).append(name)
        tops[share] = max(top, tops.get(share, top))
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4}
    for place in tops.items():
        # Names at the edges run inwards, to stay within the panel.
        relative = (place[0] - left) / (right - left) if right > left else 0.5
        side = "left" if relative < _EDGE else "right" if relative > 1 - _EDGE else "center"
        alike_names = "\n".join(", ".join(alike) for alike in names[place[0]].values())
        text = axes.annotate(alike_names, place, (0, 2), textcoords="offset points", ha=side, va="bottom", bbox=ground)
        text.set(fontsize=TICK_SIZE - 1, color=INK)
    return max(map(len, names.values()), default=0)


def _draw_curve(axes: Axes, curve: MaskCurve, number: int) -> None:
    for way in WAYS:
        points = curve.rows[curve.rows["control"] == way].sort_values("share")
        if points.empty:
            continue
        has_diagonal = way == "kept"
        x, y = float_column(points, "share"), float_column(points, "value")
        style: dict[str, Any] = {"label": curve.label, "marker": "D", "ls": "-"} if has_diagonal else _NO_DIAGONAL
        axes.plot(x, y, color=curve.colour, markersize=3, linewidth=1, zorder=4, **style)
        draw_intervals(axes, x, points, curve.colour)
        draw_same_answers(axes, x, points)
        for place, pattern in enumerate(points["pattern"] if has_diagonal else ()):
            # Neighbours are close to each other, and so may be the curves of two orders.
            offset = (3, -7 if (place + number) % 2 else 2)
            name = curve.strengths[str(pattern)]
            text = axes.annotate(name, (x[place], y[place]), offset, textcoords="offset points")
            text.set(fontsize=TICK_SIZE - 2, color=INK, zorder=5)
