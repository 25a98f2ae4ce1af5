from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiers import rest_slow

from headlens.plots.cell_drawing import Scale
from headlens.plots.head_grid import (
    Panel,
    by_model_and_stack,
    each,
    float_column,
    flow,
    has_numbers,
    head_grid_figure,
    panel,
)


def grid(layers: int, heads: int, title: str = "t") -> Panel:
    return Panel(title, np.zeros((layers, heads)), np.ones((layers, heads), bool), Scale("in nats"))


def test_parts_come_by_model_then_stack(make_heads: Callable[..., pd.DataFrame]) -> None:
    shapes = {"cross": [2], "encoder": [3, 3], "decoder": [2]}
    frame = pd.concat([make_heads("b", shapes), make_heads("a", {"encoder": [1]})], ignore_index=True)
    found = [(p.model, p.stack, len(p.rows)) for p in by_model_and_stack(frame)]
    assert found == [("b", "encoder", 6), ("b", "decoder", 2), ("b", "cross", 2), ("a", "encoder", 1)]


def test_a_table_without_models_is_one_model() -> None:
    frame = pd.DataFrame({"stack": ["encoder"], "layer": [0], "head": [0]})
    assert [p.name for p in by_model_and_stack(frame)] == ["encoder"]


def test_a_panel_tells_missing_values_from_missing_heads() -> None:
    rows = pd.DataFrame({"layer": [0, 0, 2], "head": [0, 1, 1], "x": [0.5, np.nan, 0.25]})
    made = panel(rows, float_column(rows, "x"), "t")
    np.testing.assert_array_equal(made.values, [[0.5, np.nan], [np.nan, np.nan], [np.nan, 0.25]])
    np.testing.assert_array_equal(made.present, [[True, True], [False, False], [False, True]])


def test_columns_that_are_empty_absent_or_text() -> None:
    frame = pd.DataFrame({"x": [None, None], "y": ["0.5", ""], "z": [np.inf, np.nan]})
    assert not has_numbers(frame, "x", "absent", "z")
    assert has_numbers(frame, "x", "y")


def test_single_stacks_of_two_models_stand_side_by_side() -> None:
    assert [len(row) for row in flow([("a", grid(6, 12)), ("b", grid(12, 12))])] == [2]
    assert [len(row) for row in flow([("a", grid(24, 16)), ("b", grid(24, 16))])] == [1, 1]


def test_a_model_with_several_stacks_has_its_own_row() -> None:
    stacks = [("a", grid(6, 8))] * 3 + [("b", grid(6, 4))] * 3
    assert [len(row) for row in flow(stacks)] == [3, 3]


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("shape", rest_slow([(6, 12), (1, 2), (12, 12), (24, 16), (80, 64)]))
def test_sheets_fit_a_page_and_panels_do_not_meet(shape: tuple[int, int]) -> None:
    sheet = head_grid_figure([[grid(*shape, "a very long name of a model, encoder: in nats")] * 2], "title")
    width, height = sheet.figure.get_size_inches()
    assert width <= (7.01 if shape[1] <= 16 else 9)
    assert height <= 9.21
    first, second = (axes.get_tightbbox() for axes in sheet.axes[0])
    bar = sheet.figure.axes[-1].get_tightbbox()
    assert first.x0 >= 0
    assert first.y0 >= 0
    assert first.x1 <= second.x0 + 1
    assert second.x1 <= bar.x0 + 1
    assert bar.x1 <= sheet.figure.bbox.x1 + 1
    assert max(first.y1, second.y1) <= sheet.figure._suptitle.get_window_extent().y0


@pytest.mark.usefixtures("laid_out")
def test_every_bar_stands_beside_the_column_of_its_panels() -> None:
    first, second = Scale("first"), Scale("second", colours="cividis")

    def drawn(*rows: list[Scale]) -> tuple[list[list[Any]], dict[str, Any]]:
        sheet = head_grid_figure([[replace(grid(6, 8), scale=scale) for scale in row] for row in rows], "title")
        own = [axes for line in sheet.axes for axes in line]
        bars = {axes.get_ylabel(): axes.get_tightbbox() for axes in sheet.figure.axes if axes not in own}
        return [[axes.get_tightbbox() for axes in line] for line in sheet.axes], bars

    places, bars = drawn([first, second], [first, second])
    for left, right in places:
        assert left.x1 <= bars["first"].x0 + 1
        assert bars["first"].x1 <= right.x0 + 1
        assert right.x1 <= bars["second"].x0 + 1
    # Where a column has panels of both, bars stand at the end, in the order of their panels.
    places, bars = drawn([first, second], [second, first])
    assert places[0][1].x1 <= bars["first"].x0 + 1
    assert bars["first"].x1 <= bars["second"].x0 + 1


def test_cells_have_one_size_in_ragged_sheets() -> None:
    rows = [[grid(6, 12), grid(3, 4)], [grid(2, 8)]]
    sheet = head_grid_figure(rows, "title")
    for axes, _ in each(sheet, rows):
        corners = axes.transData.transform([(0, 0), (1, 1)]) / sheet.figure.dpi
        assert (corners[1] - corners[0]).tolist() == pytest.approx(sheet.cell, rel=0.02)


def test_layer_zero_is_at_the_bottom_and_numbers_start_at_zero() -> None:
    (axes,) = head_grid_figure([[grid(6, 12)]], "title").axes[0]
    assert axes.get_ylim() == (0, 6)
    assert axes.get_xlim() == (0, 12)
    assert [(t.get_position()[1], t.get_text()) for t in axes.get_yticklabels()] == [
        (n + 0.5, str(n)) for n in range(6)
    ]
    assert [t.get_text() for t in axes.get_xticklabels()] == [str(i) for i in range(12)]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")
