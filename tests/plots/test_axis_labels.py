import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.plots.axis_labels import drawable_text, font_family, token_label
from headlens.plots.style import new_figure


def drawn(text: str) -> str:
    """Draw a text with all warnings as errors; give what matplotlib makes of it."""
    figure = new_figure(2, 1)
    item = figure.text(0.1, 0.5, text, fontfamily=font_family())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.canvas.draw()
    # matplotlib's own reading: the text to draw, and False for no formula
    shown, formula = item._preprocess_math(item.get_text())  # type: ignore[attr-defined]
    assert formula is False
    return str(shown)


@pytest.mark.parametrize("text", ["$5", "$x_1^2$", "a$b$c", r"\$", r"\frac{1}{2}", "x_1", "^up", "##s", "Ġthe", "▁der"])
def test_text_is_drawn_as_it_stands(text: str) -> None:
    assert drawn(drawable_text(text)) == text


def test_what_cannot_be_drawn_becomes_a_box() -> None:
    assert drawn(drawable_text("a\x07\ud800\U000f0000b")) == "a□□□b"


@given(st.text(max_size=12))
def test_no_text_raises_a_warning(text: str) -> None:
    assert "\x00" not in drawn(drawable_text(text))


@pytest.mark.parametrize(
    ("token", "label"),
    [("a\nb", "a↵b"), ("\t", "⇥"), ("the", "the"), ("x" * 20, "x" * 15 + "…"), ("x" * 16, "x" * 16), ("$", r"\$")],
)
def test_token_labels(token: str, label: str) -> None:
    assert token_label(token) == label
