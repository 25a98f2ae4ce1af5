from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from drawn_words import check_words, fits_a_page
from made_gates import Made, gate_tables
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.analyses.prune.gate_figures import kept_by_layer

STEPS = (0, 2000)  # few: making gates of every update takes longer than drawing


def drawn(gates: pd.DataFrame) -> Figure:
    figure = kept_by_layer(gates)
    assert figure is not None
    figure.canvas.draw()
    return figure


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_title(loc="left")]


def written(axes: Axes) -> dict[tuple[int, int], int]:
    """What stands in cells, by layer and column."""
    return {(int(t.get_position()[1]), int(t.get_position()[0])): int(t.get_text()) for t in axes.texts}


def test_cells_hold_the_heads_that_are_open_at_the_end() -> None:
    made = Made(penalties=(0.1, 0.01, 0.05), steps=STEPS)
    gates = gate_tables(made)["gates"]
    shown = panels(drawn(gates))
    assert [axes.get_title(loc="left").split(", ")[1] for axes in shown] == ["encoder", "decoder", "cross"]
    last = gates[gates["step"] == gates["step"].max()]
    for axes, stack in zip(shown, ("encoder", "decoder", "cross"), strict=True):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["all", "0.01", "0.05", "0.1"]
        assert axes.get_xlabel() == "λ"
        expected = {(layer, 0): 8 for layer in range(6)}
        for column, penalty in enumerate((0.01, 0.05, 0.1), 1):
            for layer in range(6):
                own = last[(last["stack"] == stack) & (last["penalty"] == penalty) & (last["layer"] == layer)]
                expected[layer, column] = int((own["gate"] > 0).sum())
        assert written(axes) == expected


def test_layers_with_unknown_gates_are_empty() -> None:
    gates = gate_tables(Made(shapes={"encoder": (2, 3)}, penalties=(0.1,), steps=STEPS))["gates"]
    gates.loc[(gates["layer"] == 1) & (gates["head"] == 2), "gate"] = np.nan
    (axes,) = panels(drawn(gates))
    assert set(written(axes)) == {(0, 0), (0, 1), (1, 0)}
    assert kept_by_layer(gates.assign(gate=np.nan)) is None


def test_no_head_left_is_a_number_too() -> None:
    gates = gate_tables(Made(shapes={"encoder": (2, 2)}, penalties=(0.1,), least=0.0, steps=STEPS))["gates"]
    (axes,) = panels(drawn(gates))
    assert written(axes) == {(0, 0): 2, (1, 0): 2, (0, 1): 0, (1, 1): 0}


def test_a_stack_has_columns_for_the_runs_with_gates_there() -> None:
    both = pd.concat(
        [
            gate_tables(Made(penalties=(0.1,), steps=STEPS))["gates"],
            gate_tables(Made(penalties=(0.2,), gated=("encoder",), steps=STEPS))["gates"],
        ]
    )
    names = [[label.get_text() for label in axes.get_xticklabels()] for axes in panels(drawn(both))]
    assert names == [["all", "0.1", "0.2"], ["all", "0.1"], ["all", "0.1"]]


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize(
    "shapes", rest_slow([{"encoder": (2, 2)}, {"encoder": (24, 16)}, dict.fromkeys(("encoder", "cross"), (6, 8))])
)
@pytest.mark.parametrize("runs", rest_slow([1, 3, 12]))
def test_numbers_and_names_can_be_read(shapes: dict[str, tuple[int, int]], runs: int) -> None:
    penalties = tuple(0.00123 * 1.7**i for i in range(runs))
    figure = drawn(gate_tables(Made(shapes=shapes, penalties=penalties, steps=(0, 1)))["gates"])
    assert fits_a_page(figure)
    for axes in panels(figure):
        cell = axes.transData.transform((1, 1)) - axes.transData.transform((0, 0))
        assert len(axes.texts) == (runs + 1) * shapes["encoder"][0]
        for text in axes.texts:
            box = text.get_window_extent()
            assert box.width <= cell[0]
            assert box.height <= cell[1] * 1.2
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert all(a.x1 <= b.x0 for a, b in pairwise(boxes))
        assert min(box.y0 for box in boxes) >= 0


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("words", rest_slow(HOSTILE))
def test_any_name_can_be_drawn(words: str) -> None:
    gates = gate_tables(Made(shapes={"encoder": (2, 2)}, penalties=(0.1,), steps=STEPS))["gates"]
    figure = drawn(gates.assign(model=words, run=words, penalty=np.nan))
    check_words(figure, words)
