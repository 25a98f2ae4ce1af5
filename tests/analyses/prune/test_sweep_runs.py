from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_gates import Made, gate_tables

from headlens.analyses.prune.sweep_runs import (
    PENALTY_LETTERS,
    gated_runs,
    open_heads,
    penalty_label,
    penalty_text,
    snapshots,
)

STEPS = (0, 2000)  # few: making gates of every update takes longer than drawing


def rows(steps: list[int], gates: list[float], run: str = "a", penalty: float = 0.1) -> pd.DataFrame:
    keys = {"run": run, "penalty": penalty, "model": "m", "stack": "encoder", "layer": 0, "head": 0}
    return pd.DataFrame({"step": steps, "gate": gates}).assign(**keys)


def test_runs_stand_from_weak_to_strong_penalties() -> None:
    frame = pd.concat([rows([0], [1.0], name, p) for name, p in (("x", 0.5), ("y", np.nan), ("z", 0.01))])
    found = gated_runs(frame)
    assert [(run.run, run.label) for run in found] == [("z", "λ = 0.01"), ("x", "λ = 0.5"), ("y", "y")]
    assert [run.name for run in found] == ["λ = 0.01", "λ = 0.5", "y"]


def test_models_stay_together_and_are_named_where_there_are_several() -> None:
    frame = pd.concat([rows([0], [1.0], "r", 0.1).assign(model=m) for m in ("second", "first")])
    assert [run.name for run in gated_runs(frame)] == ["second\nλ = 0.1", "first\nλ = 0.1"]


def test_runs_with_the_same_penalty_have_their_names() -> None:
    assert penalty_label("seed 1", 0.1, [0.1, 0.1, 0.2]) == "λ = 0.1, seed 1"
    assert penalty_label("a\nb" + "x" * 30, np.nan, []) == "a b" + "x" * 20 + "…"


# Any of these letters stands for its kind: all of Unicode takes seconds to look up.
@given(
    st.text("aZ0. \n\t_é注\u202e\u0301🙂", max_size=40), st.floats(1e-99, 1e99) | st.sampled_from([0.0, np.nan, np.inf])
)
def test_a_penalty_takes_few_letters(name: str, penalty: float) -> None:
    assert len(penalty_text(name, penalty)) <= PENALTY_LETTERS


def test_states_between_two_logged_updates_are_those_of_the_first() -> None:
    (run,) = gated_runs(rows([0, 10, 20], [1.0, 0.5, 0.0]))
    assert [run.at(step)["gate"].item() for step in (-1, 0, 9, 10, 99)] == [1.0, 1.0, 1.0, 0.5, 0.0]
    assert run.last["gate"].item() == 0.0
    assert run.steps.tolist() == [0, 10, 20]


def test_rows_without_an_update_are_left_out() -> None:
    frame = rows([0, 10], [1.0, 0.5]).assign(step=[0, np.nan])
    assert gated_runs(frame)[0].steps.tolist() == [0]
    assert gated_runs(frame.iloc[1:]) == []


@pytest.mark.parametrize(("gates", "expected"), [([1.0, 0.0, 1e-9], 2), ([np.nan, 0.5], 1), ([], 0)])
def test_closed_is_exactly_zero_and_what_is_unknown_does_not_count(gates: list[float], expected: int) -> None:
    assert open_heads(pd.DataFrame({"gate": gates})) == expected


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[int], list[float]]]:
    found = []
    for _ in range(draw(st.integers(1, 3))):
        steps = sorted(draw(st.sets(st.integers(0, 10**6), min_size=1, max_size=30)))
        gates = draw(st.lists(st.floats(0, 1) | st.just(np.nan), min_size=len(steps), max_size=len(steps)))
        found.append((steps, gates))
    return found


@pytest.mark.slow
@given(histories(), st.integers(2, 7))
def test_snapshots_are_few_and_hold_both_ends(made: list[tuple[list[int], list[float]]], most: int) -> None:
    runs = gated_runs(pd.concat([rows(*own, f"r{n}", n) for n, own in enumerate(made)]))
    logged = sorted({step for steps, _ in made for step in steps})
    found = snapshots(runs, most)
    assert found == sorted(set(found))
    assert set(found) <= set(logged)
    assert (found[0], found[-1]) == (logged[0], logged[-1])
    assert len(found) <= most
    assert len(logged) > most or found == logged


def test_snapshots_are_denser_where_gates_move() -> None:
    steps = list(range(0, 101, 2))
    gates = [1.0 if step < 80 else max(0.0, 1 - (step - 80) / 10) for step in steps]
    found = snapshots(gated_runs(rows(steps, gates)))
    assert sum(step > 78 for step in found) >= 3
    assert snapshots([]) == []


def test_the_made_tables_are_like_those_of_the_command() -> None:
    tables = gate_tables(Made(gated=("cross",), steps=STEPS))
    assert list(tables["gates"])[:9] == [
        "run",
        "penalty",
        "step",
        "stack",
        "layer",
        "head",
        "log_alpha",
        "p_open",
        "gate",
    ]
    assert tables["gates"]["step"].min() == 0
    last = tables["gates"][tables["gates"]["step"] == tables["gates"]["step"].max()]
    for run, own in last.groupby("run"):
        kept = tables["roles"][tables["roles"]["run"] == run]["kept"]
        assert open_heads(own) == kept.sum()
        in_sweep = tables["sweep"][tables["sweep"]["run"] == run]
        assert in_sweep["heads_cross"].item() == kept.sum()
        assert len(in_sweep["removed"].item().split()) == 48 - kept.sum()
