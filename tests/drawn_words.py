"""What is written in a figure."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.text import Text

from headlens.plots.axis_labels import drawable_text

_ROUNDING = 0.02  # inches
_PAGE = (7.05, 9.5)  # inches: what margins leave of a page, US letter or A4


def fits_a_page(figure: Figure) -> bool:
    """Whether a figure goes onto a page of a paper as it is."""
    return all(size <= most + _ROUNDING for size, most in zip(figure.get_size_inches(), _PAGE, strict=True))


def check_words(figure: Figure, words: str) -> None:
    """See that a figure, drawn already, has some words as they stand, and nothing beyond its edges.

    Lines are broken anywhere, so white space does not count.
    """
    letters = "".join("".join(text.get_text().split()) for text in figure.findobj(Text))
    assert "".join(drawable_text(words).split()) in letters
    check_edges(figure)


def check_edges(figure: Figure) -> None:
    """See that nothing of a figure, drawn already, is beyond its edges."""
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= -_ROUNDING
    assert box.x1 <= width + _ROUNDING
    assert box.y1 <= height + _ROUNDING
