from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_gates import Made, gate_tables

from headlens.analyses.prune.results_table import lasting_roles, remaining_heads, results_overview
from headlens.pages.page_tables import PageTable
from headlens.runs.reading import RecordedRun

STEPS = (0, 2000)  # few: making gates of every update takes longer than drawing


MADE = Made(penalties=(0.01, 0.1), steps=STEPS)


def run(tables: dict[str, pd.DataFrame], label: str = "run") -> RecordedRun:
    return RecordedRun(Path("folder"), label, {"command": "prune"}, tables)


def column(table: PageTable, name: str) -> list[str]:
    place = [own.name for own in table.columns].index(name)
    return [row[place].text for row in table.rows]


def test_results_have_numbers_intervals_and_the_level_of_the_whole_model() -> None:
    tables = gate_tables(MADE)
    table = results_overview([run(tables)])
    assert column(table, "λ") == ["unpruned", "0.01", "0.1"]
    assert column(table, "heads")[0] == "48/48/48"
    sweep = tables["sweep"].set_index("run")
    assert column(table, "from trained") == [f"{v:.2f}" for v in sweep["value"].iloc[:3]]
    assert column(table, "from scratch") == ["", *(f"{v:.2f}" for v in sweep["value"].iloc[3:])]
    place = [own.name for own in table.columns].index("95 % CI from trained")
    intervals = [row[place].interval for row in table.rows]
    assert all(own is not None for own in intervals)
    level = intervals[0].value
    assert all(own.baseline == pytest.approx(level) for own in intervals)
    assert all(own.low < own.value < own.high for own in intervals)
    assert all(own.numeric for own in table.columns if own.name in ("λ", "from trained", "from scratch"))


def test_what_remained_is_named_where_it_is_little() -> None:
    tables = gate_tables(MADE)
    table = remaining_heads([run(tables)])
    assert column(table, "stack") == ["encoder", "decoder", "cross"] * 2
    last = tables["gates"][tables["gates"]["step"] == tables["gates"]["step"].max()]
    for row, (penalty, stack) in enumerate((p, s) for p in (0.01, 0.1) for s in ("encoder", "decoder", "cross")):
        own = last[(last["penalty"] == penalty) & (last["stack"] == stack)]
        left = own[own["gate"] > 0]
        assert column(table, "left")[row] == str(len(left))
        names = ", ".join(f"{layer}.{head}" for layer, head in zip(left["layer"], left["head"], strict=True))
        assert column(table, "heads left")[row] == (names if len(left) <= 24 else "")
        empty = [str(layer) for layer in range(6) if layer not in set(left["layer"])]
        assert column(table, "layers without heads")[row] == ", ".join(empty)


def test_a_model_without_heads_is_told() -> None:
    table = remaining_heads(
        [run(gate_tables(Made(shapes={"encoder": (2, 2)}, penalties=(9.0,), least=0.0, steps=STEPS)))]
    )
    (row,) = table.rows
    assert [cell.text for cell in row][2:] == ["encoder", "0", "4", "0, 1"]
    assert table.columns[-1].name == "layers without heads"


def test_roles_that_die_last_come_first() -> None:
    left = {0.1: "rare rare separator", 0.5: "rare"}
    roles = ["rare", "rare", "separator", "separator", "positional(-1)"]
    rows = []
    for penalty, kept in left.items():
        for head, role in enumerate(roles):
            is_kept = kept.split().count(role) > roles[:head].count(role)
            rows.append((f"r{penalty}", penalty, "m", "encoder", 0, head, role, is_kept))
    frame = pd.DataFrame(rows, columns=["run", "penalty", "model", "stack", "layer", "head", "role", "kept"])
    table = lasting_roles([run({"roles": frame})])
    assert column(table, "role") == ["rare", "separator", "positional"]
    assert column(table, "heads with this role") == ["2", "2", "1"]
    assert column(table, "fewest heads left while it occurs") == ["1", "3", "never"]
    assert column(table, "λ of that run") == ["0.5", "0.1", ""]
    assert column(table, "mean share of its heads left") == ["0.750", "0.250", "0.000"]
    assert set(column(table, "mean share of all heads left")) == {"0.400"}


def test_several_folders_have_their_labels() -> None:
    both = [run(gate_tables(MADE), "first"), run(gate_tables(Made(gated=("encoder",), steps=STEPS)), "second")]
    for make in (results_overview, remaining_heads, lasting_roles):
        table = make(both)
        assert table.columns[0].name == "run"
        assert list(dict.fromkeys(column(table, "run"))) == ["first", "second"]


@pytest.mark.parametrize("make", [results_overview, remaining_heads, lasting_roles])
def test_without_tables_there_are_no_rows(make: object) -> None:
    tables = gate_tables(MADE)
    assert not make([run({})]).rows
    assert not make([run({name: frame.iloc[:0] for name, frame in tables.items()})]).rows


def test_numbers_that_are_not_known_are_left_out() -> None:
    tables = gate_tables(MADE)
    table = results_overview([run({"sweep": tables["sweep"].assign(value=np.nan, ci_low=np.nan, ci_high=np.nan)})])
    assert "from trained" not in {own.name for own in table.columns}
    unknown = remaining_heads([run({"gates": tables["gates"].assign(gate=np.nan, penalty=np.nan)})])
    assert set(column(unknown, "left")) == {"0"}
    assert column(unknown, "λ")[0] == "lambda-0"
