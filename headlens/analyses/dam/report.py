"""The figures of `headlens train-dam`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from safetensors import SafetensorError
from safetensors.numpy import load_file

from headlens.analyses.dam.mask_figure import IMPORTANCE, KEPT, mask_picture
from headlens.analyses.dam.results_table import CLASSES, UNMASKED, dam_markdown
from headlens.errors import InputError
from headlens.pages.command_report import Caption, CommandReport, Drawings, Figures
from headlens.pages.page_tables import PageTable, number_text, page_table
from headlens.plots.curves import VALUES, draw_intervals, draw_level
from headlens.plots.head_grid import float_column
from headlens.plots.mask_points import SHARE_LABEL
from headlens.plots.style import FULL_WIDTH, SEQUENTIAL, TICK_SIZE, dress, heading, headline, new_figure
from headlens.runs.folder import RunFolder
from headlens.runs.reading import Columns, RecordedRun

_BEFORE = "#999999"


class MaskPicture(Protocol):
    """What is drawn of a learned mask: P and what stays, arrays or tensors (layers or 1, heads, n, n)."""

    @property
    def probabilities(self) -> Any:
        """Probability P that a position is active, (layers or 1, heads, n, n)."""

    @property
    def kept(self) -> Any:
        """True where attention stays."""


def dam_figures(tables: Mapping[str, pd.DataFrame], masks: Sequence[tuple[str, MaskPicture]]) -> Figures:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: `sweep` and `positions`, as far as there.
        masks: by run.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    if "sweep" in tables:
        yield "quality", quality_by_sparsity(tables["sweep"])
    if "positions" in tables:
        yield "importance", importance_by_place(tables["positions"])
    for name, mask in masks:
        kept, title = np.asarray(mask.kept, dtype=float), f"Mask of {name} (white: attention)"
        yield f"mask_{name}", mask_picture(kept, title, KEPT)
        yield f"p_{name}", mask_picture(np.asarray(mask.probabilities), f"Importance of positions, {name}", IMPORTANCE)


def write_dam(run: RunFolder, tables: Mapping[str, pd.DataFrame], masks: Sequence[tuple[str, MaskPicture]]) -> None:
    """Write every table as CSV, the two that tell most as Markdown, then every figure.

    Args:
        run: the folder, started.
        tables: `sweep`, `sparsity`, `positions`, `log`.
        masks: by run; none draws nothing.
    """
    for name, frame in tables.items():
        run.table(name, frame)
    with run.file("results.md") as path:
        path.write_text(dam_markdown(tables["sweep"], tables["positions"]), encoding="utf-8")
    for name, figure in dam_figures(tables, masks) if masks else ():
        run.figure(name, figure)


def quality_by_sparsity(sweep: pd.DataFrame) -> Figure | None:
    """The task's main metric over the share of masked positions, with intervals; dashed lines without a mask."""
    if sweep.empty:
        return None
    rows = sweep[sweep["metric"] == sweep["metric"].iloc[0]]
    masked, others = rows[rows["penalty"].notna()], rows[rows["penalty"].isna()]
    figure = new_figure(FULL_WIDTH / 2, 2.6)
    headline(figure, "Quality by sparsity")
    axes = figure.add_axes((0.2, 0.17, 0.76, 0.66))
    dress(axes, SHARE_LABEL, f"{rows['metric'].iloc[0]} on {rows['task'].iloc[0]}")
    for penalty, colour in _colours(masked["penalty"]).items():
        penalty_rows = masked[masked["penalty"] == penalty]
        x, y = 100 * float_column(penalty_rows, "sparsity_texts"), float_column(penalty_rows, "value")
        axes.plot(x, y, "o", color=colour, markersize=4, label=f"λ {penalty:g}")
        draw_intervals(axes, x, penalty_rows, colour)
    trained = others["run"] == UNMASKED
    draw_level(axes, others[~trained], "before" if trained.any() else "no mask", colour=_BEFORE)
    draw_level(axes, others[trained], "no mask")
    axes.legend(fontsize=TICK_SIZE, frameon=False)
    return figure


def importance_by_place(positions: pd.DataFrame) -> Figure | None:
    """Mean P of all heads by class, and by offset, a line for each λ."""
    if positions.empty:
        return None
    colours = _colours(positions["penalty"])
    figure = new_figure(FULL_WIDTH, 2.7)
    headline(figure, "Where attention is needed: mean P of all heads")
    classes, offsets = (figure.add_axes((left, 0.17, width, 0.6)) for left, width in ((0.07, 0.36), (0.50, 0.47)))
    dress(classes, "", "mean P")
    dress(offsets, "offset |i - j|", "")
    for number, (penalty, colour) in enumerate(colours.items()):
        penalty_rows = positions[positions["penalty"] == penalty]
        shift = (number - (len(colours) - 1) / 2) * 0.8 / len(colours)
        means = penalty_rows.groupby("class")["p"].mean()
        heights = [float(means.get(name, np.nan)) for name in CLASSES]
        classes.bar(np.arange(len(CLASSES)) + shift, heights, 0.8 / len(colours), color=colour)
        by_offset = penalty_rows[penalty_rows["class"] == "offset"].groupby("offset")["p"].mean()
        offsets.plot(
            by_offset.index.to_numpy(float),
            by_offset.to_numpy(float),
            color=colour,
            linewidth=1,
            label=f"λ {penalty:g}",
        )
    classes.set_xticks(range(len(CLASSES)), ["near by" if name == "neighbourhood" else name for name in CLASSES])
    for axes, words in ((classes, "by class"), (offsets, "by offset, without the special ones")):
        axes.set_ylim(0, 1.05)
        heading(axes, words, 3.0)
    offsets.legend(fontsize=TICK_SIZE, frameon=False)
    return figure


def _colours(penalties: pd.Series[float]) -> dict[float, Any]:
    """A colour for each λ, from weak to strong."""
    known = sorted(penalties.unique().tolist())
    return dict(zip(known, colormaps[SEQUENTIAL](np.linspace(0.0, 0.85, len(known))), strict=True))


@dataclass(frozen=True)
class _Saved:
    """Learned mask read from the files of a run, P and kept positions, both (layers or 1, heads, n, n)."""

    probabilities: Any
    kept: Any


def _masks(run: RecordedRun) -> Iterator[tuple[str, MaskPicture]]:
    """Those that still lie in the folder of a run.

    Raises:
        InputError: if one cannot be read.
    """
    if "sweep" not in run.tables:
        return
    rows = run.tables["sweep"].drop_duplicates("run")
    for name, mask in zip(rows["run"], rows["mask"], strict=True):
        place = run.folder / str(mask)
        beside = place.with_name("probabilities.safetensors")
        if isinstance(mask, str) and place.is_file() and beside.is_file():
            try:
                yield str(name), _Saved(load_file(beside)["p"], load_file(place)["allowed"])
            except (SafetensorError, OSError, KeyError) as problem:
                raise InputError(
                    f"{place.parent} does not hold a mask: {problem}.", "Run the command again."
                ) from problem


def _draw(run: RecordedRun) -> Drawings:
    tables = {name: table for name, table in run.tables.items() if name in ("sweep", "positions")}
    return dam_figures(tables, list(_masks(run)))


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    names = ("run", "metric", *VALUES, "sparsity", "sparsity_texts")
    records = [
        {"folder": run.folder.name, **{k: row[k] for k in names}}
        for run in runs
        if "sweep" in run.tables
        for row in run.tables["sweep"].to_dict("records")
    ]
    about = (
        "The share of masked positions and the task under the final mask, by the penalty λ; `plain` is the model as it "
        "was, `unmasked` the same training without a mask. `sparsity` is the share of n x n positions, "
        "`sparsity_texts` that of the positions of the texts, each as long as it is."
    )
    return [page_table("Masks and what models achieve under them", records, about)] if records else []


def _findings(run: RecordedRun) -> list[str]:
    if "sweep" not in run.tables:
        return []
    return [
        f"{row['model']}, {row['run']}: {float(row['sparsity_texts']):.1%} of the texts masked, {row['metric']} of "
        f"{row['task']} {number_text(row['value'])} [{number_text(row['ci_low'])}, {number_text(row['ci_high'])}]."
        for row in run.tables["sweep"].to_dict("records")
        if np.isfinite(float(row["sparsity_texts"]))
    ]


CAPTIONS = {
    "quality": Caption(
        "Quality by sparsity",
        "What the task is like under the final masks, with 95 % intervals, over the share of the texts' positions "
        "that is masked; the dashed lines have no mask: grey the model before, black one that was trained likewise.",
    ),
    "importance": Caption(
        "Where attention is needed",
        "The mean probability P that a position stays, over all heads. On the left by class: special are the first and "
        "last row and column, near by is the neighbourhood of the diagonal. On the right by distance.",
    ),
    "mask": Caption(
        "The mask",
        "The positions of every head, queries downwards and keys to the right: white ones stay, black ones are masked.",
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
            words={"run": (), "model": (), "task": (), "metric": ()},
            identity=("run", "metric"),
        ),
        "positions": Columns(numbers=("penalty", "offset", "p"), words={"class": (*CLASSES, "offset")}),
    },
    needed=("sweep", "sparsity", "positions"),
    figures=_draw,
    captions=CAPTIONS,
    sources={"quality": ("sweep",), "importance": ("positions",)},
    overviews=_overviews,
    findings=_findings,
)
