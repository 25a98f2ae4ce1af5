"""Numbers of a paper beside ours, read off the artists of the figure."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.reproduce.comparison_figure import comparison_figures

ROWS = [
    ("GLUE", "star", "dev", 78.9, 77.5, 76.0, 79.0),
    ("GLUE", "star", "test", 70.0, 71.0, np.nan, np.nan),
    ("GLUE", "bigbird", "dev", 79.4, 79.1, 78.8, 79.4),
    ("GLUE", "fixed", "dev", 79.7, np.nan, np.nan, np.nan),  # not run
    ("SQuAD", "star", "F1", np.nan, 80.0, np.nan, np.nan),  # not printed
]
NAMES = ["table", "row", "column", "published", "ours", "ci_low", "ci_high"]


def test_tables_with_numbers_of_both_are_drawn() -> None:
    ((name, figure),) = comparison_figures(pd.DataFrame(ROWS, columns=NAMES), "a2021")
    assert name == "comparison_0"
    assert figure._suptitle.get_text() == "a2021: GLUE"
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["star", "bigbird"]
    ours, published = axes.collections[1::3], axes.collections[2::3]
    assert [part.get_offsets()[:, 0].tolist() for part in ours] == [[77.5, 79.1], [71.0]]
    assert [part.get_offsets()[:, 0].tolist() for part in published] == [[78.9, 79.4], [70.0]]
    for one, other in zip(ours, published, strict=True):
        assert np.array_equal(one.get_offsets()[:, 1], other.get_offsets()[:, 1]), "in one line"
    segments = [[ends[:, 0].tolist() for ends in part.get_segments() if len(ends)] for part in axes.collections[::3]]
    assert segments[0] == [[76.0, 79.0], [78.8, 79.4]]
    first, second = (part.get_offsets()[0, 1] for part in ours)
    assert first < second, "of a row, the first column is on top"
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == ["paper", "headlens, with 95 % interval"]


def test_nothing_is_drawn_of_tables_without_numbers_of_both() -> None:
    table = pd.DataFrame(ROWS[3:], columns=NAMES)
    assert list(comparison_figures(table, "a2021")) == []
    assert list(comparison_figures(table.iloc[:0], "a2021")) == []


@pytest.mark.parametrize(("count", "sheets"), [(40, 1), (41, 2)])
def test_long_tables_have_several_sheets(count: int, sheets: int) -> None:
    rows = [("T", f"row {n}", "c", float(n), n + 0.5, np.nan, np.nan) for n in range(count)]
    drawn = dict(comparison_figures(pd.DataFrame(rows, columns=NAMES), "a2021"))
    assert list(drawn) == (["comparison_0"] if sheets == 1 else ["comparison_0_1", "comparison_0_2"])
    assert sum(len(figure.axes[0].get_yticks()) for figure in drawn.values()) == count
