from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from drawn_words import fits_a_page
from made_gates import MARIAN, Made, gate_tables
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.analyses.prune.gate_figures import GATES, gate_maps
from headlens.plots.style import MISSING

SMALL = Made(shapes={"encoder": (2, 3)}, penalties=(0.01, 0.1), steps=(0, 5, 10), least=0.3)


def drawn(gates: pd.DataFrame) -> dict[str, Figure]:
    found = {name: figure for name, figure in gate_maps(gates) if figure is not None}
    for figure in found.values():
        figure.canvas.draw()
    return found


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_title(loc="left")]


def cells(axes: Axes) -> dict[tuple[int, int], str]:
    """Colour of every cell that is drawn, by layer and head; cells begin at whole numbers."""
    found = {}
    for mesh in axes.collections:
        mesh.update_scalarmappable()
        for path, colour in zip(mesh.get_paths(), mesh.get_facecolor(), strict=True):
            head, layer = path.vertices[:4].mean(axis=0)
            found[int(layer), int(head)] = to_hex(colour)
    return found


def test_every_run_has_its_gates_at_every_update() -> None:
    gates = gate_tables(SMALL)["gates"]
    (name,) = found = drawn(gates)
    assert name == "gates_encoder"
    shown = panels(found[name])
    assert [axes.get_title(loc="left").split("\n")[0] for axes in shown] == ["step 0", "step 5", "step 10"] * 2
    for axes, (penalty, step) in zip(shown, [(p, s) for p in (0.01, 0.1) for s in (0, 5, 10)], strict=True):
        own = gates[(gates["penalty"] == penalty) & (gates["step"] == step)]
        assert axes.get_title(loc="left").split("\n")[1] == f"{(own['gate'] > 0).sum()} of 6 open"
        colours = cells(axes)
        assert len(colours) == 6
        for row in own.itertuples():
            expected = "#ffffff" if row.gate == 0 else to_hex(GATES.mappable.to_rgba(row.gate))
            assert colours[row.layer, row.head] == expected


def test_only_closed_gates_are_white() -> None:
    colours = [to_hex(GATES.mappable.to_rgba(gate)) for gate in (0.0, 1e-9, 0.01, 1.0)]
    assert colours[0] == "#ffffff"
    assert "#ffffff" not in colours[1:]
    assert (GATES.low, GATES.high) == pytest.approx((0, 1))


def test_gates_without_a_number_are_grey_and_absent_heads_nothing() -> None:
    gates = gate_tables(SMALL)["gates"]
    gates.loc[(gates["layer"] == 0) & (gates["head"] == 0), "gate"] = np.nan
    gates = gates[(gates["layer"] == 0) | (gates["head"] < 2)]
    for axes in panels(drawn(gates)["gates_encoder"]):
        colours = cells(axes)
        assert colours[0, 0] == MISSING.lower()
        assert set(colours) == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}


def test_every_stack_has_a_figure_with_the_runs_that_have_gates_there() -> None:
    shapes = dict.fromkeys(MARIAN, (2, 2))
    all_stacks = gate_tables(Made(shapes, penalties=(0.1,), steps=(0, 5)))["gates"]
    encoder = gate_tables(Made(shapes, penalties=(0.2, 0.3), steps=(0, 5), gated=("encoder",)))["gates"]
    found = drawn(pd.concat([all_stacks, encoder]))
    assert list(found) == ["gates_encoder", "gates_decoder", "gates_cross"]
    assert [len(panels(figure)) for figure in found.values()] == [6, 2, 2]


@pytest.mark.slow
def test_more_runs_than_fit_a_page_have_several() -> None:
    penalties = tuple(0.001 * 2**i for i in range(12))
    gates = gate_tables(Made(shapes={"encoder": (24, 16)}, penalties=penalties, steps=(0, 1)))["gates"]
    found = drawn(gates)
    assert list(found) == ["gates_encoder", "gates_encoder_2"]
    labels = [text.get_text() for figure in found.values() for text in figure.texts if "λ" in text.get_text()]
    assert labels == [f"λ = {penalty:g}" for penalty in penalties]
    assert all(fits_a_page(figure) for figure in found.values())


@pytest.mark.parametrize(
    "made",
    rest_slow(
        [
            SMALL,
            Made(),
            Made(shapes={"encoder": (2, 2)}, penalties=(0.1,), least=0.0),
            Made(shapes={"encoder": (12, 12)}, penalties=tuple(np.geomspace(0.001, 1, 10))),
            Made(shapes=MARIAN, penalties=(1234.5,), steps=(0, 1_000_000)),
            Made(shapes={"decoder": (24, 16)}, model="a-very-long-name/" * 8),
        ]
    ),
    ids=range(6),
)
def test_nothing_is_cut_off_or_covered(made: Made) -> None:
    for figure in drawn(gate_tables(made)["gates"]).values():
        assert fits_a_page(figure)
        inner = [axes for axes in figure.axes if axes.get_window_extent().width]
        for axes in inner:
            box = axes.get_tightbbox()
            assert box is not None
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y1 <= figure.texts[0].get_window_extent().y0 + 1
        shown = panels(figure)
        for left, right in pairwise(shown):
            if left.get_position().y0 == pytest.approx(right.get_position().y0):
                assert left.title.get_window_extent().x1 <= right.get_window_extent().x0
                assert left._left_title.get_window_extent().x1 <= right.get_window_extent().x0
        for text in figure.texts[1:]:
            assert text.get_window_extent().x1 <= min(axes.get_tightbbox().x0 for axes in shown)


@pytest.mark.parametrize("words", rest_slow(HOSTILE))
def test_any_name_can_be_drawn(words: str) -> None:
    made = Made(shapes={"encoder": (2, 2)}, penalties=(0.1,), steps=(0, 5))
    gates = gate_tables(made)["gates"].assign(model=words, penalty=np.nan)
    assert len(drawn(gates.assign(run=words + gates["run"]))) == 1
    assert len(drawn(pd.concat([gates, gates.assign(model="other")]))) == 1


def test_without_numbers_there_is_nothing_to_draw() -> None:
    gates = gate_tables(SMALL)["gates"]
    assert list(gate_maps(gates.assign(gate=np.nan))) == [("gates", None)]
    assert list(gate_maps(gates.iloc[:0])) == [("gates", None)]
