"""The x axis of figures over a training: updates, with room for the model before the first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headlens.plots.head_grid import Grid
from headlens.plots.style import dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FAR = 20  # times the first step: a linear axis would show nothing of the early ones


def dress_by_step(axes: Axes, steps: Grid, y_label: str) -> None:
    """Gives axes labels and an x axis of updates: linear, or beyond the first step logarithmic, where 0 is shown, too.

    Args:
        axes: of a panel.
        steps: all that are drawn.
        y_label: of the values.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    dress(axes, "update", y_label)
    later = steps[steps > 0]
    if len(later) and later.max() > _FAR * later.min():
        axes.set_xscale("symlog", linthresh=float(later.min()))
        axes.xaxis.set_major_locator(FixedLocator(list(_spread(steps))))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"))


def _spread(steps: Grid) -> Iterable[float]:
    """The first step, and of the others those that have room on a logarithmic axis, the last one among them."""
    kept = [float(steps.max())]
    for step in sorted(map(float, set(steps[steps > 0])), reverse=True):
        if kept[-1] > 4 * step:
            kept.append(step)
    return [float(steps.min()), *kept[::-1]]
