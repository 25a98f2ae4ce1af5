"""How roles change over the checkpoints of one training: a figure, its numbers by step, and a sentence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.analyses.classify.probe_report import best_probed
from headlens.findings.before_after import role_text
from headlens.models.names import first_and_last
from headlens.pages.command_report import Caption
from headlens.plots import style
from headlens.plots.curves import draw_intervals, legend_below, panels
from headlens.plots.head_grid import by_model_and_stack, float_column, rows_of_models
from headlens.plots.role_colours import COLOURS, FAMILIES, NONE, families, family
from headlens.plots.step_axis import dress_by_step
from headlens.roles.even_attention import is_even

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "over_training"
_MEANS = {"confidence": ("confidence", "-", "D"), "entropy_norm": ("entropy", "--", "s")}
_MARKERS = ("o", "s", "D", "^", "v", "P", "h")
_PROBE_COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.VERMILION, style.SKY)
_HEIGHT = 1.9  # inches of a panel
_PLACE = ["stack", "layer", "head"]
_EVEN = "hollow: nearly all heads attend evenly"
CAPTION = Caption(
    "Roles over training",
    "Checkpoints of one training by number of updates. Left: how many heads of the stack hold each role, as in "
    "heads.csv; a head that holds several counts for each, and relations count as one role. Points are hollow where "
    "nearly all heads attend evenly. Beside it: the mean over heads of confidence and of entropy (as a share of the "
    "largest), and with --probes the score of the best head of each probe with its 95 % interval, dashed its "
    "control; the best head is chosen anew at every step, on the prompts that it is scored on. Other figures "
    "show the first and the last checkpoint. Another seed may give another course.",
)


def steps_first(tables: Mapping[str, pd.DataFrame], steps: Mapping[str, int]) -> list[str]:
    """What is said first of checkpoints of one training; nothing of other models."""
    heads = tables.get("heads", pd.DataFrame({"model": []}))
    return [_change(heads, steps)] if steps and set(steps) <= set(heads["model"]) else []


def of_last_checkpoint(tables: Mapping[str, pd.DataFrame], steps: Mapping[str, int]) -> Mapping[str, pd.DataFrame]:
    """The rows of the last of several checkpoints, without tables that compare models; all rows of other models."""
    if not steps:
        return tables
    alone = {name: frame for name, frame in tables.items() if "other_model" not in frame}
    return rows_of_models(alone, first_and_last(steps)[1:])


def roles_by_step(heads: pd.DataFrame, steps: Mapping[str, int]) -> list[dict[str, Any]]:
    """How many heads hold each role, and the means of confidence and entropy, by step and stack.

    Args:
        heads: rows of heads.csv.
        steps: by name of the model; other models are left out.
    """
    counted = [(steps[part.model], part, _held(part.rows)) for part in by_model_and_stack(heads) if part.model in steps]
    present = [name for name in FAMILIES if any(name in counts for *_, counts in counted)]
    return [
        {"step": step, "stack": part.stack, "heads": len(part.rows)}
        | {role_text(name): int(counts.get(name, 0)) for name in present}
        | {title: _mean(part.rows, column) for column, (title, *_) in _MEANS.items()}
        for step, part, counts in counted
    ]


def roles_over_training(
    heads: pd.DataFrame, steps: Mapping[str, int], probes: pd.DataFrame | None = None
) -> Figure | None:
    """Draws the number of heads of each role, means, and scores of probes by step, a line of panels for each stack.

    Args:
        heads: rows of heads.csv.
        steps: by name of the model, in ascending order.
        probes: rows of probes.csv.

    Returns:
        The figure, or None without steps.
    """
    parts = [part for part in by_model_and_stack(heads) if part.model in steps]
    if not parts:
        return None
    stacks = list(dict.fromkeys(part.stack for part in parts))
    named = "" if len(stacks) == 1 else ", {}"
    titles = ["heads by role" + named, "mean over heads" + named]
    titles += ["best head on prompts"] * (probes is not None)
    abreast = 1 if style.in_column() else len(titles)
    width = min(style.page_width(), style.FULL_WIDTH)
    all_titles = [title.format(stack) for stack in stacks for title in titles]
    figure, drawn = panels("Roles over training", all_titles, width, abreast)
    places = np.array(list(steps.values()), float)
    for number, stack in enumerate(stacks):
        first, second, *others = drawn[number * len(titles) : (number + 1) * len(titles)]
        by_step = [(steps[part.model], part.rows) for part in parts if part.stack == stack]
        _draw_roles(first, by_step, places)
        _draw_means(second, by_step, places)
        for axes in others:
            assert probes is not None
            _draw_probes(axes, probes[probes["stack"] == stack], steps, places)
    legend_below(figure, drawn)
    style.fit_height(figure, drawn[::abreast], _HEIGHT * len(drawn[::abreast]))
    return figure


def _held(rows: pd.DataFrame) -> pd.Series[int]:
    """How many heads hold a role of each family; `none` is of those without."""
    held = rows["roles"].fillna("").map(lambda roles: {family(role) for role in str(roles).split("; ")})
    counts: pd.Series[int] = held.explode().value_counts()
    return counts


def _mean(rows: pd.DataFrame, column: str) -> float:
    values = float_column(rows, column)
    return float(np.mean(values[np.isfinite(values)])) if np.isfinite(values).any() else np.nan


def _draw_roles(axes: Axes, by_step: Collection[tuple[int, pd.DataFrame]], places: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    dress_by_step(axes, places, "heads")
    at = np.array([step for step, _ in by_step], float)
    counts = [_held(rows) for _, rows in by_step]
    even = np.array([is_even(rows) for _, rows in by_step], bool)
    present = [name for name in FAMILIES if any(name in count for count in counts)]
    for number, name in enumerate(present):
        values = np.array([count.get(name, 0) for count in counts], float)
        colour = style.FAINT if name == NONE else COLOURS[name]
        looks: dict[str, Any] = {"marker": _MARKERS[number % len(_MARKERS)], "color": colour, "markersize": 3.5}
        looks |= {"markeredgecolor": style.INK, "markeredgewidth": 0.3}
        label = "no role" if name == NONE else name
        axes.plot(at, values, linestyle="--" if name == NONE else "-", linewidth=1.1, label=label, **looks)
        axes.plot(at[even], values[even], linestyle="none", **looks, markerfacecolor="white")
    if even.any():
        axes.plot([], [], "o", color=style.INK, markerfacecolor="white", markersize=3.5, label=_EVEN)
    axes.set_ylim(bottom=-0.04 * axes.get_ylim()[1])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_means(axes: Axes, by_step: Collection[tuple[int, pd.DataFrame]], places: Any) -> None:
    dress_by_step(axes, places, "share")
    at = np.array([step for step, _ in by_step], float)
    for column, (name, line, marker) in _MEANS.items():
        values = [_mean(rows, column) for _, rows in by_step]
        looks: dict[str, Any] = {"color": style.INK, "linewidth": 1.1, "markersize": 3.0}
        axes.plot(at, values, linestyle=line, marker=marker, label=f"mean {name}", **looks)
    axes.set_ylim(-0.03, 1.03)


def _draw_probes(axes: Axes, probes: pd.DataFrame, steps: Mapping[str, int], places: Any) -> None:
    dress_by_step(axes, places, "score")
    for number, (probe, rows) in enumerate(probes.groupby("probe", sort=False)):
        best = pd.concat([best_probed(rows[rows["model"] == model]) for model in steps]).assign(
            at=lambda chosen: chosen["model"].map(dict(steps)), value=lambda chosen: chosen["score"]
        )
        at, colour = float_column(best, "at"), _PROBE_COLOURS[number % len(_PROBE_COLOURS)]
        looks: dict[str, Any] = {"color": colour, "linewidth": 1.1}
        axes.plot(at, float_column(best, "value"), marker="^", markersize=4.0, label=f"best head, {probe}", **looks)
        draw_intervals(axes, at, best, colour)
        axes.plot(at, float_column(best, "control"), linestyle=(0, (2, 2)), label=f"its control, {probe}", **looks)
    axes.set_ylim(-0.03, 1.03)


def _change(heads: pd.DataFrame, steps: Mapping[str, int]) -> str:
    """How roles differ between the first and the last checkpoint, in a sentence."""
    ends = first_and_last(steps)
    (start, first), (end, last) = ((steps[model], heads[heads["model"] == model]) for model in ends)
    before, after = _held(first), _held(last)
    roled = (f"{len(rows) - int(held.get(NONE, 0))} of {len(rows)}" for rows, held in ((first, before), (last, after)))
    text = f"Over the training ({len(steps)} checkpoints): heads with a role: {next(roled)} at update {start:,}, "
    text += f"{next(roled)} at update {end:,}"
    change = after.sub(before, fill_value=0).drop(labels=NONE, errors="ignore")
    if change.abs().max() > 0:
        name = str(change.abs().idxmax())
        text += f"; the role {name} differs most between the two: {before.get(name, 0)} and {after.get(name, 0)} heads"
    both = first[[*_PLACE, "role"]].merge(last[[*_PLACE, "role"]], on=_PLACE)
    other = sum(a != b for a, b in zip(families(both["role_x"]), families(both["role_y"]), strict=True))
    verb = "has" if other <= 1 else "have"
    text += f"; {other or 'none'} of {len(both)} {verb} another strongest role at the end than at the beginning"
    return f"{text}. This is one training: it does not show that another seed would give the same."
