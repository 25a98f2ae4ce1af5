"""Masks as points: the metric under each over the share of the texts that it masks; learned ones as curves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from headlens.plots.curves import draw_intervals, draw_same_answers
from headlens.plots.head_grid import float_column
from headlens.plots.style import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, TICK_SIZE, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

WAYS = {"kept": (BLUE, "the mask as it is"), "dropped": (VERMILION, "without the diagonal")}
_CURVES = (ORANGE, GREEN, PURPLE, SKY)
# A mask of a sweep of train-dam: the run, and λ.
_LEARNED = re.compile(r"(?P<run>.+?)(?:/masks)?/penalty-(?P<strength>[^/]+?)(?:/mask\.safetensors)?")
# A part of such a mask, by learned importance: the mask and the order, and the share that is kept.
_KEPT = re.compile(r"(?P<run>.+@(most|least|random))=(?P<strength>[^@=]+)")
_ORDERS = {"most": "most important", "least": "least important", "random": "random ones"}
_NO_DIAGONAL: dict[str, Any] = {"label": "no diagonal", "marker": "x", "ls": "none"}
_EDGE = 0.08  # of the width that points fill
_GAP, _LIFTS, _ENLARGED = 2, 40, 4  # points above an interval; half lines that a name may be lifted; times
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
    """Draws masks with their intervals; `name_masks` writes their names, once the axes have their limits.

    Fixed patterns and single files have a faint line to the same mask without the diagonal. The masks of a sweep are a
    curve, whose points are named by λ; without the diagonal they are crosses.

    Args:
        axes: axes to draw into.
        rows: see `headlens.analyses.masks.study_figures.means`, of a model, task and metric, no row without a mask.
    """
    rows, single, curves = _parts(rows)
    _patterns(axes, single)
    for number, curve in enumerate(curves):
        _draw_curve(axes, curve, number)
    most = single[single["control"] == "kept"].groupby("share").size().max() if len(single) else 0
    axes.margins(x=0.12, y=0.1 + 0.07 * (most if most > 1 else 0))  # room for the names


def _parts(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, list[MaskCurve]]:
    """All rows with their `share` in percent, those of no curve, and the curves."""
    rows = rows.assign(share=(100 * float_column(rows, "sparsity_texts")).round(6)).reset_index(drop=True)
    curves = mask_curves(rows)
    return rows, rows[~rows["pattern"].isin([name for curve in curves for name in curve.strengths])], curves


def _patterns(axes: Axes, rows: pd.DataFrame) -> None:
    for way, (colour, label) in WAYS.items():
        points = rows[rows["control"] == way]
        if len(points):
            x = float_column(points, "share")
            axes.plot(x, float_column(points, "value"), "o", color=colour, markersize=3.5, label=label, zorder=3)
            draw_intervals(axes, x, points, colour)
            draw_same_answers(axes, x, points)
    for _, pair in rows[rows["control"].isin(WAYS)].groupby(["pattern", "layers"], sort=False):
        axes.plot(pair["share"], float_column(pair, "value"), color=FAINT, linewidth=0.8, zorder=2)


def name_masks(axes: Axes, rows: pd.DataFrame) -> None:
    """Writes the names of fixed patterns and single files above their points, in axes with all else that they have.

    Masks of (nearly) one share have their names above their highest interval, in the order of what they achieve: names
    beside points would hide others. Where a name would hide another one or somebody else's point, it stands higher,
    and a line leads to it.

    Args:
        axes: see `draw_masks`; they are made higher where names have no room.
        rows: as there.
    """
    rows, single, _ = _parts(rows)
    kept = single[single["control"] == "kept"].sort_values("value", ascending=False, kind="stable")
    if kept.empty:
        return
    tops = rows["ci_high"].where(rows["ci_high"].notna(), rows["value"])
    short, left, right = short_names(single["pattern"]), rows["share"].min(), rows["share"].max()
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4}
    leader = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 1, "relpos": (0.5, 0)}
    names = [
        f"{short[str(pattern)]}{'' if layers == 'all' else f' {layers}'}"
        for pattern, layers in zip(kept["pattern"], kept["layers"], strict=True)
    ]
    kept = kept.assign(name=names, group=_close_together(axes, kept["share"], names))
    texts: list[tuple[Annotation, pd.DataFrame]] = []
    for _, group in kept.groupby("group"):
        share, top = float(group["share"].mean()), float(tops[group.index].max())
        # Names at the edges run inwards, to stay within the panel.
        relative = (share - left) / (right - left) if right > left else 0.5
        side = "left" if relative < _EDGE else "right" if relative > 1 - _EDGE else "center"
        alike = [", ".join(same["name"]) for _, same in group.groupby(group["value"].round(9), sort=False)]
        # Names above one another are of points above one another, which look as if the names were of the upper one.
        named = alike if len(alike) < 2 else ["from the top:", *alike]
        text = axes.annotate(
            "\n".join(named), (share, top), (0, _GAP), textcoords="offset points", ha=side, va="bottom", bbox=ground,
            arrowprops=leader,
        )  # fmt: skip
        text.set(fontsize=TICK_SIZE - 1, color=INK)
        texts.append((text, group))
    for _ in range(_ENLARGED):
        if (missing := _lift(axes, texts, rows, tops)) <= 0:
            break
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + (high - low) * missing / axes.bbox.height)


def _close_together(axes: Axes, shares: pd.Series, names: Sequence[str]) -> list[int]:
    """Returns the group of every point: those nearer to each other than half a name is wide, along the shares."""
    size = 0.56 * (TICK_SIZE - 1) * axes.figure.dpi / 72
    order = np.argsort(shares.to_numpy(), kind="stable")
    places = axes.transData.transform(np.column_stack([shares, np.zeros(len(shares))]))[:, 0]
    groups, first = [0] * len(names), order[0]
    for before, index in pairwise(order):
        is_near = places[index] - places[first] < size * max(len(names[first]), len(names[index])) / 2
        first = first if is_near else index
        groups[index] = groups[before] + (not is_near)
    return groups


def _lift(axes: Axes, texts: Sequence[tuple[Annotation, pd.DataFrame]], rows: pd.DataFrame, tops: pd.Series) -> float:
    """Places names as low as they hide nothing, and returns by how many pixels the highest one is too high."""
    from matplotlib.text import Text

    lows = rows["ci_low"].where(rows["ci_low"].notna(), rows["value"])
    x, y0 = axes.transData.transform(np.column_stack([rows["share"], lows])).T
    y1 = axes.transData.transform(np.column_stack([rows["share"], tops]))[:, 1]
    placed: list[Any] = []
    step = (TICK_SIZE - 1) / 2
    for text, group in texts:
        strange = ~rows.index.isin(group.index)
        for height in range(_LIFTS):
            text.set_position((0, _GAP + step * height))
            text.get_window_extent()  # puts it into its place
            box = Text.get_window_extent(text)  # without the line
            hidden = (x > box.x0 - 2) & (x < box.x1 + 2) & (y0 < box.y1 + 2) & (y1 > box.y0 - 2) & strange
            if not hidden.any() and not any(box.overlaps(other) for other in placed):
                break
        assert text.arrow_patch is not None
        text.arrow_patch.set_visible(height > 0)
        placed.append(box)
    return float(max(box.y1 for box in placed) - axes.bbox.y1)


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
