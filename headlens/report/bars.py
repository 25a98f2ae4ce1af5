"""How much attention goes to special tokens, punctuation and neighbours, layer by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headlens.report.panels import Grid, Part, has_numbers, numbers, parts
from headlens.report.style import (
    FULL_WIDTH,
    HEADING_SIZE,
    INK,
    SKY,
    TITLE_SIZE,
    dress,
    fold,
    new_figure,
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
_ROW, _FRAME = 0.95, 0.75  # inches


def mass_bars(heads: pd.DataFrame) -> Figure | None:
    """Mean attention mass per layer as bars, single heads as dots; one panel per target, stack and model.

    Args:
        heads: rows of `heads.csv`, of one model or several; targets whose column is empty are left out.

    Returns:
        The figure, or None when all the columns are empty.
    """
    targets = [name for name in TARGETS if has_numbers(heads, name)]
    pieces = [p for p in parts(heads) if has_numbers(p.rows, *targets)]
    if not targets or not pieces:
        return None
    # a single stack has room for two columns of targets
    jobs = [(piece, name) for name in targets for piece in pieces]
    columns = 2 if len(pieces) == 1 else len(pieces)
    lines = -(-len(jobs) // columns)
    figure = new_figure(max(FULL_WIDTH, 1.6 * columns), lines * _ROW + _FRAME, layout="constrained")
    title = "Attention mass" + (f", {pieces[0].name}" if len(pieces) == 1 else "")
    figure.suptitle(fold(title, FULL_WIDTH, TITLE_SIZE), fontsize=TITLE_SIZE, fontweight="bold", x=0.02, ha="left")
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for axes in grid.flat[len(jobs) :]:
        axes.remove()
    for number, (axes, (part, name)) in enumerate(zip(grid.flat, jobs, strict=False)):
        _bars(axes, part, name, FULL_WIDTH / columns)
        with_part = len(pieces) > 1 and number < columns
        words = (f"{part.name}\n" if with_part else "") + TARGETS[name]
        axes.set_title(fold(words, FULL_WIDTH / columns - 0.4, HEADING_SIZE), fontsize=HEADING_SIZE, loc="left", pad=2)
        dress(axes, "layer" if number >= len(jobs) - columns else "", "mass" if number % columns == 0 else "")
    highest = max(float(np.nanmax(numbers(p.rows, name), initial=0.0)) for p, name in jobs)
    grid[0, 0].set_ylim(0, 1.05 * highest or 1.0)
    grid[0, 0].yaxis.set_major_locator(MaxNLocator(4))
    return figure


def _bars(axes: Axes, part: Part, name: str, width: float) -> None:
    values = pd.Series(numbers(part.rows, name), index=part.rows["layer"].to_numpy(int)).dropna()
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
