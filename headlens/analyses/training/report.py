"""How training went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.errors import counted
from headlens.learning.alphas_figure import ALPHAS, CAPTION, alpha_histograms
from headlens.pages.command_report import Caption, CommandReport, Figures
from headlens.pages.formatting import value_text
from headlens.pages.page_tables import PageTable, interval_cell, page_table
from headlens.plots import style
from headlens.plots.curves import VALUES, draw_chance, legend_below
from headlens.plots.head_grid import float_column
from headlens.runs.reading import RecordedRun, mapping, run_label, tables_of
from headlens.tables.every_table import TABLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ONLY_TRAINING = "only_in_training_loss"  # of run.json
_FEW = 20  # points of a line that has dots


@dataclass(frozen=True)
class CurveFacts:
    """What is known of the losses of a training besides their numbers.

    Args:
        saved: the update whose weights were saved, if they are those of an evaluation.
        chance: the held-out loss of the best constant prediction, NaN where that is not known; a number where it would
            take most of the room.
        only_training: what the loss in training has and that of the evaluations has not, such as dropout.
        loss: what it is, where it is no cross-entropy.
    """

    saved: int | None = None
    chance: float = math.nan
    only_training: Sequence[str] = ()
    loss: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> CurveFacts:
        """Returns what run.json holds of them; those of earlier versions have less."""
        saved, only_training, loss = (record.get(name) for name in ("checkpoint", ONLY_TRAINING, "loss"))
        chance = record.get("chance_loss")  # earlier runs have the loss of guessing evenly, which is another thing
        return cls(
            saved if isinstance(saved, int) else None,
            chance if isinstance(chance, float) else math.nan,
            [str(name) for name in only_training] if isinstance(only_training, list) else [],
            str(loss or ""),
        )


def training_curve(
    log: pd.DataFrame,
    evaluations: pd.DataFrame,
    model: str = "",
    data: str = "",
    facts: CurveFacts | None = None,
) -> Figure | None:
    """The loss in training, and that of the evaluations, by update.

    Args:
        log: rows of `log.csv`: step, loss.
        evaluations: rows of `evaluations.csv`: step, loss; may be empty.
        model: its name, for the title.
        data: name of what it learns from, for the title.
        facts: what else is known of the losses.

    Returns:
        The figure, or None when nothing was logged.
    """
    from matplotlib.ticker import MaxNLocator

    if log.empty:
        return None
    facts = facts or CurveFacts()
    width = min(style.page_width(), style.FULL_WIDTH / 2)
    about = [
        f"{word} {style.one_line(name, width - 0.8, style.TITLE_SIZE)}"
        for word, name in (("of", model), ("data:", data))
        if name
    ]
    shown = "Training and held-out loss" if "loss" in evaluations else "Training loss"
    # The lines are no measure of overfitting then.
    differs = "loss" in evaluations and len(facts.only_training) > 0
    about += [f"(only the training loss has {' and '.join(facts.only_training)})"] * differs
    figure = style.constrained_figure(width, 2.4, "\n".join([" ".join([shown, *about[:1]]), *about[1:]]))
    axes = figure.subplots()
    style.dress(axes, "update", f"loss ({facts.loss})" if facts.loss else "loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    # The line of few points, each a mean since the last one, would look like more than it is.
    marker = "." if len(log) <= _FEW else ""
    training = log, marker, style.BLUE, "training, mean since the last point"
    for table, marker, color, label in (training, (evaluations, "o", style.ORANGE, "held-out examples")):
        if "loss" in table:
            steps, losses = float_column(table, "step"), float_column(table, "loss")
            axes.plot(steps, losses, marker=marker, markersize=3, color=color, linewidth=1, label=label)
    if facts.saved is not None:
        axes.axvline(
            facts.saved, color=style.FAINT, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1, label="saved checkpoint"
        )
    (bottom, top), chance = axes.get_ylim(), facts.chance
    if abs(chance - np.clip(chance, bottom, top)) <= top - bottom:
        axes.set_ylim(min(bottom, chance - 0.05 * (top - bottom)), max(top, chance + 0.05 * (top - bottom)))
    draw_chance(axes, chance)
    low, high = axes.get_xlim()
    if high - low < 2:  # whole numbers need room
        axes.set_xlim((low + high) / 2 - 1, (low + high) / 2 + 1)
    legend_below(figure, [axes])
    return figure


def _draw(run: RecordedRun) -> Figures:
    if "log" in run.tables:
        data = run.corpus_name or str(mapping(run.record.get("data")).get("name") or "")
        evaluations = run.tables.get("evaluations", pd.DataFrame())
        yield "training", training_curve(run.tables["log"], evaluations, run.models[0], data, CurveFacts.of(run.record))
    if ALPHAS in run.tables:
        yield ALPHAS, alpha_histograms(run.tables[ALPHAS])


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    """What the trained models achieve on what was held out."""
    records = [
        run_label(run, runs)
        | {k: row[k] for k in ("model", "task", "data", "metric", "n", "value")}
        | {"95 % interval": interval_cell((row["ci_low"], row["value"], row["ci_high"], row["value"]), (0.0, 1.0))}
        for run, metrics in tables_of(runs, "metrics")
        for row in metrics.to_dict("records")
    ]
    about = (
        "The model at the end, on the examples that were held out, with intervals over examples: Wilson intervals "
        "for accuracy and exact match, otherwise bootstrap intervals."
    )
    return [page_table("What the model achieves", records, about)] if records else []


def _findings(run: RecordedRun) -> list[str]:
    rows = run.tables["metrics"].dropna(subset=["n", "value"]).to_dict("records") if "metrics" in run.tables else []
    return [
        f"{row['model']}: {row['metric']} on {row['task']} {value_text(*(row[name] for name in VALUES))} on "
        f"{counted(int(row['n']), 'example')} of {row['data']}."
        for row in rows
    ]


REPORT = CommandReport(
    "train",
    tables=TABLES["train"],
    figures=_draw,
    captions={
        "training": Caption(
            "Training",
            "The loss by update: each point of the line is the mean over the batches since the previous point; dots "
            "are evaluations on held-out data. The dashed line stands at the update whose weights were saved, the "
            "dotted one at the held-out loss of the best constant prediction: the frequencies of tokens or classes, or "
            "the mean score.",
        ),
        ALPHAS: CAPTION,
    },
    sources={"training": ("log", "evaluations"), ALPHAS: (ALPHAS,)},
    overviews=_overviews,
    findings=_findings,
)
