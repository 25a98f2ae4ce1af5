"""The figures of learned masks: quality by sparsity, what the penalty leaves, and the masks themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.attention_masks.named_masks import UNMASKED
from headlens.findings.without_skill import within_guesses
from headlens.pages.command_report import Figures
from headlens.plots import style
from headlens.plots.axis_labels import font_family
from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bar
from headlens.plots.curves import (
    SAME_PLACE,
    draw_chance,
    draw_intervals,
    draw_level,
    draw_rims,
    draw_same_answers,
    intervals_text,
    legend_below,
    level_name,
    no_shorter_than_margin,
)
from headlens.plots.head_grid import Grid, float_column
from headlens.plots.mask_points import SHARE_LABEL
from headlens.tables.mask_tables import CLASSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A learned mask: the name of its run, P of its positions and which of them stay, (layers or 1, heads, n, n).
MaskPicture = tuple[str, Any, Any]

NO_DIAGONAL = "-no-diagonal"  # how the names of runs end that are controls of others
IMPORTANCE = Scale("P that a position stays", 0.0, 1.0)
KEPT = Scale("white: may attend", 0.0, 1.0, "gray")
CLASS_LABELS = {"special": "first, last token", "neighbourhood": "neighbours"}
_P = "importance P, 0 to 1"
_BEFORE = style.FAINT
_HALF = 0.5  # of the training texts
_NOT_LEARNED = "not learned: in no training text, or held open or closed"
_FEW_TEXTS = "dotted: in fewer than half of the training texts, which decide less there"
_EMPTY: dict[str, Any] = {"facecolor": "none", "edgecolor": style.FAINT, "hatch": "////", "linewidth": 0}
# inches
_LEFT, _TOP, _WORDS, _GAP, _BOTTOM = 0.28, 0.32, 0.16, 0.08, 0.24
_MOST_HEADS, _LARGEST = 12, 1.5


def dam_figures(tables: Mapping[str, pd.DataFrame], masks: Iterable[MaskPicture]) -> Figures:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: `sweep`, `positions` and `importance`, as far as there.
        masks: by run.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    model = ", ".join(map(str, tables["sweep"]["model"].unique())) if "sweep" in tables else ""
    if "sweep" in tables:
        yield "quality", quality_by_sparsity(tables["sweep"])
    if "positions" in tables:
        yield "importance", importance_by_place(tables["positions"], model)
    if "importance" in tables:
        yield "importance_over_training", importance_over_training(tables["importance"], model)
    across = "queries downwards, keys to the right"
    for name, probabilities, kept in masks:
        of = ", ".join(filter(None, [name, "the same in all layers" if len(kept) == 1 else "", model]))
        n = len(kept[0, 0])
        learned = known_positions(tables["positions"], name, n) if "positions" in tables else np.ones((n, n), bool)
        # Positions that no training text has would be nearly all of the picture where texts are short.
        rows = np.flatnonzero(learned.any(axis=1))
        end = int(rows[-1]) + 1 if rows.size else n
        reach = f"\nup to position {end - 1} of {n - 1}, the last that was learned;" if end < n else ""
        without = layers_without(tables["positions"], name, len(kept)) if "positions" in tables else []
        none = " hatched: layers without a mask;" * bool(without)
        title = f"Learned mask {of}\n(white: may attend, dark: masked;{none}{reach}\n{across})"
        drawn = np.asarray(kept, dtype=float)[..., :end, :end].copy()
        drawn[without] = np.nan
        yield f"mask_{name}", mask_picture(drawn, title, KEPT)
        shown = np.where(learned, np.asarray(probabilities), np.nan)[..., :end, :end]
        shown[without] = np.nan
        title = f"Probability that a position stays, {of}\n(hatched: not learned;{reach}\n{across})"
        yield f"p_{name}", mask_picture(shown, title, IMPORTANCE)


def layers_without(positions: pd.DataFrame, name: str, count: int) -> list[int]:
    """Which of several layers have no mask, as it was learned in others alone; none where layers share one.

    Args:
        positions: rows of `positions.csv`, of the layers that have one.
        name: of the mask.
        count: of the layers that the mask tells apart.
    """
    learned = set(float_column(positions[positions["mask"].astype(str) == name], "layer"))
    shared = count == 1 or not learned or any(map(math.isnan, learned))
    return [] if shared else [layer for layer in range(count) if layer not in learned]


def known_positions(positions: pd.DataFrame, name: str, n: int) -> npt.NDArray[np.bool_]:
    """Which positions of a mask were learned, as far as its rows of `positions.csv` tell, (n, n).

    All others have what the penalty, or the form of the mask, alone decides. If a text has all tokens but the last,
    the last row and column count as learned.

    Args:
        positions: rows of `positions.csv`, empty P where nothing was learned.
        name: of the mask.
        n: tokens.
    """
    rows_of_mask = positions[positions["mask"].astype(str) == name]
    known = rows_of_mask[np.isfinite(float_column(rows_of_mask, "p"))]
    if len(rows_of_mask) and known.empty:
        return np.zeros((n, n), bool)
    offsets = float_column(known[known["class"] == "offset"], "offset")
    longest = n if not offsets.size or offsets.max() >= n - 3 else offsets.max() + 2
    place = np.arange(n)
    ends = (place == 0) | (place == n - 1)
    learned = np.logical_and.outer(place < longest, place < longest)
    held = set(rows_of_mask["class"]) - set(known["class"])
    if "special" in held:
        learned &= ~np.logical_or.outer(ends, ends)
    if "diagonal" in held:
        learned &= ~np.eye(n, dtype=bool)
    return learned


def quality_by_sparsity(sweep: pd.DataFrame) -> Figure | None:
    """The task's main metric over the share of masked positions, with intervals; dashed lines without a mask.

    The same masks without the diagonal, where they are controls, are crosses.
    """
    if sweep.empty:
        return None
    rows = sweep[sweep["metric"] == sweep["metric"].iloc[0]]
    others = rows[rows["penalty"].isna()]
    title = f"Quality of {rows['model'].iloc[0]} under learned masks\n({intervals_text(rows)})"
    entries = rows["penalty"].nunique() + len(others) + 2  # of the legend, in lines of their own
    figure = style.constrained_figure(style.FULL_WIDTH / 2, 2.1 + 0.15 * entries, title)
    axes = figure.subplots()
    measured = f"{rows['metric'].iloc[0]} on {rows['task'].iloc[0]}"
    style.dress(axes, SHARE_LABEL, style.one_line(measured, 0.66 * 2.6, style.LABEL_SIZE))
    masked = rows[rows["penalty"].notna()]
    for penalty, colour, is_control, rows_of_mask in _by_penalty(masked):
        x, y = 100 * float_column(rows_of_mask, "sparsity_texts"), float_column(rows_of_mask, "value")
        marker, label = ("x", "no diagonal") if is_control else ("o", penalty)
        axes.plot(x, y, marker, color=colour, markersize=4, label=label, linestyle="none", zorder=3)
        draw_intervals(axes, x, rows_of_mask, colour)
        draw_same_answers(axes, x, rows_of_mask)
    trained = others["run"] == UNMASKED
    before, after = others[~trained], others[trained]
    draw_level(
        axes, before, level_name("before training, no mask", before, guesses=within_guesses(before)), colour=_BEFORE
    )
    draw_level(axes, after, level_name("trained without a mask", after, guesses=within_guesses(after)))
    axes.set_ylim(no_shorter_than_margin(axes.get_ylim(), rows))
    draw_rims(axes)
    draw_chance(axes, float(chance[0]) if len(chance := float_column(rows, "chance")) else np.nan)
    legend_below(figure, [axes])
    return figure


def importance_by_place(positions: pd.DataFrame, model: str = "") -> Figure | None:
    """Mean P of all heads by class, and by offset, a line for each λ, of runs that are no controls of others.

    Args:
        positions: rows of `positions.csv`.
        model: its name, for the title.
    """
    if positions.empty:
        return None
    # A file gives text, whose order is another one: 0, 1, 10, 100, 2.
    numbers = {name: float_column(positions, name) for name in ("offset", "p", "texts")}
    positions = positions.assign(run=positions["mask"], **numbers)
    controls = _is_control(positions)
    lines = list(_by_penalty(positions[~controls]))
    title = ", ".join(filter(None, ["Learned importance of positions, mean over heads", model]))
    title += "\n(masks learned with the diagonal)" if controls.any() else ""
    figure = style.constrained_figure(style.FULL_WIDTH, 2.5, title)
    classes, offsets = figure.subplots(1, 2, width_ratios=(0.42, 0.58))
    style.dress(classes, "", _P)
    style.dress(offsets, "distance of query and key, tokens", _P)
    for number, (penalty, colour, _, rows) in enumerate(lines):
        shift = (number - (len(lines) - 1) / 2) * 0.8 / len(lines)
        heights = rows.groupby("class")["p"].mean().reindex(CLASSES).to_numpy(float)
        classes.bar(np.arange(len(CLASSES)) + shift, heights, 0.8 / len(lines), color=colour)
        by_offset = rows[rows["class"] == "offset"].groupby("offset")[["p", "texts"]].mean()
        at, (mean, texts) = by_offset.index.to_numpy(float), by_offset.to_numpy(float).T
        offsets.plot(at, np.where(texts < _HALF, np.nan, mean), color=colour, linewidth=1, label=penalty)
        if len(few := np.flatnonzero(texts < _HALF)):
            tail = slice(max(few[0] - 1, 0), None)  # from the last point of the line
            offsets.plot(at[tail], mean[tail], ":", color=colour, linewidth=1)
        # What the penalty, or the form of the mask, alone decides.
        unknown = np.flatnonzero(np.isnan(heights) & np.isin(CLASSES, rows["class"]))
        if len(unknown):
            classes.bar(unknown + shift, 1.0, 0.8 / len(lines), label=_NOT_LEARNED, **_EMPTY)
        for beyond in at[np.isnan(mean)]:
            offsets.axvspan(beyond - 0.5, min(beyond + 0.5, at[-1]), label=_NOT_LEARNED, **_EMPTY)
    if any(line.get_linestyle() == ":" for line in offsets.lines):
        offsets.plot([], [], ":", color=style.INK, linewidth=1, label=_FEW_TEXTS)
    classes.set_xticks(range(len(CLASSES)), [CLASS_LABELS.get(name, name).replace(", ", ",\n") for name in CLASSES])
    for axes, words in ((classes, "by class"), (offsets, "by distance, first and last token left out")):
        axes.set_ylim(0, 1.05)
        style.heading(axes, words, 3.0)
    legend_below(figure, [offsets, classes])
    return figure


def importance_over_training(importance: pd.DataFrame, model: str = "") -> Figure | None:
    """Mean P of all heads over the training, a panel for each class of positions and a line for each λ.

    The same masks without the diagonal, where they are controls, are dotted lines.

    Args:
        importance: rows of `importance.csv`.
        model: its name, for the title.

    Returns:
        The figure, or None where nothing was followed.
    """
    from matplotlib.ticker import MaxNLocator

    if importance.empty:
        return None
    known = [c for c in CLASSES if c in set(importance["class"])]
    title = ", ".join(filter(None, ["Learned importance of positions during training, mean over heads", model]))
    figure = style.constrained_figure(style.FULL_WIDTH, 2.2, title)
    drawn, rims = figure.subplots(1, len(known), sharey=True, squeeze=False)[0], 0
    for place, (name, axes) in enumerate(zip(known, drawn, strict=True)):
        style.dress(axes, "update", "" if place else _P)
        lines = [
            (float_column(rows, "step"), float_column(rows, "p"), colour, is_control, penalty)
            for penalty, colour, is_control, rows_of_mask in _by_penalty(importance)
            for _, rows in rows_of_mask[rows_of_mask["class"] == name].groupby("run", sort=False)
        ]
        for number, (x, y, colour, is_control, penalty) in enumerate(lines, 1):
            line, label = (":", "learned without the diagonal") if is_control else ("-", penalty)
            # As a pale rim around the line that would hide it, or be lost on one of its colour.
            above = sum(len(y) == len(other[1]) and np.abs(y - other[1]).max() < SAME_PLACE for other in lines[number:])
            axes.plot(x, y, line, color=colour, linewidth=1 + 1.5 * above, alpha=0.35 if above else 1.0)
            axes.plot([], [], line, color=colour, linewidth=1, label=label)
            rims += above
        axes.set_ylim(0, 1.05)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        style.heading(axes, CLASS_LABELS.get(name, name), 3.0)
    if rims:
        drawn[0].plot([], [], color=style.FAINT, linewidth=2.5, alpha=0.35, label="pale: lies below another line")
    legend_below(figure, list(drawn))
    return figure


def _is_control(rows: pd.DataFrame) -> pd.Series[bool]:
    return rows["run"].astype(str).str.endswith(NO_DIAGONAL)


def _by_penalty(rows: pd.DataFrame) -> Iterator[tuple[str, Any, bool, pd.DataFrame]]:
    """Every λ in words, from weak to strong, its colour, and its rows: first of runs that are no controls of others."""
    from matplotlib import colormaps

    known = sorted(rows["penalty"].unique().tolist())
    colours = colormaps[style.SEQUENTIAL](np.linspace(0.0, 0.85, len(known)))
    for penalty, colour in zip(known, colours, strict=True):
        for is_control in (False, True):
            rows_of_mask = rows[(rows["penalty"] == penalty) & (_is_control(rows) == is_control)]
            if len(rows_of_mask):
                yield f"penalty λ {penalty:g}", colour, is_control, rows_of_mask


def mask_picture(maps: Grid, title: str, scale: Scale) -> Figure:
    """A map of n x n positions for every head, first position at the upper left, one row of maps for each layer.

    Positions are numbered at the left and lower ends of the picture.

    Args:
        maps: numbers from 0 to 1, or NaN, which is hatched, (layers or 1, heads, n, n); of many heads a layer has
            several rows.
        title: of the figure.
        scale: its colours; a bar is drawn for scales of more than masked and not masked.
    """
    from matplotlib.colors import ListedColormap

    shared, heads = len(maps) == 1, maps.shape[1]
    # Few maps in a row are large ones.
    most = min(_MOST_HEADS, max(4, -(-heads // 2))) if shared else _MOST_HEADS
    across, lines = min(most, heads), -(-heads // most)
    bar = BAR_SLOT + 0.1 if scale is not KEPT else 0.0
    side = min(_LARGEST, (style.FULL_WIDTH - _LEFT - bar) / across - _GAP)
    width = max(2.4, _LEFT + across * (side + _GAP) + bar)
    top = _TOP + style.further_lines(title, width)
    height = max(top + len(maps) * lines * (side + _WORDS) + _BOTTOM, 1.6 if bar else 0.0)
    figure = style.new_figure(width, height)
    style.headline(figure, title)
    colours = ListedColormap([style.MASKED, "white"]) if scale is KEPT else scale.map
    for layer, head in np.ndindex(maps.shape[:2]):
        line, column = divmod(head, most)
        left, above = _LEFT + column * (side + _GAP), (layer * lines + line) * (side + _WORDS)
        low = height - top - above - _WORDS - side
        axes = figure.add_axes((left / width, low / height, side / width, side / height))
        axes.patch.set(facecolor="white", edgecolor=style.FAINT, hatch="////", linewidth=0)
        axes.imshow(maps[layer, head], cmap=colours, vmin=scale.low, vmax=scale.high, interpolation="nearest")
        # First and last position, where no other map is in the way.
        numbered = [0, maps.shape[2] - 1]
        is_lowest = layer == len(maps) - 1 and head + most >= heads
        axes.set_xticks(numbered if is_lowest else [])
        axes.set_yticks(numbered if not column else [])
        axes.tick_params(labelsize=style.TICK_SIZE - 1, length=1.5, width=0.4, pad=1, labelcolor=style.INK)
        for label, number in zip(axes.get_xticklabels(), numbered, strict=False):
            label.set_horizontalalignment("right" if number else "left")
        name = f"head {head}" if shared else f"{layer}.{head}"
        axes.set_title(name, fontsize=style.TICK_SIZE, fontfamily=font_family(), color=style.INK, pad=1.5)
        for spine in axes.spines.values():
            spine.set_linewidth(0.4)
            spine.set_color(style.INK)
    if bar:
        add_bar(figure, scale, BAR_SLOT, top + _WORDS)
    return figure
