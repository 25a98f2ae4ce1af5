"""How much attention goes to special tokens, punctuation and neighbours, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headlens.plots.head_grid import Grid, StackRows, by_model_and_stack, float_column, has_numbers
from headlens.plots.style import (
    FULL_WIDTH,
    HEADING_SIZE,
    INK,
    SKY,
    TITLE_SIZE,
    dress,
    fold,
    new_figure,
    page_width,
    tick_step,
)

TARGETS = {
    "to_cls": "to [CLS]",
    "to_sep": "to [SEP]",
    "to_bos": "to BOS",
    "to_eos": "to EOS",
    "to_punct": "to punctuation",
    "to_self": "to itself",
    "to_prev": "to the previous token",
    "to_next": "to the next token",
}
# tokens that many tokenizers have in one: BART's <s> is [CLS] and BOS, its </s> is [SEP] and EOS, GPT-2 has only one
SAME = (("to_cls", "to_bos"), ("to_sep", "to_eos"), ("to_bos", "to_eos"))
_ROW, _FRAME, _NARROWEST = 0.95, 0.75, 1.05  # inches


def mass_bars(heads: pd.DataFrame) -> Figure | None:
    """Mean attention mass per layer as bars, single heads as dots; one panel per target, stack and model.

    A token that is known under two names has one panel, with both names.

    Args:
        heads: rows of `heads.csv`, of one model or several; a stack has no panel for a target it lacks.

    Returns:
        The figure, or None when all the columns are empty.
    """
    pieces = [p for p in by_model_and_stack(heads) if has_numbers(p.rows, *TARGETS)]
    plan = _plan(pieces)
    if not plan:
        return None
    lines, columns = (1 + max(place[axis] for place in plan) for axis in (0, 1))
    page = page_width(_NARROWEST * columns)
    # words above narrow panels need more lines
    row = _ROW if page == FULL_WIDTH else _ROW + 0.15 * columns
    width_inches = max(page, 1.6 * columns) if page == FULL_WIDTH else page
    figure = new_figure(width_inches, lines * row + _FRAME, layout="constrained")
    title = "Attention mass" + (f", {pieces[0].name}" if len(pieces) == 1 else "")
    figure.suptitle(fold(title, page, TITLE_SIZE), fontsize=TITLE_SIZE, fontweight="bold", x=0.02, ha="left")
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    width = page / columns
    for place, axes in np.ndenumerate(grid):
        if place not in plan:
            axes.remove()
            continue
        part, name = plan[place]
        _bars(axes, part, name, width)
        own_column, own_line = ([p for p in plan if p[axis] == place[axis]] for axis in (1, 0))
        words = (f"{part.name}\n" if len(pieces) > 1 and place == min(own_column) else "") + _words(part, name)
        axes.set_title(fold(words, width - 0.4, HEADING_SIZE), fontsize=HEADING_SIZE, loc="left", pad=2)
        dress(axes, "layer" if place == max(own_column) else "", "mass" if place == min(own_line) else "")
        # the shared axis writes its numbers in the first column only, which may be empty here
        axes.tick_params(labelleft=place == min(own_line))
    highest = max(float(np.nanmax(float_column(p.rows, name), initial=0.0)) for p, name in plan.values())
    first = grid[min(plan)]
    first.set_ylim(0, 1.05 * highest or 1.0)
    first.yaxis.set_major_locator(MaxNLocator(4))
    return figure


def _plan(pieces: Sequence[StackRows]) -> dict[tuple[int, int], tuple[StackRows, str]]:
    """What stands at which (line, column): a line per target and a column per part; what a part lacks stays free."""
    panels = [(p, name) for name in TARGETS for p in pieces if has_numbers(p.rows, name) and name not in _twins(p)]
    if len(pieces) == 1:
        # a single stack has room for two columns of targets
        return {divmod(number, 2): job for number, job in enumerate(panels)}
    names = list(dict.fromkeys(name for _, name in panels))
    columns = [(p.model, p.stack) for p in pieces]
    return {(names.index(name), columns.index((p.model, p.stack))): (p, name) for p, name in panels}


def _twins(part: StackRows) -> dict[str, str]:
    """Targets that are the same token under another name, each with the name it is drawn under."""
    names: dict[str, str] = {}
    for first, second in SAME:
        masses = float_column(part.rows, first)
        same = np.array_equal(masses, float_column(part.rows, second), equal_nan=True)
        if same and second not in names and np.isfinite(masses).any():
            names[second] = names.get(first, first)
    return names


def _words(part: StackRows, name: str) -> str:
    others = [TARGETS[second].removeprefix("to ") for second, first in _twins(part).items() if first == name]
    return " = ".join([TARGETS[name], *others])


def _bars(axes: Axes, part: StackRows, name: str, width: float) -> None:
    values = pd.Series(float_column(part.rows, name), index=part.rows["layer"].to_numpy(int)).dropna()
    means = values.groupby(level=0).mean()
    last = int(part.rows["layer"].max())
    axes.bar(means.index, means.to_numpy(), width=0.8, color=SKY, linewidth=0)
    axes.plot(
        values.index.to_numpy() + _spread(values),
        values.to_numpy(),
        linestyle="",
        marker="o",
        markersize=2,
        color=INK,
        markeredgewidth=0,
        alpha=0.6,
    )
    axes.set_xlim(-0.6, last + 0.6)
    axes.set_xticks(range(0, last + 1, tick_step((width - 0.5) / (last + 1), 0.15)))
    axes.grid(axis="y", linewidth=0.3, color=INK, alpha=0.3)
    axes.set_axisbelow(True)


def _spread(values: pd.Series) -> Grid:
    """Sideways places of the dots of a layer, from -0.3 to 0.3 in the order of the heads."""
    rank = values.groupby(level=0).cumcount().to_numpy(np.float64)
    count = values.groupby(level=0).transform("size").to_numpy(np.float64)
    spread: Grid = 0.6 * (rank + 0.5) / count - 0.3
    return spread
