"""How much attention goes to special tokens, punctuation and neighbours, layer by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headlens.plots import style
from headlens.plots.head_grid import StackRows, by_model_and_stack, float_column, has_numbers
from headlens.plots.style import INK

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
    panels = [
        (column, name)
        for name in TARGETS
        for column, part in enumerate(pieces)
        if has_numbers(part.rows, name) and name not in _twins(part)
    ]
    if not panels:
        return None
    names = list(dict.fromkeys(name for _, name in panels))
    # A line per target and a column per part; what a part lacks stays free. A single part has two columns of targets.
    plan = {(names.index(name), column): (pieces[column], name) for column, name in panels}
    if len(pieces) == 1:
        plan = {divmod(number, 2): (pieces[0], name) for number, name in enumerate(names)}
    lines, columns = (1 + max(place[axis] for place in plan) for axis in (0, 1))
    page = style.page_width(_NARROWEST * columns)
    full = page == style.FULL_WIDTH
    title = "Attention mass" + (f", {pieces[0].name}" if len(pieces) == 1 else "")
    # Words above narrow panels need more lines.
    height = lines * (_ROW if full else _ROW + 0.15 * columns) + _FRAME
    figure = style.constrained_figure(max(page, 1.6 * columns) if full else page, height, title)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    width = page / columns
    for place, axes in np.ndenumerate(grid):
        if place not in plan:
            axes.remove()
            continue
        part, name = plan[place]
        _bars(axes, part, name, width)
        own_column, own_line = ([p for p in plan if p[axis] == place[axis]] for axis in (1, 0))
        others = [TARGETS[second].removeprefix("to ") for second, first in _twins(part).items() if first == name]
        words = " = ".join([TARGETS[name], *others])
        if len(pieces) > 1 and place == min(own_column):
            words = f"{part.name}\n{words}"
        axes.set_title(
            style.fold(words, width - 0.4, style.HEADING_SIZE), fontsize=style.HEADING_SIZE, loc="left", pad=2
        )
        style.dress(axes, "layer" if place == max(own_column) else "", "mass" if place == min(own_line) else "")
        # The shared axis writes its numbers in the first column only, which may be empty here.
        axes.tick_params(labelleft=place == min(own_line))
    highest = max(float(np.nanmax(float_column(p.rows, name), initial=0.0)) for p, name in plan.values())
    first = grid[min(plan)]
    first.set_ylim(0, 1.05 * highest or 1.0)
    first.yaxis.set_major_locator(MaxNLocator(4))
    return figure


def _twins(part: StackRows) -> dict[str, str]:
    """Targets that are the same token under another name, each with the name it is drawn under."""
    names: dict[str, str] = {}
    for first, second in SAME:
        masses = float_column(part.rows, first)
        same = np.array_equal(masses, float_column(part.rows, second), equal_nan=True)
        if same and second not in names and np.isfinite(masses).any():
            names[second] = names.get(first, first)
    return names


def _bars(axes: Axes, part: StackRows, name: str, width: float) -> None:
    values = pd.Series(float_column(part.rows, name), index=part.rows["layer"].to_numpy(int)).dropna()
    layers = values.groupby(level=0)
    last = int(part.rows["layer"].max())
    means = layers.mean()
    axes.bar(means.index, means.to_numpy(), width=0.8, color=style.SKY, linewidth=0)
    # The dots of a layer stand side by side in the order of the heads, from -0.3 to 0.3.
    places = values.index + 0.6 * (layers.cumcount() + 0.5) / layers.transform("size") - 0.3
    axes.plot(places.to_numpy(), values.to_numpy(), "o", markersize=2, color=INK, markeredgewidth=0, alpha=0.6)
    axes.set_xlim(-0.6, last + 0.6)
    axes.set_xticks(range(0, last + 1, style.tick_step((width - 0.5) / (last + 1), 0.15)))
    axes.grid(axis="y", linewidth=0.3, color=INK, alpha=0.3)
    axes.set_axisbelow(True)
