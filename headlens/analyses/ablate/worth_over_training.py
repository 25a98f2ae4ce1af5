"""What heads are worth over the checkpoints of one training: a figure, its numbers by step, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.analyses.ablate.figures import DENOISE, KEEP_ONLY
from headlens.errors import counted
from headlens.findings.verdicts import has_no_verdicts
from headlens.models.names import recorded_steps
from headlens.pages.command_report import Caption
from headlens.pages.formatting import number_text
from headlens.plots import style
from headlens.plots.curves import NO_SKILL, draw_chance, draw_intervals, draw_rims, legend_below, panels
from headlens.plots.head_grid import float_column
from headlens.plots.step_axis import dress_by_step
from headlens.runs.reading import mapping
from headlens.statistics.non_inferiority import NEEDED, NOT_DECIDED, NOT_NEEDED
from headlens.tables.shared_columns import VERDICTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "over_training"
_LOOKS = {NEEDED: ("#B2182B", "o"), NOT_NEEDED: (style.BLUE, "s"), NOT_DECIDED: (style.FAINT, "^")}
_SILENT = f"no verdicts: {NO_SKILL}, or one answer"
_HEIGHT = 2.1  # inches of a panel
CAPTION = Caption(
    "What heads are worth over training",
    "Checkpoints of one training by number of updates. Left: the metric with all heads and its 95 % interval over "
    "examples; dotted: chance level. Right: how many heads are needed, not needed, or not decided, each head alone, "
    "after Holm's correction within each checkpoint. Vertical lines stand where a model has no verdicts, as it is not "
    "shown to be better than guessing or gives one answer: nothing is counted there. Other figures show the "
    "first and the last checkpoint. Another seed may give another course.",
)


def worth_by_step(ablation: pd.DataFrame, models: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The metric with all heads, and how many heads have which verdict, by step; nothing of other models.

    Args:
        ablation: rows of ablation.csv.
        models: what run.json says of the models.

    Returns:
        Numbers of heads are NaN where a model has no verdicts.
    """
    steps, facts = recorded_steps(models), {str(model.get("model")): model for model in models}
    rows = ablation[ablation["mode"] != KEEP_ONLY]
    records = []
    for model, step in steps.items():
        if (of_model := rows[rows["model"] == model]).empty:
            continue
        metric = str(of_model["metric"].iloc[0])
        measured = mapping(mapping(facts[model].get("evaluation")).get(metric))
        silent = "verdict" not in of_model or has_no_verdicts(of_model)
        records.append(
            {"model": model, "step": step, "metric": metric, "heads": len(of_model)}
            | {name: _number(measured.get(name)) for name in ("value", "ci_low", "ci_high")}
            | {"chance": _number(mapping(facts[model].get("chance")).get(metric))}
            | {name: np.nan if silent else int((of_model["verdict"] == name).sum()) for name in VERDICTS}
        )
    return records


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else np.nan


def worth_over_training(ablation: pd.DataFrame, models: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draws the metric with all heads and the number of heads of each verdict by step; arguments as `worth_by_step`.

    Returns:
        The figure, or None where the models are not checkpoints of one training.
    """
    rows = pd.DataFrame(worth_by_step(ablation, models))
    if rows.empty:
        return None
    metric, task = rows["metric"].iloc[0], ablation["task"].iloc[0]
    titles = [f"{metric} with all heads", *["heads by verdict"] * bool(rows[list(VERDICTS)].notna().any(axis=None))]
    abreast = 1 if style.in_column() else len(titles)
    width = min(style.page_width(), style.FULL_WIDTH * len(titles) / 2)
    figure, drawn = panels(f"Over training: {task}, n = {ablation['n'].iloc[0]:,.0f}", titles, width, abreast)
    at = float_column(rows, "step")
    dress_by_step(drawn[0], at, str(metric))
    draw_intervals(drawn[0], at, rows, style.BLUE)
    drawn[0].plot(at, float_column(rows, "value"), "o-", color=style.BLUE, markersize=3.5, linewidth=1.1)
    chance = float_column(rows, "chance")
    if (known := chance[np.isfinite(chance)]).size:
        low, high = drawn[0].get_ylim()
        room = 0.05 * (high - low)
        if abs(known[-1] - np.clip(known[-1], low, high)) <= high - low:
            drawn[0].set_ylim(min(low, known[-1] - room), max(high, known[-1] + room))
        draw_chance(drawn[0], float(known[-1]))
    for axes in drawn[1:]:
        _draw_verdicts(axes, at, rows)
    if not set(ablation["mode"]) & {DENOISE}:
        _draw_silent(drawn, at[rows[NEEDED].isna().to_numpy()])
    legend_below(figure, drawn)
    style.fit_height(figure, drawn[::abreast], _HEIGHT * len(drawn[::abreast]))
    return figure


def _draw_verdicts(axes: Axes, at: Any, rows: pd.DataFrame) -> None:
    from matplotlib.ticker import MaxNLocator

    dress_by_step(axes, at, "heads")
    for name, (colour, marker) in _LOOKS.items():
        # NaN, where there are no verdicts, breaks the line.
        axes.plot(at, float_column(rows, name), color=colour, marker=marker, markersize=3.5, linewidth=1.1, label=name)
    top = float(rows["heads"].max())
    axes.set_ylim(-0.05 * top, 1.05 * top)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    draw_rims(axes)


def _draw_silent(drawn: Sequence[Axes], steps: Any) -> None:
    for axes in drawn:
        for step in steps:
            axes.axvline(step, color=style.FAINT, linewidth=0.8, linestyle=(0, (1, 2)), label=_SILENT, zorder=0)


def worth_sentences(ablation: pd.DataFrame, models: Sequence[Mapping[str, Any]]) -> list[str]:
    """How metric and verdicts differ between the first and the last checkpoint; arguments as of `worth_by_step`."""
    if not (rows := worth_by_step(ablation, models)):
        return []
    first, last, known = rows[0], rows[-1], [row for row in rows if np.isfinite(row[NEEDED])]
    text = (
        f"Over the training ({len(rows)} checkpoints): {first['metric']} with all heads {number_text(first['value'])} "
        f"at update {first['step']:,} and {number_text(last['value'])} at update {last['step']:,}"
    )
    if len(known) < len(rows) and not set(ablation["mode"]) & {DENOISE}:
        text += f"; {counted(len(rows) - len(known), 'checkpoint')} without verdicts"
    for row in known[:: max(1, len(known) - 1)]:
        counts = ", ".join(f"{row[name]} {name}" for name in VERDICTS)
        text += f"; of {row['heads']} heads at update {row['step']:,}: {counts}"
    return [f"{text}. This is one training: it does not show that another seed would give the same."]
