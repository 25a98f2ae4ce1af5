from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from drawn_words import check_words, fits_a_page
from hypothesis import given, settings
from hypothesis import strategies as st
from made_gates import Made, gate_tables
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.analyses.prune.sweep_figures import kept_rows, role_sets, roles_kept
from headlens.plots.role_colours import COLOURS, family

STEPS = (0, 2000)  # few: making gates of every update takes longer than drawing


COLUMNS = ["run", "penalty", "stack", "head", "role", "kept"]


def table(rows: list[tuple[str, float, str, int, str, bool]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS).assign(model="m", layer=0)


def drawn(roles: pd.DataFrame, column: str = "role") -> Figure:
    figure = roles_kept(roles, column)
    assert figure is not None
    figure.canvas.draw()
    return figure


def bars(axes: Axes) -> dict[tuple[int, str], float]:
    """Heights of the pieces of bars, by place and colour."""
    return {
        (round(piece.get_x() + piece.get_width() / 2), to_hex(piece.get_facecolor())): piece.get_height()
        for piece in axes.patches
        if piece.get_height()
    }


def test_bars_count_the_heads_left_by_role() -> None:
    roles = gate_tables(Made(penalties=(0.1, 0.01), steps=STEPS))["roles"]
    shown = drawn(roles).axes
    assert [axes.get_title(loc="left").split(", ")[1] for axes in shown] == ["encoder", "decoder", "cross"]
    for axes, stack in zip(shown, ("encoder", "decoder", "cross"), strict=True):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["all", "0.1", "0.01"]
        expected: dict[tuple[int, str], int] = {}
        own = roles[roles["stack"] == stack]
        for place, rows in enumerate(
            [own[own["penalty"] == 0.1], *(own[(own["penalty"] == p) & own["kept"]] for p in (0.1, 0.01))]
        ):
            for role in rows["role"]:
                key = place, COLOURS[family(role)].lower()
                expected[key] = expected.get(key, 0) + 1
        assert bars(axes) == expected


def test_pieces_stand_on_each_other_and_totals_above() -> None:
    (axes, *_) = drawn(gate_tables(Made(steps=STEPS))["roles"]).axes
    tops: dict[int, float] = {}
    for piece in axes.patches:
        place = round(piece.get_x() + 0.4)
        assert piece.get_y() == tops.get(place, 0.0)
        tops[place] = piece.get_y() + piece.get_height()
    totals = {round(t.get_position()[0]): int(t.get_text()) for t in axes.texts if t.get_va() == "bottom"}
    assert totals == tops
    assert list(totals.values()) == sorted(totals.values(), reverse=True)


def test_runs_stand_by_all_the_heads_they_left_in_all_stacks() -> None:
    few = [("a", 0.5, "encoder", h, "rare", h == 0) for h in range(3)] + [
        ("a", 0.5, "cross", h, "", True) for h in range(3)
    ]
    more = [("b", 0.9, "encoder", h, "rare", h > 0) for h in range(3)] + [
        ("b", 0.9, "cross", h, "", False) for h in range(3)
    ]
    encoder, cross = role_sets(table(more + few))
    assert [(bar.name, bar.left) for bar in encoder.bars] == [("all", 3), ("0.5", 1), ("0.9", 2)]
    assert [(bar.name, bar.left) for bar in cross.bars] == [("all", 3), ("0.5", 3), ("0.9", 0)]


def test_roles_after_pruning_are_those_of_the_pruned_model() -> None:
    roles = table([("a", 0.1, "encoder", 0, "rare", True), ("a", 0.1, "encoder", 1, "separator", False)])
    roles = roles.assign(role_pruned=["positional(-1)", np.nan])
    (own,) = role_sets(roles, "role_pruned")
    assert [bar.counts for bar in own.bars] == [{"rare": 1, "separator": 1}, {"positional": 1}]
    assert bars(drawn(roles, "role_pruned").axes[0]).get((1, COLOURS["positional"].lower())) == 1


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(
        st.tuples(st.sampled_from(["rare", "positional(-1)", "", "else"]), st.booleans()), min_size=1, max_size=20
    ),
    st.integers(1, 3),
)
def test_no_head_is_lost_or_counted_twice(heads: list[tuple[str, bool]], runs: int) -> None:
    rows = [(f"r{n}", n / 10, "encoder", h, role, kept) for n in range(runs) for h, (role, kept) in enumerate(heads)]
    (own,) = role_sets(table(rows))
    whole, *others = own.bars
    assert whole.left == len(heads)
    assert len(others) == runs
    for bar in others:
        assert bar.left == sum(kept for _, kept in heads)
        assert all(count <= whole.counts[name] for name, count in bar.counts.items())


@pytest.mark.parametrize("values", [[True, False], ["true", "false"], [True, np.nan], [np.True_, None]])
def test_truth_values_of_any_kind(values: list[object]) -> None:
    assert kept_rows(pd.DataFrame({"kept": pd.Series(values, dtype=object)})).tolist() == [True, False]


def test_nothing_to_draw() -> None:
    roles = gate_tables(Made(steps=STEPS))["roles"]
    assert roles_kept(roles.assign(role="")) is None
    assert roles_kept(roles.assign(role=np.nan)) is None
    assert roles_kept(roles.iloc[:0]) is None


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize(
    "made",
    rest_slow(
        [
            Made(shapes={"encoder": (6, 8)}, penalties=(0.01, 0.1), steps=STEPS),
            Made(steps=STEPS),
            Made(penalties=tuple(0.001 * 1.9**i for i in range(12)), steps=STEPS),
            Made(shapes={"encoder": (24, 16)}, model="a-very-long-name/" * 8, least=0.0, steps=STEPS),
            Made(shapes={"encoder": (2, 2)}, penalties=(0.1,), least=0.0, seed=1, steps=STEPS),
        ]
    ),
    ids=range(5),
)
def test_nothing_is_cut_off_or_covered(made: Made) -> None:
    roles = gate_tables(made)["roles"]
    # every family in the legend
    roles["role"] = np.resize(
        ["positional(-1)", "syntactic(x)", "rare", "separator", "broad", "self", "what", ""], len(roles)
    )
    for shown in (roles, pd.concat([roles, roles.assign(model="other")])):
        figure = drawn(shown)
        assert fits_a_page(figure)
        legend = figure.legends[0].get_window_extent()
        assert legend.x1 <= figure.bbox.x1
        assert legend.y0 >= -1
        for axes in figure.axes:
            box = axes.get_tightbbox()
            assert box is not None
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y0 >= legend.y1 - 1
            assert box.y1 <= figure.texts[0].get_window_extent().y0 + 1
            for text in axes.texts:
                if text.get_va() == "center":  # inside its piece
                    (x, y), extent = text.get_position(), text.get_window_extent()
                    piece = next(
                        p
                        for p in axes.patches
                        if p.get_x() < x < p.get_x() + 0.8 and p.get_y() < y < p.get_y() + p.get_height()
                    )
                    around = piece.get_window_extent()
                    assert extent.width <= around.width + 1
                    assert extent.height <= around.height * 1.3


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("words", rest_slow(HOSTILE))
def test_any_name_can_be_drawn(words: str) -> None:
    roles = gate_tables(Made(penalties=(0.1,), steps=STEPS))["roles"]
    check_words(drawn(roles.assign(model=words, run=words, penalty=np.nan, role=words)), words)
