"""Lines of a metric with intervals, beside the level of the whole model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.plots.head_grid import Grid, float_column
from headlens.plots.style import HALF_FILLED, INK, TICK_SIZE, constrained_figure, fold, heading, legend_looks
from headlens.statistics.bootstrap import FEWEST
from headlens.statistics.non_inferiority import NEEDED, NOT_DECIDED, NOT_NEEDED
from headlens.tables.same_answers import NEARLY_ALL, answer_shares, same_answer_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VALUES = ("value", "ci_low", "ci_high")
# Lower ends of metrics of tasks that go below 0.
_LOWEST = {"matthews": -1.0, "pearson": -1.0, "spearman": -1.0, "logit_difference": -math.inf}
CHANCE_LABEL = "chance level"
SAME_ANSWER = f"≥ {100 * NEARLY_ALL:.0f} % same answer"
FRAMED = (
    f"A square frames models that give the same answer to {100 * NEARLY_ALL:.0f} % of the examples or more."  # captions
)
_NO_VERDICT = "no verdict"
NO_SKILL = "not shown to be better than guessing"
BAND = " (band: 95 %)"  # of a level, in legends
_LEVEL, _DASH = "level", 4.0  # the length in line widths
_NO_POINT = ("None", None, "", "_", "|")  # of lines, and of the caps of intervals
SAME_PLACE = 0.02  # of the length of an axis
_BELOW_ZERO = 0.05  # of the length of an axis: room for the point at 0
_ROOM = 3.0  # inches, more than a line of panels or a legend needs


def lowest_value(metric: str) -> float:
    """Returns the lower end of what a metric can be: 0 for most, -infinity where it has none."""
    return _LOWEST.get(metric, 0.0)


def draw_level(axes: Axes, rows: pd.DataFrame, label: str, *, sideways: bool = False, colour: str = INK) -> None:
    """Draws a dashed line at each row's `value`, and a band from `ci_low` to `ci_high` if there is one.

    Sideways the values run along the x axis, and the line stands upright. A second line in the same place fills the
    gaps of the first, so that both are seen.
    """
    line, band = (axes.axvline, axes.axvspan) if sideways else (axes.axhline, axes.axhspan)
    for value, low, high in zip(*(float_column(rows, name) for name in VALUES), strict=True):
        place = "xdata" if sideways else "ydata"
        below = sum(getattr(other, f"get_{place}")()[0] == value for other in axes.lines if other.get_gid() == _LEVEL)
        dashes = _DASH * (below % 2), (_DASH, _DASH)
        banded = bool(np.isfinite([low, high]).all() and low < high)
        text = label + BAND * banded
        line(value, color=colour, linewidth=0.8, linestyle=dashes, label=text, zorder=1, gid=_LEVEL)
        if banded:
            band(low, high, color=colour, alpha=0.07, linewidth=0, zorder=0)


def chance_label(level: float, ends: tuple[float, float]) -> str:
    """Returns what legends call the line of what guessing gives, with the number where the axis ends before it."""
    if ends[0] <= level <= ends[1]:
        return CHANCE_LABEL
    side = "below" if level < ends[0] else "above"
    return "" if np.isnan(level) else f"{CHANCE_LABEL} {level:.3g} ({side} the axis)".replace("-", "−")


def draw_chance(axes: Axes, level: float) -> None:
    """Draws a dotted line at what guessing gives; far from all values it would take their room, and has a number.

    Args:
        axes: with their final limits.
        level: NaN where it is not known.
    """
    label = chance_label(level, axes.get_ylim())
    # Heavier than the dashes of another level, that it is seen on them.
    looks: dict[str, Any] = {"color": INK, "linewidth": 1.6, "linestyle": (0, (1, 3)), "label": label, "zorder": 1}
    if label == CHANCE_LABEL:
        axes.axhline(level, **looks)
    elif label:
        axes.plot([], [], **looks)


def draw_intervals(axes: Axes, at: Grid, rows: pd.DataFrame, colour: str, *, sideways: bool = False) -> None:
    """Draws the intervals of rows as error bars at their places on the x axis, or sideways on the y axis."""
    values, low, high = (float_column(rows, name) for name in VALUES)
    spread = np.clip(np.vstack([values - low, high - values]), 0, None)
    xy = (values, at) if sideways else (at, values)
    errors: dict[str, Any] = {"xerr" if sideways else "yerr": spread}
    axes.errorbar(*xy, **errors, fmt="none", ecolor=colour, elinewidth=0.7, capsize=1.5, zorder=2)


def draw_verdicts(axes: Axes, at: Grid, rows: pd.DataFrame, colour: str, marker: str, *, judged: bool = True) -> None:
    """Marks points that were drawn filled by their verdicts: hollow if not decided, ringed if not needed, half if none.

    Args:
        axes: with the points.
        at: their places on the x axis.
        rows: with `value`; nothing is marked without a column `verdict`.
        colour: of the points.
        marker: of the points.
        judged: whether any point of the figure has a verdict; else all stay filled.
    """
    if "verdict" not in rows:
        return
    values = float_column(rows, "value")
    looks = {NOT_DECIDED: (marker, 3.5, "white", 1.0), NOT_NEEDED: ("o", 7.0, "none", 0.8)}
    looks |= {_NO_VERDICT: (marker, 4.5, colour, 1.0)} if judged else {}
    verdicts = rows["verdict"].fillna(_NO_VERDICT)
    for name, (shape, size, fill, edge) in looks.items():
        chosen = (verdicts == name).to_numpy(bool)
        drawn: dict[str, Any] = {"markersize": size, "markerfacecolor": fill, "markeredgewidth": edge, "zorder": 3}
        drawn |= HALF_FILLED if name == _NO_VERDICT else {}
        axes.plot(at[chosen], values[chosen], shape, color=colour, linestyle="none", **drawn)


def draw_same_answers(axes: Axes, at: Grid, rows: pd.DataFrame, *, sideways: bool = False) -> None:
    """Frames points of models that give all examples, or nearly all, the same answer.

    Args:
        axes: with the points.
        at: their places on the x axis.
        rows: with `value`, see `answer_shares`.
        sideways: whether the values run along the x axis, and the places along the y axis.
    """
    chosen = answer_shares(rows) >= NEARLY_ALL
    if chosen.any():
        look: dict[str, Any] = {"markersize": 9.0, "markerfacecolor": "none", "markeredgewidth": 0.6, "color": INK}
        places = at[chosen], float_column(rows, "value")[chosen]
        axes.plot(*(places[::-1] if sideways else places), "s", linestyle="none", label=SAME_ANSWER, **look)


def draw_rims(axes: Axes) -> None:
    """Draws every point that other lines hide a second time, larger, as a rim around them.

    Args:
        axes: with their final limits.
    """
    points = [
        (line, place)
        for line in sorted(axes.lines, key=lambda line: line.get_zorder())  # the order in which they are drawn
        if line.get_marker() not in _NO_POINT and str(line.get_markerfacecolor()) != "none"
        for place in np.asarray(line.get_xydata())
    ]
    near = SAME_PLACE * np.array([np.ptp(axes.get_xlim()), np.ptp(axes.get_ylim())])
    for number, (line, place) in enumerate(points, 1):
        above = sum(
            owner is not line and bool((np.abs(other - place) < near).all()) for owner, other in points[number:]
        )
        if above:
            # Filled: a hollow rim would mean that nothing is decided.
            look: dict[str, Any] = {"marker": line.get_marker(), "color": line.get_color(), "linestyle": "none"}
            size, order = line.get_markersize() + 3.0 * above, line.get_zorder() - 0.1 * above
            axes.plot(*place, markersize=size, zorder=order, **look)


def level_name(name: str, rows: pd.DataFrame, *, guesses: bool = False) -> str:
    """Returns what legends call the level of models, with why it says little: one answer of them, or no skill.

    Args:
        name: of the level.
        rows: of the models, see `answer_shares`.
        guesses: whether they are not shown to be better than guessing.
    """
    told = next(filter(None, (silence_text(share, guesses=guesses) for share in answer_shares(rows))), "")
    return f"{name}: {told}" if told else name


def unpruned_title(name: str, share: float, *, guesses: bool = False) -> str:
    """Returns the title of a panel: a model, and below it what of its answers makes a metric say little.

    Args:
        name: of the model.
        share: of the examples that get its most frequent answer, told if that is (nearly) all.
        guesses: whether it is not shown to be better than guessing.
    """
    told = silence_text(share, guesses=guesses)
    return f"{name}\nunpruned: {told}" if told else name


def silence_text(share: float, *, guesses: bool) -> str:
    """Returns why a model has no verdicts: one answer for nearly everything, no skill, or both; empty for others.

    Args:
        share: of the examples that get its most frequent answer; may be NaN.
        guesses: whether it is not shown to be better than guesses.
    """
    same = same_answer_text(share)
    return "; ".join(filter(None, (same, NO_SKILL if guesses and not share >= 1 else "")))


def verdicts_text(rows: pd.DataFrame) -> str:
    """Returns what the marks of `draw_verdicts` mean that occur, and the margin, to stand behind other words."""
    known = set(rows["verdict"].fillna(_NO_VERDICT)) if "verdict" in rows else set()
    known = known if known != {_NO_VERDICT} else set()
    marks = {NOT_DECIDED: "hollow", NOT_NEEDED: "ringed", NEEDED: "filled", _NO_VERDICT: "half filled"}
    meanings = "".join(f"; {mark}: {name}" for name, mark in marks.items() if name in known)
    judged = rows.dropna(subset=["verdict"]) if "verdict" in rows else rows
    margin = level_text(judged, "margin")
    return meanings + f"; margin: {margin}" * bool(meanings and margin)


def no_shorter_than_margin(ends: tuple[float, float], rows: pd.DataFrame) -> tuple[float, float]:
    """Returns the ends of an axis of a metric, moved apart where differences far below the margin would fill it.

    Args:
        ends: of the axis, as the values have them.
        rows: with the column `metric`, and `margin` if there are verdicts. The axis does not go
            on below 0 where the metric cannot.
    """
    margin = float_column(rows, "margin")
    spare = max(0.0, float(np.max(margin, where=np.isfinite(margin), initial=0.0)) - (ends[1] - ends[0])) / 2
    low, high = ends[0] - spare, ends[1] + spare
    goes_below = any(lowest_value(metric) < 0 for metric in set(rows["metric"]))
    shift = 0.0 if goes_below else max(0.0, -_BELOW_ZERO * (high - low) - low)
    return low + shift, high + shift


def examples_text(rows: pd.DataFrame) -> str:
    """Returns the number of examples, to stand behind other words; empty for tables without it."""
    examples = range_text(float_column(rows, "n"), ",.0f")
    return f", n = {examples}" if examples else ""


def intervals_text(rows: pd.DataFrame) -> str:
    """Says for a title whether there are 95 % intervals, of some points alone or none, and of how many examples."""
    drawn = rows[np.isfinite(float_column(rows, "value"))]
    known = np.isfinite(float_column(drawn, "ci_low"))
    few = bool((float_column(drawn, "n") < FEWEST).all())
    none = "no intervals of so few examples" if few else "no intervals"
    text = "95 % intervals" if known.all() else "95 % intervals, not of all points" if known.any() else none
    return f"{text}{examples_text(rows)}"


def range_text(numbers: Grid, form: str) -> str:
    """Returns the lowest and the highest of numbers, in the form of a format string, or one; empty without any."""
    known = numbers[np.isfinite(numbers)]
    return " to ".join(dict.fromkeys(f"{n:{form}}" for n in (known.min(), known.max()))) if known.size else ""


def level_text(rows: pd.DataFrame, column: str) -> str:
    """Returns a level that belongs to each metric and task, or the lowest and the highest; empty without any.

    Where it differs and there are several metrics or tasks, it stands behind the name of each: a loss and an accuracy
    have no common range.

    Args:
        rows: with the column, and `metric` and `task` if there may be several.
        column: of the level.
    """
    text = range_text(float_column(rows, column), ".3g")
    parts = [name for name in ("metric", "task") if name in rows and len(set(rows[name])) > 1]
    if " to " not in text or not parts:
        return text
    levels = ((key, range_text(float_column(own, column), ".3g")) for key, own in rows.groupby(parts, sort=False))
    return ", ".join(f"{' of '.join(map(str, key))} {level}" for key, level in levels if level)


def known_values(rows: pd.DataFrame) -> Grid:
    """Returns all values and ends of intervals that are numbers."""
    numbers: Grid = np.concatenate([float_column(rows, name) for name in VALUES])
    return numbers[np.isfinite(numbers)]


def panels(title: str, titles: Sequence[str], width: float, abreast: int) -> tuple[Figure, list[Axes]]:
    """Makes axes in lines under their headings; matplotlib lays them out, see `style.fit_height`.

    Args:
        title: of the figure.
        titles: of the panels.
        width: of the figure in inches.
        abreast: panels in a line.
    """
    lines = -(-len(titles) // abreast)
    figure = constrained_figure(width, _ROOM * (lines + 1), title)
    grid = figure.subplots(lines, abreast, squeeze=False)
    for axes in grid.flat[len(titles) :]:
        axes.remove()
    drawn = list(grid.flat[: len(titles)])
    for axes, text in zip(drawn, titles, strict=True):
        heading(axes, text, width / abreast - 0.6)
    return figure, drawn


def legend_columns(labels: Iterable[str], width: float) -> int:
    """Returns how many labels of a legend stand beside each other in a figure of a width in inches; one at least."""
    # Beside each label its mark and gaps; letters are 0.56 of their size wide.
    return max(1, int(width / max((0.42 + 0.56 * TICK_SIZE / 72 * len(label) for label in labels), default=width)))


def legend_below(figure: Figure, drawn: Sequence[Axes], lines: int = 1) -> None:
    """Adds a legend under all axes, with each label of any of them once, in so many lines.

    Where matplotlib lays out the axes, in as many as the labels need.
    """
    legends = [axes.get_legend_handles_labels() for axes in drawn]
    by_label = {label: handle for handles, labels in legends for handle, label in zip(handles, labels, strict=True)}
    by_label = dict(sorted(by_label.items(), key=lambda entry: entry[0] == SAME_ANSWER))  # behind what it frames
    # Where matplotlib lays out the axes, it leaves room for what is outside.
    place: Any = "lower center" if figure.get_layout_engine() is None else "outside lower center"
    if figure.get_layout_engine() is not None:
        lines = -(-len(by_label) // legend_columns(by_label, figure.get_figwidth()))
    columns = -(-len(by_label) // lines)
    # A label that is longer than a column is broken.
    names = [fold(label, figure.get_figwidth() - 0.5, TICK_SIZE) for label in by_label]
    figure.legend(by_label.values(), names, loc=place, ncols=columns, borderpad=0.2, **legend_looks())
