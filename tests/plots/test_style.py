import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from headlens.plots.cell_drawing import draw_cells
from headlens.plots.style import (
    constrained_figure,
    fit_height,
    fold,
    heading,
    headline,
    ink_on,
    named_after,
    new_figure,
    one_line,
    tick_step,
)


def test_figures_are_white_headless_and_leave_settings_alone() -> None:
    before = dict(mpl.rcParams)
    figure = new_figure(3.3, 2.0)
    headline(figure, "title")
    heading(figure.add_axes((0.2, 0.2, 0.5, 0.5)), "panel", 1.0)
    figure.canvas.draw()
    assert type(figure.canvas).__name__ == "FigureCanvasAgg"
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert dict(mpl.rcParams) == before


def test_seaborn_draws_where_it_is_told_and_changes_nothing_else() -> None:
    before = dict(mpl.rcParams)
    figure = new_figure(2.0, 2.0)
    draw_cells(figure.subplots(), np.eye(2))
    assert type(figure.canvas).__name__ == "FigureCanvasAgg"
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("words", ["short", "a label that is longer " * 8])
def test_a_figure_is_as_high_as_its_panels_need(words: str) -> None:
    figure = constrained_figure(3.0, 6.0, "title")
    lines = figure.subplots(2)
    lines[1].set_xlabel(fold(words, 2.0, 8.0))
    fit_height(figure, lines, 3.0)
    figure.canvas.draw()
    heights = [axes.get_window_extent().height / figure.dpi for axes in lines]
    assert heights == pytest.approx([1.5, 1.5], abs=0.05)
    assert lines[1].xaxis.label.get_window_extent().y0 >= 0


def test_titles_name_the_corpus_and_only_those_of_figures_that_were_measured_on_it() -> None:
    titles = ("Heads", "Heads\n(layer.head)")
    drawn = named_after("en_$ewt", (constrained_figure(5.0, 2.0, title) for title in titles))
    seen = [(figure.get_suptitle(), constrained_figure(5.0, 2.0, "Other").get_suptitle()) for figure in drawn]
    assert seen == [(r"Heads, corpus en_\$ewt", "Other"), ("Heads, corpus en_\\$ewt\n(layer.head)", "Other")]


def test_whose_trees_they_are_is_never_cut_out() -> None:
    corpus = "en_ewt-ud-dev-of-a-long-name, trees of spacy:en_core_web_sm_of_a_long_name, fixed offsets of train"
    (figure,) = named_after(corpus, (constrained_figure(9.0, 2.0, text) for text in ["Heads"]))
    title = figure.get_suptitle().replace("\n", " ")
    for words in ("Heads, corpus en_ewt", "…", ", trees of spac", ", fixed offsets of train"):
        assert words in title
    (figure,) = named_after("a, " * 90, (constrained_figure(9.0, 2.0, text) for text in ["Heads"]))
    assert len(figure.get_suptitle()) < 60


def test_titles_name_the_mask_that_models_were_under() -> None:
    for corpus, title in (("pud", "Heads, corpus pud, under the mask star"), ("", "Heads, under the mask star")):
        (figure,) = named_after(corpus, iter([constrained_figure(5.0, 2.0, "Heads")]), "star")
        assert figure.get_suptitle() == "Heads"  # made before
        (figure,) = named_after(corpus, (constrained_figure(5.0, 2.0, text) for text in ["Heads"]), "star")
        assert figure.get_suptitle() == title


@pytest.mark.parametrize(
    "mask", ["window:width=3|global:tokens=1", "window:width=5|global:tokens=1", "star|random:keys=12|dilated:width=17"]
)
def test_what_patterns_of_a_mask_differ_in_is_never_cut_out(mask: str) -> None:
    """Windows of 3 and of 5 had the same titles."""
    (figure,) = named_after("pud", (constrained_figure(5.0, 2.0, text) for text in ["Heads"]), mask)
    assert f"under the mask {mask}" in figure.get_suptitle().replace("\n", " ")
    (figure,) = named_after("pud", (constrained_figure(5.0, 2.0, text) for text in ["Heads"]), "|".join([mask] * 9))
    assert len(figure.get_suptitle()) < 80


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 spells it out, channel by channel."""
    total = 0.0
    for weight, start in ((0.2126, 1), (0.7152, 3), (0.0722, 5)):
        value = int(colour[start : start + 2], 16) / 255
        total += weight * (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    return total


@pytest.mark.parametrize("colour", ["#FFFFFF", "#000000", "#0072B2", "#009E73", "#21918C", "#767676", "#700070"])
def test_ink_has_the_better_contrast(colour: str) -> None:
    on_black, on_white = (luminance(colour) + 0.05) / 0.05, 1.05 / (luminance(colour) + 0.05)
    assert ink_on(colour) == ("black" if on_black > on_white else "white")


@pytest.mark.parametrize(("inches", "step"), [(1.0, 1), (0.1, 2), (0.05, 5), (0.02, 10), (0.0001, 500)])
def test_tick_steps_leave_room(inches: float, step: int) -> None:
    assert tick_step(inches, 0.15) == step


def test_folding_keeps_the_words_and_their_lines() -> None:
    text = fold("one two three\nfour $5", inches=0.5, size=9)
    assert text.split() == ["one", "two", "three", "four", r"\$5"]
    assert max(map(len, text.split("\n"))) <= 7


@pytest.mark.parametrize(
    ("text", "letters", "expected"),
    [
        ("models/bert", 11, "models/bert"),
        ("models/bert/checkpoint-100", 11, "model…t-100"),
        ("models/bert/checkpoint-100", 12, "model…nt-100"),
        ("a\nb\tc", 11, "a↵b⇥c"),
        ("$x$", 11, r"\$x\$"),
        ("abcdefgh", 1, "ab…fgh"),
    ],
)
def test_one_line_keeps_beginning_and_end(text: str, letters: int, expected: str) -> None:
    assert one_line(text, letters * 0.56 * 10 / 72 + 0.01, 10) == expected
