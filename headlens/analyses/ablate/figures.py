"""What a task loses without each head, as a heatmap, and with many heads, by how these were chosen."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.analyses.ablate.options import STRATEGIES
from headlens.analyses.ablate.pruning_strategies import CONTROLS, RANDOM_SETS
from headlens.analyses.ablate.rankings import sets_have_no_verdicts
from headlens.findings.verdicts import has_no_verdicts
from headlens.plots import curves, style
from headlens.plots.axis_labels import token_label
from headlens.plots.head_grid import Grid, StackRows, by_model_and_stack, float_column, flow, has_numbers, panel
from headlens.plots.heatmaps import ABREAST, Cells, centred_scale, holds_zero, interval_map
from headlens.statistics.non_inferiority import LEVEL, NOT_DECIDED, NOT_NEEDED
from headlens.tables.same_answers import answer_shares
from headlens.tasks.task_options import FEW_EXAMPLES, LOWER_IS_BETTER, NO_UPPER_END, WRITTEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEEP_ONLY = "keep-only"
_DOT = f"Dot: p < {LEVEL} after Holm's correction for all heads; heads without a dot are pale."
_PALE = f"Pale: p of {LEVEL} or more after Holm's correction for all heads."
_RING = "Ring: not needed, since the loss is shown to be below the margin."
_RING_ALONE = "Ring: the other heads of the layer are not needed, since their loss is shown to be below the margin."
_UNMARKED = "No mark: not decided."
_NOT_ABLATED = "Hatched: not ablated, since their attribution is smaller in size."
_SILENT = "Heads of a model that is not shown to be better than guessing have no verdicts"
_SILENT_DOTS = "; dots there say only that something changes"
_ABREAST = 48  # heads of a full line: three stacks of 16
# Red is what makes the model worse.
_HIGHER, _LOWER = "RdBu", "RdBu_r"
_REPLACED = {
    "zero": "without each head",
    "mean": "with each head's output replaced by its mean",
    "uniform": "with uniform attention in each head",
    "resample": "with each head's output on another example",
    "counterfactual": "with each head's output on the changed text",
    "path": "with each head's output on the changed text, by the direct path alone",
    "denoise": "on the changed text with each head's output on the original",
    "optimal": "with a constant, fitted to other examples, instead of each head",
    KEEP_ONLY: "with each head as the only one in its layer",
}
DENOISE = "denoise"
NONE, RANDOM = "none", "random"
_WHOLE, _ONE_ORDER = "no heads pruned", "one random order"
_BY_LAYER = "random-by-layer"
_LABELS = {
    _BY_LAYER: "random sets by layer (range, mean)",
    "placebo": "random sets of other heads",
}
# Colours and markers, one for each strategy, so that lines are told apart in grey too. Markers have
# room for white inside, as the hollow ones say something else than the filled ones.
_COLOURS = (
    style.BLUE,
    style.ORANGE,
    style.PURPLE,
    style.GREEN,
    style.VERMILION,
    style.SKY,
    style.BROWN,
    style.NAVY,
    style.OLIVE,
    style.MAROON,
    style.TEAL,
    style.INK,
)
_MARKERS = ("o", "s", "D", "^", "v", "P", "h", "p", "<", ">", "8", "H")
# inches
_BESIDE, _HEIGHT = 0.7, 2.3
_APART, _TICK = 0.05, 0.22
_LETTERS = 20  # of a strategy's name
_BAR = 5.0  # points


def ablation_map(ablation: pd.DataFrame, *, keep_only: bool = False) -> Figure | None:
    """Draws the change in a metric without each head, in colours with 0 in the middle and one scale for all models.

    Cells that are large enough hold the difference and half the width of its paired 95 % interval; a dot marks heads
    whose difference is significant after Holm's correction, all others are pale. Red is worse.

    Args:
        ablation: rows of `ablation.csv`, of one model or several.
        keep_only: draw the model with each head alone in its layer instead.

    Returns:
        The figure, or None when there are no such rows.
    """
    return _drawn(ablation[(ablation["mode"] == KEEP_ONLY) == keep_only])


def side_by_side(ablation: pd.DataFrame) -> Figure | None:
    """Draws the colours and dots with two models, or the stacks of one, beside each other, too small for numbers.

    Args:
        ablation: rows of `ablation.csv`; those of each head alone are left out.

    Returns:
        The figure, or None when that brings no more panels beside each other than `ablation_map` does.
    """
    rows = ablation[ablation["mode"] != KEEP_ONLY]
    sizes = [(p.model, panel(p.rows, float_column(p.rows, "delta"), "")) for p in by_model_and_stack(rows)]
    if list(map(len, flow(sizes, _ABREAST))) == list(map(len, flow(sizes, ABREAST))):
        return None
    # in a column nothing would stand beside anything
    with style.drawn_for("full"):
        return _drawn(rows, _ABREAST)


def _unsure(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Heads whose removal may change nothing: of many heads some intervals leave 0 out by chance."""
    tested = np.isfinite(float_column(rows, "p_holm"))
    return np.where(tested, ~significant(rows), holds_zero(rows)).astype(bool)


def _drawn(rows: pd.DataFrame, abreast: int = ABREAST) -> Figure | None:
    if not has_numbers(rows, "delta"):
        return None
    metric, task, mode = (", ".join(map(str, rows[c].dropna().unique())) for c in ("metric", "task", "mode"))
    unbounded, lower = (set(rows["metric"]) <= names for names in (NO_UPPER_END, LOWER_IS_BETTER))
    margin = float_column(rows, "margin")
    # A loss may explode without a head; of other metrics a large change is what is looked for. Changes far below the
    # margin must not look as if they mattered.
    scale = centred_scale(
        f"change in {metric}",
        rows,
        "delta",
        _LOWER if lower else _HIGHER,
        with_outliers=not unbounded,
        least=float(np.max(margin, where=np.isfinite(margin), initial=0.0)),
    )
    # The note tells the marks that are drawn, and no others.
    dotted, ringed, undecided = significant(rows), _have(NOT_NEEDED, rows), _have(NOT_DECIDED, rows)
    tested = np.isfinite(float_column(rows, "p_holm")).any()
    ring = _RING_ALONE if set(rows["mode"]) == {KEEP_ONLY} else _RING
    marks = [ring] * bool(ringed.any()) + [_UNMARKED] * bool((undecided & ~dotted).any())
    judged = rows["verdict"].notna().to_numpy() if "verdict" in rows else np.ones(len(rows), bool)
    silent = ~(judged | not_ablated(rows))
    marks += [f"{_SILENT}{_SILENT_DOTS * bool((silent & dotted).any())}."] * bool(marks and silent.any())
    cells = Cells(
        "delta",
        significant,
        _DOT if dotted.any() else "",
        _name,
        abreast,
        _unsure,
        pale="" if dotted.any() else _PALE if tested else Cells.pale,
        ringed=partial(_have, NOT_NEEDED),
        ring=" ".join(marks),
        hatched=not_ablated,
        hatch=_NOT_ABLATED,
        remark=f"Margin, the smallest loss that matters: {margins}."
        if (margins := curves.level_text(rows[judged], "margin"))
        else "",
    )
    replaced = f"{_REPLACED.get(mode, mode)}{receiver_text(rows)}"
    title = f"Ablation: change in {metric} on {task} {replaced}{curves.examples_text(rows)}"
    return interval_map(rows, cells, scale, title)


def receiver_text(rows: pd.DataFrame) -> str:
    """Returns where direct paths lead to, to stand behind other words; empty for modes other than `path`."""
    names = rows["receiver"].dropna().astype(str).unique() if "receiver" in rows else ()
    return "".join(f" to {'the outputs' if name == 'outputs' else name}" for name in names)


def _have(verdict: str, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which heads have a verdict; none in tables of older versions, and of too few examples to name heads by."""
    if "verdict" not in rows:
        return np.zeros(len(rows), bool)
    return (rows["verdict"] == verdict).to_numpy(bool) & ~(float_column(rows, "n") < FEW_EXAMPLES)


def significant(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Heads whose removal changes the metric for sure."""
    return float_column(rows, "p_holm") < LEVEL


def not_ablated(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Heads that attribution ranked below those that were ablated, see `--strategy-args confirm`."""
    if "confirmed" not in rows:
        return np.zeros(len(rows), bool)
    return ~rows["confirmed"].astype(bool).to_numpy()


def _name(part: StackRows) -> str:
    known = float_column(part.rows, "baseline")
    shares = float_column(part.rows, "baseline_answer_share")
    # What guesses give of texts that are written is not known.
    tested = str(part.rows["task"].iloc[0]) not in WRITTEN if "task" in part.rows else True
    same = curves.silence_text(shares[0], guesses=tested and has_no_verdicts(part.rows))
    shown = f"{known[0]:.3f}" if abs(known[0]) < 10 else f"{known[0]:.4g}"
    if (original := float_column(part.rows, "on_original")).size and np.isfinite(original[0]):
        shown, same = f"{shown} on the changed texts, {original[0]:.3f} on the originals,", ""
    baseline = f"{shown} with all heads" if np.isfinite(known[0]) else ""
    return "\n".join(filter(None, (part.name, baseline, same)))


def pruning_curve(pruning: pd.DataFrame) -> Figure | None:
    """The metric on the evaluation part against the number of heads pruned, with 95 % intervals; a panel per model.

    The dashed line and its band are the whole model, the dotted line is what guesses give, unless that is far below. Of
    several random orders every one is a point, and the line their mean. Controls of a strategy have its colour: a bar
    from the lowest to the highest of its random sets by layer, a cross for each set of other heads. All panels have the
    same axes.

    Args:
        pruning: rows of `pruning.csv`, of one model or several.

    Returns:
        The figure, or None when nothing was pruned.
    """
    if not has_numbers(pruning[pruning["n_pruned"] > 0], "value"):
        return None
    models = [str(name) for name in pruning["model"].unique()]
    titles = [panel_title(name, pruning) for name in models]
    metric, task = (", ".join(map(str, pruning[c].unique())) for c in ("metric", "task"))
    verdicts = curves.verdicts_text(pruning[~pruning["strategy"].isin((NONE, *RANDOM_SETS))])
    title = f"Pruning: {metric} on {task} by number of heads pruned\n({curves.intervals_text(pruning)}{verdicts})"
    width = min(style.page_width(), style.FULL_WIDTH * (1 if len(models) > 1 else 0.7))
    abreast = 1 if style.in_column() else len(models)
    inches = width / abreast - _BESIDE
    figure, drawn = curves.panels(title, titles, width, abreast)
    (low, high), values, apart = _span(pruning, inches)
    for axes, model in zip(drawn, models, strict=True):
        style.dress(axes, "heads pruned", style.fold(metric, _HEIGHT, style.LABEL_SIZE))
        rows = pruning[pruning["model"] == model]
        curves.draw_level(axes, rows[rows["strategy"] == NONE], _WHOLE)
        strategies = _strategies(rows)
        # beside each other, so that intervals can be told apart
        shifts = {name: apart * (number - (len(strategies) - 1) / 2) for number, name in enumerate(strategies)}
        for strategy, shift in shifts.items():
            _draw_strategy(axes, rows[rows["strategy"] == strategy], strategy, shift, judged=bool(verdicts))
        for strategy, shift in shifts.items() if "control_of" in rows else ():
            _draw_controls(axes, rows[rows["control_of"] == strategy], look(strategy)[0], shift, 0.4 * apart)
        axes.set(xlim=(low, high), ylim=values, xticks=_ticks(_counts(pruning), _TICK * (high - low) / inches))
        curves.draw_chance(axes, _chance(rows))
    curves.legend_below(figure, drawn)
    style.fit_height(figure, drawn[::abreast], _HEIGHT * len(drawn[::abreast]))
    return figure


def panel_title(name: str, pruning: pd.DataFrame) -> str:
    """Returns a model, and below it whether with all its heads it gives nearly one answer alone, or guesses.

    Args:
        name: of the model.
        pruning: rows of `pruning.csv`, of it and perhaps others.
    """
    rows = pruning[pruning["model"].astype(str) == name]
    share = answer_shares(rows[rows["strategy"] == NONE])
    guesses = sets_have_no_verdicts(rows) and not set(rows["task"]) & set(WRITTEN)
    return curves.unpruned_title(name, next(iter(share), math.nan), guesses=guesses)


def _chance(pruning: pd.DataFrame) -> float:
    """What guesses give of the metric; NaN where that is not known, as in tables of older versions."""
    known = float_column(pruning, "chance")
    return float(known[0]) if len(known) else math.nan


def _counts(pruning: pd.DataFrame) -> Grid:
    """Numbers of heads, ascending, without that of the whole model."""
    counts: Grid = np.unique(float_column(pruning, "n_pruned"))
    return counts[counts > 0]


def _span(pruning: pd.DataFrame, inches: float) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Limits of the numbers of heads and of the metric, and how far apart strategies are drawn."""
    counts = _counts(pruning)
    wide = float(np.ptp(counts)) or 2.0
    middle = float(counts[0] + counts[-1]) / 2
    # Of random orders values are drawn, and no intervals.
    # So are those of controls, however few.
    several = pruning.groupby(["model", "strategy", "n_pruned"])["value"].transform("size") > 1
    several |= pruning["strategy"].isin(CONTROLS)
    ends = {name: pruning[name].where(~several) for name in ("ci_low", "ci_high") if name in pruning}
    known = curves.known_values(pruning.assign(**ends))
    # Guesses are in the picture unless they would take more room than all the rest.
    near = abs(float(known.min()) - _chance(pruning)) <= np.ptp(known)
    known = np.append(known, _chance(pruning)) if near else known
    margin = 0.04 * (float(np.ptp(known)) or 1.0)
    apart = (0.15 if len(counts) == 1 else _APART) * 1.14 * wide / inches
    apart *= 2 if pruning["strategy"].isin(CONTROLS).any() else 1
    # no strategy stands where another number of heads is
    usual = float(np.median(np.diff(counts))) if len(counts) > 1 else wide
    apart = min(apart, 0.8 * usual / max(1, len(_strategies(pruning))))
    values = curves.no_shorter_than_margin((float(known.min()) - margin, float(known.max()) + margin), pruning)
    # Room for the outermost strategies beside the smallest and the largest number.
    half = 0.5 * wide + max(0.07 * wide, apart * (0.5 * len(_strategies(pruning)) + 1.0))
    return (middle - half, middle + half), values, apart


def _ticks(counts: Grid, room: float) -> list[float]:
    """The numbers of heads, but for those too close to a larger one to be written beside it."""
    ticks = list[float]()
    for count in counts[::-1]:
        if not ticks or ticks[-1] - count >= room:
            ticks.append(float(count))
    return ticks[::-1]


def look(strategy: str) -> tuple[str, str]:
    """Returns colour and marker of a strategy, by its place among those there are; random orders are grey."""
    if strategy == RANDOM:
        return style.FAINT, "x"
    places = [name for name in STRATEGIES if name not in RANDOM_SETS]
    place = places.index(strategy) if strategy in places else len(places)
    return _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)]


def _strategies(rows: pd.DataFrame) -> list[str]:
    return [str(name) for name in rows["strategy"].unique() if name not in (NONE, *CONTROLS)]


def _draw_strategy(axes: Axes, rows: pd.DataFrame, strategy: str, shift: float, *, judged: bool) -> None:
    colour, marker = look(strategy)
    means = rows.assign(value=float_column(rows, "value")).groupby("n_pruned")["value"].mean()
    orders = int(rows.groupby("n_pruned").size().max())
    label = token_label(strategy, _LETTERS) + (f", mean of {orders}" if orders > 1 else "")
    places, mean = means.index.to_numpy(float) + shift, means.to_numpy(float)
    axes.plot(places, mean, color=colour, marker=marker, markersize=3.5, linewidth=1.0, label=label)
    at, value = float_column(rows, "n_pruned") + shift, float_column(rows, "value")
    curves.draw_same_answers(axes, at, rows)
    if orders > 1:
        single: dict[str, Any] = {"label": _ONE_ORDER, "linestyle": "none", "zorder": 2}
        axes.plot(at, value, marker, color=colour, markersize=2.5, alpha=0.5, **single)
        return
    curves.draw_intervals(axes, at, rows, colour)
    if strategy != RANDOM:
        curves.draw_verdicts(axes, at, rows, colour, marker, judged=judged)


def _draw_controls(axes: Axes, rows: pd.DataFrame, colour: str, shift: float, beside: float) -> None:
    """Random sets beside those of a strategy, in its colour: bars over their range behind it, crosses beside it."""
    for name in CONTROLS:
        own = rows[rows["strategy"] == name]
        at, value = float_column(own, "n_pruned") + shift, float_column(own, "value")
        if not len(own):
            continue
        if name == _BY_LAYER:
            ends = own.assign(value=value, at=at).groupby("at")["value"].agg(["min", "mean", "max"])
            bars: dict[str, Any] = {"linewidth": _BAR, "alpha": 0.3, "capstyle": "butt", "zorder": 1}
            axes.vlines(ends.index, ends["min"], ends["max"], color=colour, **bars)
            # Seen also where all sets have the same value.
            axes.plot(ends.index, ends["mean"], "_", color=colour, markersize=_BAR + 1, linestyle="none", zorder=1)
            axes.plot([], [], color=style.FAINT, linewidth=_BAR, alpha=0.5, label=_LABELS[name])
        else:
            axes.plot(at + beside, value, "+", color=colour, markersize=3.5, alpha=0.7, linestyle="none", zorder=2)
            axes.plot([], [], "+", color=style.FAINT, markersize=3.5, linestyle="none", label=_LABELS[name])
