"""Figures frame models that give all examples, or nearly all, the same answer."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from headlens.plots.curves import SAME_ANSWER, draw_same_answers, legend_below, unpruned_title


@pytest.mark.parametrize(
    ("columns", "framed"),
    [
        ({"answer_share": [0.949, 0.95, 1.0, np.nan]}, [2.0, 3.0]),
        ({"answer_share": [np.nan] * 4, "same_answer": ["True", "False", None, True]}, [1.0, 4.0]),
        ({"answer_share": [0.5] * 4}, None),
        ({}, None),
    ],
)
def test_points_of_one_answer_are_framed(columns: dict[str, list[object]], framed: list[float] | None) -> None:
    axes = Figure().subplots()
    at = np.array([1.0, 2.0, 3.0, 4.0])
    draw_same_answers(axes, at, pd.DataFrame({"value": [0.5, 0.6, 0.7, 0.8], **columns}))
    frames = [line.get_xdata().tolist() for line in axes.lines if line.get_label() == SAME_ANSWER]
    assert frames == ([] if framed is None else [framed])


def test_the_frame_is_last_in_the_legend() -> None:
    figure = Figure()
    axes = figure.subplots()
    for label in (SAME_ANSWER, "ranked"):
        axes.plot([0.0], [0.0], label=label)
    legend_below(figure, [axes])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ranked", SAME_ANSWER]


def test_a_panel_says_what_the_unpruned_model_answers() -> None:
    assert unpruned_title("m", 0.9799) == "m\nunpruned: the same answer to 97.9 % of the examples"
    assert unpruned_title("m", np.nan) == unpruned_title("m", 0.94) == "m"
