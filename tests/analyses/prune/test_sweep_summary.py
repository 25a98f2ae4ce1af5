from __future__ import annotations

import numpy as np
import pandas as pd
from made_gates import Made, gate_tables

from headlens.analyses.prune.sweep_runs import (
    architectures,
    count_heads_left,
    gated_stacks,
    is_unpruned,
    main_rows,
    sweep_stacks,
)

STEPS = (0, 2000)  # few: making gates of every update takes longer than drawing


ENCODER = Made(shapes={"encoder": (2, 4)}, penalties=(0.01, 0.1), metrics=("accuracy", "f1"), steps=STEPS)


def test_a_model_without_a_stack_has_none_to_count() -> None:
    sweep = gate_tables(ENCODER)["sweep"]
    assert sweep_stacks(sweep) == ["encoder"]
    assert sweep_stacks(sweep.drop(columns="heads_cross")) == ["encoder"]
    np.testing.assert_array_equal(count_heads_left(sweep), sweep["heads_encoder"])
    np.testing.assert_array_equal(count_heads_left(sweep, ["decoder"]), 0)


def test_the_first_metric_is_the_main_one() -> None:
    sweep = gate_tables(ENCODER)["sweep"]
    assert set(sweep["metric"]) == {"accuracy", "f1"}
    rows = main_rows(sweep)
    assert set(rows["metric"]) == {"accuracy"}
    assert len(rows) == 5
    assert is_unpruned(rows).sum() == 1


def test_a_run_and_its_architecture_from_scratch_belong_together_whatever_their_names() -> None:
    sweep = gate_tables(ENCODER)["sweep"]
    for named in (sweep, sweep.assign(run=sweep["run"].str.removesuffix("-scratch"))):
        keys = architectures(named)
        by_key = {key: named.iloc[[i for i, k in enumerate(keys) if k == key]] for key in keys}
        assert len(by_key) == 3
        assert sorted(len(rows) for rows in by_key.values()) == [2, 4, 4]
        for rows in by_key.values():
            assert len(rows["penalty"].unique()) == len(rows["removed"].unique()) == 1


def test_the_same_architecture_twice_makes_two_pairs() -> None:
    sweep = gate_tables(ENCODER)["sweep"]
    runs = main_rows(sweep)
    one = runs[runs["penalty"] == 0.1]
    twice = pd.concat([one, one.assign(run=one["run"] + "-again")])
    keys = architectures(twice)
    assert keys[:2] == [keys[0]] * 2
    assert keys[2:] == [keys[2]] * 2
    assert keys[0] != keys[2]


def test_stacks_with_gates_are_those_of_the_table_of_gates() -> None:
    tables = gate_tables(Made(penalties=(0.01, 0.1), gated=("encoder", "cross"), steps=STEPS))
    rows = main_rows(tables["sweep"])
    expected = [(), *[("encoder", "cross")] * 4]
    assert gated_stacks(rows, tables["gates"]) == expected
    # without it they are those that lost heads
    assert gated_stacks(rows, None) == expected
    assert gated_stacks(rows, tables["gates"].iloc[:0]) == expected
    # a stack with gates that all stayed open is known from the table only
    full = rows.assign(heads_cross=48)
    assert gated_stacks(full, tables["gates"])[1:] == [("encoder", "cross")] * 4
    assert gated_stacks(full, None)[1:] == [("encoder",)] * 4


def test_where_no_head_was_lost_all_stacks_are_counted() -> None:
    rows = main_rows(gate_tables(Made(penalties=(0.0,), steps=STEPS))["sweep"])
    whole = rows.assign(heads_encoder=48, heads_decoder=48, heads_cross=48)
    assert gated_stacks(whole, None)[1:] == [("encoder", "decoder", "cross")] * 2
