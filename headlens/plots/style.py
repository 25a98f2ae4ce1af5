"""One look for all figures: sizes, colours, and how plain axes are dressed.

Everything is set on the objects themselves and no global setting of matplotlib is touched, so that figures can
be drawn in threads, without a display, and beside a notebook's own style. How wide they may be is a context of the
thread that draws: `drawn_for`.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from headlens.options import BETWEEN_WORDS
from headlens.plots.axis_labels import drawable_text, font_family, token_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The look of a point of which something is not known that a filled and a hollow one tell.
HALF_FILLED: dict[str, Any] = {"fillstyle": "left", "markerfacecoloralt": "white"}
_ENLARGED = 4  # times that a figure is made higher by half
COLUMN_WIDTH, FULL_WIDTH, TALLEST = 3.3, 7.0, 9.2
WIDTHS = {"full": FULL_WIDTH, "column": COLUMN_WIDTH}
_PAGE: ContextVar[float] = ContextVar("page", default=FULL_WIDTH)
_CORPUS: ContextVar[str] = ContextVar("corpus", default="")
_MASK: ContextVar[str] = ContextVar("mask", default="")
_NAME = 2.0  # inches that the name of a corpus may have
_PARTS = 4  # of the name of a corpus or mask, each of which may be shortened

T = TypeVar("T")

# points
TITLE_SIZE, HEADING_SIZE, LABEL_SIZE, TICK_SIZE, SMALLEST_SIZE = 9.0, 8.0, 8.0, 7.0, 3.2
HEADING_LINE = 1.2 * HEADING_SIZE / 72  # inches

# Okabe and Ito's palette, told apart by colour-blind readers
BLUE, GREEN, ORANGE, PURPLE = "#0072B2", "#009E73", "#E69F00", "#CC79A7"
SKY, PALE_BLUE, YELLOW, VERMILION = "#56B4E9", "#8DB9DB", "#F0E442", "#D55E00"
BROWN = "#7A4B2A"  # not of the palette; darker than all of it
NAVY, OLIVE, MAROON, TEAL = "#1B2A63", "#6B6B00", "#7D1238", "#0B5D5B"  # likewise

INK = "#222222"
FAINT = "#767676"  # the lightest grey that has a contrast of 4.5 on white
MISSING, NO_ROLE = "#BDBDBD", "#EBEBEB"

SEQUENTIAL, PALE = "viridis", "Blues"
DIVERGING = "RdBu"  # blue is a gain, above 0; red a loss
GAIN, LOSS = BLUE, "#B2182B"  # the same as single colours
MASKED = "#3C4A57"  # positions that no attention goes to; white are those it may go to


def legend_looks() -> dict[str, Any]:
    """Returns keywords for legends: small, and close to what they explain."""
    return {
        "prop": {"family": font_family(), "size": TICK_SIZE},
        "frameon": False,
        "handletextpad": 0.4,
        "columnspacing": 1.0,
        "borderaxespad": 0.2,
    }


def _bold() -> dict[str, Any]:
    return {"fontsize": TITLE_SIZE, "fontfamily": font_family(), "fontweight": "bold", "color": INK}


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Gives a variable another value inside of the block."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def drawn_for(width: str) -> AbstractContextManager[None]:
    """Draws the figures of the block for one of `WIDTHS`: a page from margin to margin, or a column of it."""
    return _within(_PAGE, WIDTHS[width])


def named_after(corpus: str, figures: Iterator[T], mask: str = "") -> Iterator[T]:
    """Draws figures, whose titles name the corpus they were measured on, and the mask that models were under."""
    while True:
        with _within(_CORPUS, corpus), _within(_MASK, mask):
            drawn = next(figures, None)
        if drawn is None:
            return
        yield drawn


def between_tokens() -> AbstractContextManager[None]:
    """Leaves out of titles that attention is between words, of figures of what never is."""
    return _within(_CORPUS, _CORPUS.get().removesuffix(BETWEEN_WORDS))


def of_no_corpus() -> AbstractContextManager[None]:
    """Leaves the corpus out of the title of a figure of what was not measured on it."""
    return _within(_CORPUS, "")


def page_width(needed: float = 0.0) -> float:
    """Returns how many inches figures may be wide here; the full width for one that needs more than a column has."""
    return _PAGE.get() if needed <= _PAGE.get() else FULL_WIDTH


def in_column() -> bool:
    """Returns whether figures are drawn for a column."""
    return _PAGE.get() < FULL_WIDTH


def new_figure(width: float, height: float, layout: str | None = None) -> Figure:
    """Makes a white figure of that many inches on the Agg canvas; `layout` as matplotlib knows it (`constrained`)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from headlens.plots.embedded_fonts import EmbeddedFontFigure  # noqa: PLC0415 - imports matplotlib

    figure = EmbeddedFontFigure(figsize=(width, height), facecolor="white", layout=layout)  # type: ignore[arg-type]
    FigureCanvasAgg(figure)
    return figure


def constrained_figure(width: float, height: float, title: str) -> Figure:
    """Makes a figure under a title, whose axes matplotlib lays out when it draws, so that nothing is cut off.

    The height is that with a title of one line.
    """
    figure = new_figure(width, height + further_lines(title, width), layout="constrained")
    figure.suptitle(_title(title, width), x=0.08 / width, ha="left", **_bold())
    return figure


def fit_height(figure: Figure, lines: Iterable[Axes], inches: float, tallest: float = TALLEST) -> None:
    """Makes a figure so high that axes below each other have so many inches together.

    What stands around the axes keeps its size. The figure is laid out then, see `lay_out`.

    Args:
        figure: with all its axes, labels and legends, of any height that has room for them.
        lines: one of the axes of every line.
        inches: the height of the lines together.
        tallest: the most that the figure may have.
    """
    _place_axes(figure)
    drawn = figure.get_figheight() * sum(axes.get_position(original=True).height for axes in lines)
    figure.set_figheight(min(tallest, figure.get_figheight() + inches - drawn))
    lay_out(figure)


def lay_out(figure: Figure) -> None:
    """Gives the axes of a constrained figure their places for good, so that writing it does not lay it out again."""
    _place_axes(figure)
    figure.set_layout_engine("none")


def _place_axes(figure: Figure) -> None:
    """Lays out a figure, which is made higher as long as its words leave no room for its axes."""
    engine = figure.get_layout_engine()
    assert engine is not None
    for _ in range(_ENLARGED):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "constrained_layout not applied", UserWarning)
            try:
                engine.execute(figure)
            except UserWarning:
                figure.set_figheight(1.5 * figure.get_figheight())
                continue
        return
    engine.execute(figure)


def dress(axes: Axes, x_label: str = "", y_label: str = "") -> None:
    """Gives axes their labels, thin spines and small ticks."""
    axes.set_facecolor("white")
    axes.set_xlabel(x_label, fontsize=LABEL_SIZE, color=INK, labelpad=2)
    axes.set_ylabel(y_label, fontsize=LABEL_SIZE, color=INK, labelpad=2)
    axes.tick_params(labelsize=TICK_SIZE, length=2, width=0.5, pad=1.5, colors=INK)
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
        spine.set_color(INK)


def heading(axes: Axes, text: str, width: float) -> None:
    """Writes a title above axes on the left, broken to `width` inches."""
    title = axes.set_title(fold(text, width, HEADING_SIZE), loc="left", pad=3)
    title.set(fontsize=HEADING_SIZE, fontfamily=font_family(), color=INK)


def heading_lines(text: str, width: float) -> int:
    """Returns how many lines `heading` breaks a title into."""
    return fold(text, width, HEADING_SIZE).count("\n") + 1


def headline(figure: Figure, text: str) -> None:
    """Writes the title of a whole figure at its upper left."""
    width, height = map(float, figure.get_size_inches())
    figure.text(0.08 / width, 1 - 0.06 / height, _title(text, width), va="top", **_bold())


def panel_grid(
    title: str,
    count: int,
    width: float,
    columns: tuple[Sequence[float], float],
    lines: tuple[float, float, float],
    margins: tuple[float, float],
) -> tuple[Figure, list[Axes]]:
    """Makes a figure under a title, with panels from the upper left, line by line; lengths are in inches.

    Args:
        title: of the figure.
        count: number of panels.
        width: of the figure.
        columns: where each panel of a line begins, and how wide it is, as shares of the width.
        lines: from one to the next, the room below the panels within it, and the height of these.
        margins: above the first line, and below the last.
    """
    across = len(columns[0])
    height = margins[0] + -(-count // across) * lines[0] + margins[1]
    figure = new_figure(width, height)
    headline(figure, title)
    panels = []
    for number in range(count):
        line, column = divmod(number, across)
        low = height - margins[0] - (line + 1) * lines[0] + lines[1]
        panels.append(figure.add_axes((columns[0][column], low / height, columns[1], lines[2] / height)))
    return figure, panels


def further_lines(title: str, width: float) -> float:
    """Returns the inches that the lines of a title need, after the first, in a figure of that width in inches."""
    return 0.15 * _title(title, width).count("\n")


def _title(text: str, width: float) -> str:
    first, *more = text.split("\n")
    # What trees or fixed offsets are of stands behind the name of a corpus, and must not be what is cut out, nor how
    # wide one of the patterns is that a mask consists of.
    for what, name, between in (("corpus", _CORPUS.get(), ", "), ("under the mask", _MASK.get(), "|")):
        parts = name.split(between) if name.count(between) < _PARTS else [name]
        short = between.join(_shortened(part, _letters(_NAME, TITLE_SIZE)) for part in parts)
        first += f", {what} {short}" if name else ""
    text = "\n".join([first, *more])
    # Bold letters are wider than those that `fold` counts with, and squares in place of letters that cannot be drawn
    share = 0.85 if drawable_text(text) == text else 0.75
    return fold(text, (width - 0.1) * share, TITLE_SIZE)


def fold(text: str, inches: float, size: float, most: int | None = None) -> str:
    """Makes text safe to draw and breaks it into lines that fit `inches` at `size` points.

    The middle of what needs more than so many lines is cut out; None for no limit.
    """
    letters = _letters(inches, size)
    if most is not None:
        text = _shortened(text, most * letters)
    return "\n".join(textwrap.fill(line, letters) for line in drawable_text(text).split("\n"))


def one_line(text: str, inches: float, size: float) -> str:
    """Makes text safe to draw, and cuts the middle out of what does not fit `inches` at `size` points.

    Beginning and end stay, by which paths and names of heads differ.
    """
    letters = _letters(inches, size)
    return token_label(_shortened(text, letters), letters)


def _shortened(text: str, letters: int) -> str:
    ends = (letters + 1) // 2 - 1, letters // 2
    return text if len(text) <= letters else f"{text[: ends[0]]}…{text[-ends[1] :]}"


def _letters(inches: float, size: float) -> int:
    # Letters of DejaVu Sans are on average 0.56 of their size wide.
    return max(6, int(inches * 72 / (0.56 * size)))


def ink_on(colour: tuple[float, float, float] | str) -> str:
    """Returns black or white, whichever can be read on `colour` (relative luminance, WCAG 2)."""
    from matplotlib.colors import to_rgb

    channels = np.array(to_rgb(colour), np.float64)
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    # At a luminance of 0.179 black and white have the same contrast
    return "black" if float(linear @ [0.2126, 0.7152, 0.0722]) > 0.179 else "white"


def tick_step(inches_per_unit: float, room: float) -> int:
    """Returns the smallest step of 1, 2, 5, 10, … units that leaves `room` inches between ticks."""
    return next((step for step in (1, 2, 5, 10, 20, 50, 100, 200) if step * inches_per_unit >= room), 500)
