"""What a task is like by how many heads are left, from a trained model and from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headlens.analyses.prune.sweep_runs import penalty_text
from headlens.analyses.prune.sweep_summary import (
    SCRATCH,
    TRAINED,
    count_heads_left,
    gated_stacks,
    is_unpruned,
    main_rows,
)
from headlens.plots.axis_labels import drawable_text
from headlens.plots.curves import draw_intervals, draw_level, known_values, legend_below
from headlens.plots.head_grid import LINE, TOP, float_column, has_numbers
from headlens.plots.style import (
    BLUE,
    FULL_WIDTH,
    HEADING_SIZE,
    INK,
    LABEL_SIZE,
    ORANGE,
    TICK_SIZE,
    dress,
    fold,
    further_lines,
    heading,
    headline,
    in_column,
    new_figure,
    page_width,
)

# colour, marker, label
LOOKS = {TRAINED: (BLUE, "o", "from the trained model"), SCRATCH: (ORANGE, "s", "from scratch")}
_WHOLE = {TRAINED: "unpruned model", SCRATCH: "all heads, from scratch"}
_ABREAST = 2  # panels
# inches
_LEFT, _RIGHT, _BOTTOM, _HEIGHT, _LEGEND, _APART = 0.58, 0.10, 0.42, 2.2, 0.2, 0.05
_CLOSEST = 0.12  # names of runs
_SINGLE = 0.7  # of the full width
_DIGIT = 0.64 * (TICK_SIZE - 1) / 72


class _Set(NamedTuple):
    """The runs of a panel: those of one model in which the same stacks had gates, and the rows of the whole model."""

    title: str
    gated: tuple[str, ...]
    runs: pd.DataFrame
    whole: pd.DataFrame


def gate_quality(sweep: pd.DataFrame, gates: pd.DataFrame | None = None) -> Figure | None:
    """The main metric of a task against the number of heads left, with 95 % intervals.

    After Voita et al. (2019), table 2. One line for models that were pruned, one for the same architectures trained
    from scratch; dashed lines with their bands are models with all heads. There is one panel per model and set of
    stacks that had gates; of stacks without gates no heads are counted. Panels with the same metric have the same axis.

    Args:
        sweep: rows of `sweep.csv`, of one model or several.
        gates: rows of `gates.csv`, which tell which stacks had gates; without them those that lost heads.

    Returns:
        The figure, or None when no run has a value.
    """
    rows = main_rows(sweep)
    rows = rows.assign(gated=pd.Series(gated_stacks(rows, gates), index=rows.index, dtype=object))
    if not has_numbers(rows[~is_unpruned(rows)], "value"):
        return None
    sets = _sets(rows)
    metric, task = (", ".join(map(str, rows[c].dropna().unique())) for c in ("metric", "task"))
    figure, drawn = _panels(sets, f"Quality by heads left: {metric} of {task}")
    for number, (axes, panel) in enumerate(zip(drawn, sets, strict=True)):
        metric = str(panel.runs["metric"].iloc[0])
        dress(
            axes,
            f"heads left in {_listed(panel.gated)}",
            fold(metric, _HEIGHT, LABEL_SIZE) if number % _abreast() == 0 else "",
        )
        _draw(axes, panel, _limits(rows[rows["metric"] == metric]))
    legend_below(figure, drawn, _legend_lines(len(sets)))
    return figure


def _sets(rows: pd.DataFrame) -> list[_Set]:
    runs, unpruned = rows[~is_unpruned(rows)], rows[is_unpruned(rows)]
    sets = []
    for (model, stacks), group in runs.groupby(["model", "gated"], sort=False):
        gated = cast("tuple[str, ...]", stacks)
        title = f"{model}: gates in {_listed(gated)}" if len(runs["gated"].unique()) > 1 else str(model)
        counted = group.assign(left=count_heads_left(group, gated))
        sets.append(_Set(title, gated, counted, unpruned[unpruned["model"] == model]))
    return sets


def _listed(stacks: Sequence[str]) -> str:
    return " and ".join([", ".join(stacks[:-1]), stacks[-1]] if len(stacks) > 1 else stacks) or "all stacks"


def _abreast() -> int:
    return 1 if in_column() else _ABREAST


def _legend_lines(panels: int) -> int:
    """Of the legend, which may have four entries: a single panel is narrower than the page, and they do not fit one."""
    return 2 if in_column() or panels == 1 else 1


def _panels(sets: Sequence[_Set], title: str) -> tuple[Figure, list[Axes]]:
    """Axes side by side in lines of two, under their headings."""
    titles = [own.title for own in sets]
    abreast = _abreast()
    width = min(page_width(), FULL_WIDTH * (_SINGLE if len(titles) == 1 else 1))
    slot = (width - 0.05) / min(abreast, len(titles))
    inches = slot - _LEFT - _RIGHT
    # names of runs stand upright above the axes
    names = _DIGIT * max(len(name) for own in sets for name in _names(own.runs))
    room = names + 0.14 + LINE * (1 + max(fold(text, inches, HEADING_SIZE).count("\n") for text in titles))
    step = room + _HEIGHT + _BOTTOM
    top = TOP + further_lines(title, width)
    height = top + step * -(-len(titles) // abreast) + _LEGEND * _legend_lines(len(titles))
    figure = new_figure(width, height)
    headline(figure, title)
    panels = []
    for number, text in enumerate(titles):
        line, column = divmod(number, abreast)
        left, low = column * slot + _LEFT, height - top - line * step - room - _HEIGHT
        axes = figure.add_axes((left / width, low / height, inches / width, _HEIGHT / height))
        heading(axes, text, inches)
        panels.append(axes)
    return figure, panels


def _limits(rows: pd.DataFrame) -> tuple[float, float]:
    known = known_values(rows)
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    margin = 0.06 * (high - low or abs(high) or 1.0)
    return low - margin, high + margin


def _draw(axes: Axes, panel: _Set, values: tuple[float, float]) -> None:
    most = max(float(count_heads_left(rows, panel.gated).max(initial=1.0)) for rows in (panel.runs, panel.whole))
    axes.set_xlim(-0.05 * most, 1.05 * most)
    axes.set_ylim(*values)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    for init, (colour, _, _) in LOOKS.items():
        level = panel.whole[panel.whole["init"] == init]
        draw_level(axes, level, _WHOLE[init], colour=INK if init == TRAINED else colour)
    inits = [init for init in LOOKS if (panel.runs["init"] == init).any()]
    for number, init in enumerate(inits):
        # beside each other, so that intervals can be told apart
        shift = _APART * (number - (len(inits) - 1) / 2) * 1.1 * most / _inches(axes)
        _draw_line(axes, panel.runs[panel.runs["init"] == init].sort_values("left", kind="stable"), init, shift)
    _name(axes, panel.runs)


def _inches(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    return axes.get_position().width * (figure.get_figwidth() if figure is not None else 1.0)


def _draw_line(axes: Axes, rows: pd.DataFrame, init: str, shift: float) -> None:
    colour, marker, label = LOOKS[init]
    at, values = float_column(rows, "left") + shift, float_column(rows, "value")
    axes.plot(at, values, color=colour, marker=marker, markersize=3.5, linewidth=1.0, label=label)
    draw_intervals(axes, at, rows, colour)


def _name(axes: Axes, rows: pd.DataFrame) -> None:
    """Write λ above the models that were pruned, but for those too close to one with more heads."""
    pruned = rows[rows["init"] == TRAINED].sort_values("left", ascending=False, kind="stable")
    low, high = axes.get_xlim()
    room = _CLOSEST * (high - low) / _inches(axes)
    names: dict[float, str] = {}
    for at, name in zip(float_column(pruned, "left"), _names(pruned), strict=True):
        if not names or min(names) - at >= room:
            names[at] = name
    above = axes.secondary_xaxis("top")
    above.set_xticks(list(names), [drawable_text(name) for name in names.values()], rotation=90)
    above.tick_params(labelsize=TICK_SIZE - 1, length=2, width=0.5, pad=1.5, colors=INK)
    above.spines["top"].set_linewidth(0.5)
    axes.annotate("λ", (0, 1), (-3, 3), "axes fraction", "offset points", fontsize=TICK_SIZE, color=INK, ha="right")


def _names(rows: pd.DataFrame) -> list[str]:
    pairs = zip(rows["run"], float_column(rows, "penalty"), strict=True)
    return [penalty_text(str(run), penalty) for run, penalty in pairs]
