"""The figures of `headlens train-dam`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from safetensors.numpy import load_file

from headlens.analyses.dam.results_table import CLASSES, NO_DIAGONAL, UNMASKED, dam_markdown
from headlens.errors import read_errors
from headlens.interventions.kept_text import PROBABILITIES
from headlens.pages.command_report import Caption, CommandReport, Figures
from headlens.pages.page_tables import PageTable, number_text, page_table
from headlens.plots import style
from headlens.plots.axis_labels import FAMILY
from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bar
from headlens.plots.curves import VALUES, draw_intervals, draw_level, legend_below
from headlens.plots.head_grid import float_column
from headlens.plots.mask_points import SHARE_LABEL
from headlens.runs.folder import RunFolder
from headlens.runs.reading import Columns, RecordedRun

Maps = npt.NDArray[np.floating]
# A learned mask: the name of its run, P of its positions and which of them stay, (layers or 1, heads, n, n).
MaskPicture = tuple[str, Any, Any]

IMPORTANCE = Scale("importance P", 0.0, 1.0)
KEPT = Scale("white: may attend", 0.0, 1.0, "gray")
_WORDS_OF = {"special": "first, last token", "neighbourhood": "neighbours"}
_P = "importance P, 0 to 1"
_BEFORE = style.FAINT
# inches
_LEFT, _TOP, _WORDS, _GAP, _BOTTOM = 0.10, 0.32, 0.16, 0.08, 0.10
_MOST_HEADS, _LARGEST = 12, 1.5


def dam_figures(tables: Mapping[str, pd.DataFrame], masks: Iterable[MaskPicture]) -> Figures:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: `sweep`, `positions` and `importance`, as far as there.
        masks: by run.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    if "sweep" in tables:
        yield "quality", quality_by_sparsity(tables["sweep"])
    if "positions" in tables:
        yield "importance", importance_by_place(tables["positions"])
    if "importance" in tables:
        yield "importance_over_training", importance_over_training(tables["importance"])
    across = "queries downwards, keys to the right"
    for name, probabilities, kept in masks:
        title = f"Learned mask {name} (white: may attend, dark: masked;\n{across})"
        yield f"mask_{name}", mask_picture(np.asarray(kept, dtype=float), title, KEPT)
        title = f"Learned importance of positions, {name}\n({across})"
        yield f"p_{name}", mask_picture(np.asarray(probabilities), title, IMPORTANCE)


def write_dam(run: RunFolder, tables: Mapping[str, pd.DataFrame], masks: Sequence[MaskPicture]) -> None:
    """Write every table as CSV, the two that tell most as Markdown, then every figure.

    Args:
        run: the folder, started.
        tables: `sweep`, `sparsity`, `positions`, `importance`, `log`.
        masks: by run; none draws nothing.
    """
    for name, frame in tables.items():
        run.table(name, frame)
    with run.file("results.md") as path:
        path.write_text(dam_markdown(tables["sweep"], tables["positions"]), encoding="utf-8")
    for name, figure in dam_figures(tables, masks) if masks else ():
        run.figure(name, figure)


def quality_by_sparsity(sweep: pd.DataFrame) -> Figure | None:
    """The task's main metric over the share of masked positions, with intervals; dashed lines without a mask.

    The same masks without the diagonal, where they are controls, are open circles.
    """
    if sweep.empty:
        return None
    rows = sweep[sweep["metric"] == sweep["metric"].iloc[0]]
    masked, others = rows[rows["penalty"].notna()], rows[rows["penalty"].isna()]
    title = f"Quality of {rows['model'].iloc[0]} under learned masks\n(95 % intervals)"
    figure = style.constrained_figure(style.FULL_WIDTH / 2, 2.5, title)
    axes = figure.subplots()
    measured = f"{rows['metric'].iloc[0]} on {rows['task'].iloc[0]}"
    style.dress(axes, SHARE_LABEL, style.one_line(measured, 0.66 * 2.6, style.LABEL_SIZE))
    for penalty, colour in _colours(masked["penalty"]).items():
        penalty_rows = masked[masked["penalty"] == penalty]
        for is_control, own in _with_controls(penalty_rows):
            x, y = 100 * float_column(own, "sparsity_texts"), float_column(own, "value")
            fill, label = ("white", "no diagonal") if is_control else (colour, f"penalty λ {penalty:g}")
            axes.plot(x, y, "o", color=colour, markerfacecolor=fill, markersize=4, label=label)
            draw_intervals(axes, x, own, colour)
    trained = others["run"] == UNMASKED
    draw_level(axes, others[~trained], "before training, no mask", colour=_BEFORE)
    draw_level(axes, others[trained], "trained without a mask")
    legend_below(figure, [axes])
    return figure


def importance_by_place(positions: pd.DataFrame) -> Figure | None:
    """Mean P of all heads by class, and by offset, a line for each λ, of runs that are no controls of others."""
    if positions.empty:
        return None
    positions = positions[~positions["mask"].astype(str).str.endswith(NO_DIAGONAL)]
    # A file gives text, whose order is another one: 0, 1, 10, 100, 2.
    positions = positions.assign(**{name: float_column(positions, name) for name in ("offset", "p")})
    colours = _colours(positions["penalty"])
    figure = style.constrained_figure(style.FULL_WIDTH, 2.5, "Learned importance of positions, mean over heads")
    classes, offsets = figure.subplots(1, 2, width_ratios=(0.42, 0.58))
    style.dress(classes, "", _P)
    style.dress(offsets, "distance of query and key, tokens", _P)
    for number, (penalty, colour) in enumerate(colours.items()):
        penalty_rows = positions[positions["penalty"] == penalty]
        shift = (number - (len(colours) - 1) / 2) * 0.8 / len(colours)
        heights = penalty_rows.groupby("class")["p"].mean().reindex(CLASSES).to_numpy(float)
        classes.bar(np.arange(len(CLASSES)) + shift, heights, 0.8 / len(colours), color=colour)
        by_offset = penalty_rows[penalty_rows["class"] == "offset"].groupby("offset")["p"].mean()
        at, mean = by_offset.index.to_numpy(float), by_offset.to_numpy(float)
        offsets.plot(at, mean, color=colour, linewidth=1, label=f"penalty λ {penalty:g}")
    classes.set_xticks(range(len(CLASSES)), [_WORDS_OF.get(name, name).replace(", ", ",\n") for name in CLASSES])
    for axes, words in ((classes, "by class"), (offsets, "by distance, first and last token left out")):
        axes.set_ylim(0, 1.05)
        style.heading(axes, words, 3.0)
    legend_below(figure, [offsets])
    return figure


def importance_over_training(importance: pd.DataFrame) -> Figure | None:
    """Mean P of all heads over the training, a panel for each class of positions and a line for each λ.

    The same masks without the diagonal, where they are controls, are dotted lines.

    Args:
        importance: rows of `importance.csv`.

    Returns:
        The figure, or None where nothing was followed.
    """
    if importance.empty:
        return None
    colours, known = _colours(importance["penalty"]), [c for c in CLASSES if c in set(importance["class"])]
    title = "Learned importance of positions during training, mean over heads"
    figure = style.constrained_figure(style.FULL_WIDTH, 2.2, title)
    drawn = figure.subplots(1, len(known), sharey=True, squeeze=False)[0]
    for place, (name, axes) in enumerate(zip(known, drawn, strict=True)):
        style.dress(axes, "update", "" if place else _P)
        of_class = importance[importance["class"] == name]
        for penalty, colour in colours.items():
            for is_control, own in _with_controls(of_class[of_class["penalty"] == penalty]):
                line, label = (":", "learned without the diagonal") if is_control else ("-", f"penalty λ {penalty:g}")
                for _, rows in own.groupby("run", sort=False):
                    x, y = float_column(rows, "step"), float_column(rows, "p")
                    axes.plot(x, y, line, color=colour, linewidth=1, label=label)
        axes.set_ylim(0, 1.05)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        style.heading(axes, _WORDS_OF.get(name, name), 3.0)
    legend_below(figure, list(drawn))
    return figure


def _with_controls(rows: pd.DataFrame) -> Iterator[tuple[bool, pd.DataFrame]]:
    """Rows of the runs themselves, then of their controls without the diagonal, as far as there are any."""
    controls = rows["run"].astype(str).str.endswith(NO_DIAGONAL)
    for is_control in (False, True):
        if (chosen := controls == is_control).any():
            yield is_control, rows[chosen]


def mask_picture(maps: Maps, title: str, scale: Scale) -> Figure:
    """A map of n x n positions for every head, first position at the upper left, one row of maps for each layer.

    Args:
        maps: numbers from 0 to 1, (layers or 1, heads, n, n).
        title: of the figure.
        scale: its colours; a bar is drawn for those that are more than masked and not masked.
    """
    rows = _picture_rows(maps)
    bar = BAR_SLOT + 0.1 if scale is not KEPT else 0.0
    across = max(map(len, rows))
    side = min(_LARGEST, (style.FULL_WIDTH - _LEFT - bar) / across - _GAP)
    width = max(2.4, _LEFT + across * (side + _GAP) + bar)
    top = _TOP + style.further_lines(title, width)
    height = top + len(rows) * (side + _WORDS) + _BOTTOM
    height = max(height, 1.6) if bar else height
    figure = style.new_figure(width, height)
    style.headline(figure, title)
    colours = ListedColormap([style.MASKED, "white"]) if scale is KEPT else scale.map
    for line, row in enumerate(rows):
        for column, (name, values) in enumerate(row):
            left, low = _LEFT + column * (side + _GAP), height - top - line * (side + _WORDS) - _WORDS - side
            axes = figure.add_axes((left / width, low / height, side / width, side / height))
            axes.imshow(values, cmap=colours, vmin=scale.low, vmax=scale.high, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(name, fontsize=style.TICK_SIZE, fontfamily=FAMILY, color=style.INK, pad=1.5)
            for spine in axes.spines.values():
                spine.set_linewidth(0.4)
                spine.set_color(style.INK)
    if bar:
        add_bar(figure, scale, BAR_SLOT, top + _WORDS)
    return figure


def _picture_rows(maps: Maps) -> list[list[tuple[str, Maps]]]:
    """Maps with the names of their layer and head, by row; of many heads a layer has several rows."""
    shared, heads = len(maps) == 1, maps.shape[1]
    # Few maps in a row are large ones.
    most = min(_MOST_HEADS, max(4, -(-heads // 2))) if shared else _MOST_HEADS
    rows = []
    for layer, of_layer in enumerate(maps):
        named = [(f"head {head}" if shared else f"{layer}.{head}", values) for head, values in enumerate(of_layer)]
        rows += [named[first : first + most] for first in range(0, heads, most)]
    return rows


def _colours(penalties: pd.Series[float]) -> dict[float, Any]:
    """A colour for each λ, from weak to strong."""
    known = sorted(penalties.unique().tolist())
    return dict(zip(known, colormaps[style.SEQUENTIAL](np.linspace(0.0, 0.85, len(known))), strict=True))


def _masks(run: RecordedRun) -> Iterator[MaskPicture]:
    """Those that still lie in the folder of a run.

    Raises:
        InputError: if one cannot be read.
    """
    if "sweep" not in run.tables:
        return
    rows = run.tables["sweep"].drop_duplicates("run")
    for name, mask in zip(rows["run"], rows["mask"], strict=True):
        place = run.folder / str(mask)
        beside = place.with_name(PROBABILITIES)
        if isinstance(mask, str) and place.is_file() and beside.is_file():
            with read_errors(place.parent, "does not hold a mask", "Run the command again."):
                picture = str(name), load_file(beside)["p"], load_file(place)["allowed"]
            yield picture


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    names = ("run", "metric", *VALUES, "sparsity", "sparsity_texts")
    records = [
        {"folder": run.folder.name, **{k: row[k] for k in names}}
        for run in runs
        if "sweep" in run.tables
        for row in run.tables["sweep"].to_dict("records")
    ]
    about = (
        "The share of masked positions and task performance under the final mask, for each penalty λ; `plain` is "
        "the original model, `unmasked` the same training without a mask. `sparsity` is the share of n x n positions, "
        "`sparsity_texts` that of the positions of the texts, at their actual lengths."
    )
    return [page_table("Masks and what models achieve under them", records, about)] if records else []


def _findings(run: RecordedRun) -> list[str]:
    if "sweep" not in run.tables:
        return []
    return [
        f"{row['model']}, {row['run']}: {float(row['sparsity_texts']):.1%} of text positions masked, {row['metric']} "
        f"on {row['task']} {number_text(row['value'])} [{number_text(row['ci_low'])}, {number_text(row['ci_high'])}]."
        for row in run.tables["sweep"].to_dict("records")
        if np.isfinite(float(row["sparsity_texts"]))
    ]


CAPTIONS = {
    "quality": Caption(
        "Quality by sparsity",
        "Task performance under the final masks, with 95 % intervals, against the share of text positions that is "
        "masked; the dashed lines are without a mask: grey for the original model, black for one trained in the "
        "same way. Open circles are the same masks learned without the diagonal.",
    ),
    "importance": Caption(
        "Where attention is needed",
        "The mean probability P that a position stays, over all heads. On the left by class: the first and last row "
        "and column, the diagonal, its neighbourhood, and the rest. On the right by distance.",
    ),
    "importance_over_training": Caption(
        "Where attention is needed, over training",
        "The mean probability P that a position stays, over all heads, by class of positions, from before the first "
        "update to the last: the first and last row and column, the diagonal, its neighbourhood, and the rest. "
        "Dotted lines are the same masks learned without the diagonal.",
    ),
    "mask": Caption(
        "The mask",
        "The positions of every head, queries downwards and keys to the right: white ones stay, dark ones are masked.",
    ),
    "p": Caption(
        "Importance of positions",
        "The probability P of every position, queries downwards and keys to the right. It is symmetric; a head "
        "whose P is the same everywhere has found no position that matters more than others.",
    ),
}

REPORT = CommandReport(
    "train-dam",
    tables={
        "sweep": Columns(
            numbers=("penalty", "sparsity", "sparsity_texts", "value", "ci_low", "ci_high"),
            words={"run": (), "model": (), "task": (), "metric": (), "mask": ()},
            identity=("run", "metric"),
            filled=("metric",),
        ),
        "positions": Columns(numbers=("penalty", "offset", "p"), words={"class": (*CLASSES, "offset"), "mask": ()}),
        "importance": Columns(
            numbers=("penalty", "step", "p"), words={"run": (), "class": CLASSES}, counts=("step",), shares=("p",)
        ),
    },
    needed=("sweep", "sparsity", "positions"),
    figures=lambda run: dam_figures(run.tables, list(_masks(run))),
    captions=CAPTIONS,
    sources={"quality": ("sweep",), "importance": ("positions",), "importance_over_training": ("importance",)},
    overviews=_overviews,
    findings=_findings,
)
