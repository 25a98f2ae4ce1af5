from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_runs import ablation_tables

from headlens.analyses.ablate.overviews import (
    best_alone,
    damage_by_layer,
    heads_alone,
    most_damage,
    needed_heads,
    one_row_for_orders,
    pruned_by_stack,
    pruned_models,
    two_methods,
)
from headlens.analyses.ablate.ranking_overviews import compared_rankings, pruning_areas
from headlens.pages.latex_tables import latex_table
from headlens.pages.page_tables import Interval, PageTable
from headlens.runs.reading import RecordedRun
from headlens.tables.ablation_tables import AGREEMENT_OF_RANKINGS, PRUNING_AREAS


def run(tables: Mapping[str, pd.DataFrame], label: str = "run") -> RecordedRun:
    return RecordedRun(Path("folder") / label, label, {"command": "ablate", "status": "finished"}, tables)


def column(table: PageTable, name: str) -> list[str]:
    place = [c.name for c in table.columns].index(name)
    return [row[place].text for row in table.rows]


def intervals(table: PageTable) -> list[Interval | None]:
    place = next(n for n, c in enumerate(table.columns) if c.name.startswith("95 % CI"))
    return [row[place].interval for row in table.rows]


def changes(values: list[float], mode: str = "zero", metric: str = "accuracy") -> dict[str, pd.DataFrame]:
    """Changes of the six heads, with intervals of ± 0.1."""
    frame = ablation_tables(modes=(mode,), metric=metric)["ablation"].assign(delta=values)
    frame = frame.assign(value=0.5 + frame["delta"], ci_low=frame["delta"] - 0.1, ci_high=frame["delta"] + 0.1)
    frame = frame.drop(columns="verdict")  # as of an older version
    return {"ablation": frame.assign(p_holm=np.where(frame["delta"].abs() > 0.25, 0.01, 1.0))}


CHANGES = [-0.1, -0.4, 0.2, -0.3, np.nan, 0.0]


def test_heads_stand_in_the_order_of_their_damage() -> None:
    table = needed_heads([run(changes(CHANGES))])
    assert column(table, "head") == ["encoder.0.1", "encoder.1.0", "encoder.0.0"]
    assert column(table, "change") == ["-0.400", "-0.300", "-0.100"], "heads that are not missed are left out"
    assert column(table, "value")[0] == "0.100"
    assert column(table, "95 % CI")[0] == "-0.500 to -0.300"
    assert column(table, "significant") == ["yes", "yes", "no"]
    # from the lowest end of an interval, -0.5, to the highest, 0, which is no change
    assert intervals(table)[0] == pytest.approx((0.0, 0.2, 0.4, 1.0))


@pytest.mark.parametrize("metric", ["loss", "perplexity"])
def test_a_larger_loss_is_damage(metric: str) -> None:
    heads = column(needed_heads([run(changes(CHANGES, metric=metric))]), "head")
    assert heads == ["encoder.0.2"]


def test_at_most_ten_heads_of_every_model_and_mode() -> None:
    frames = [ablation_tables(model)["ablation"] for model in ("one", "two")]
    many = [f.assign(layer=f["layer"] + 2 * n) for f in frames for n in range(3)]
    table = needed_heads([run({"ablation": pd.concat(many, ignore_index=True)})])
    assert column(table, "model") == ["one"] * 10 + ["two"] * 10
    assert set(column(table, "mode")) == {"zero"}


def test_captions_count_the_heads_and_file_names_do_not_tell_what_was_found() -> None:
    found, none = (needed_heads([run(changes(values))]) for values in (CHANGES, [-0.1, *[0.0] * 5]))
    assert none.title == f"{found.title} (none is significant)"
    assert (len(found.rows), len(none.rows)) == (3, 1)
    assert "(at most 10 of each, 3 in all)" in found.about
    assert "(at most 10 of each, 1 in all)" in none.about
    alone = [heads_alone([run(changes(values, "keep-only"))]) for values in (CHANGES, [0.0] * 6)]
    assert {table.title for table in alone} == {"Best head of each layer (none is significant)"}
    for tables, name in (([found, none], "losses-without-a-head"), (alone, "best-head-of-each-layer")):
        assert all(f"{name}}}\n" in latex_table(table) for table in tables)


def test_the_best_head_of_each_layer_alone() -> None:
    table = heads_alone([run(changes(CHANGES, "keep-only"))])
    assert column(table, "head") == ["encoder.0.2", "encoder.1.2"]
    worse = heads_alone([run(changes(CHANGES, "keep-only", "loss"))])
    assert column(worse, "head") == ["encoder.0.1", "encoder.1.0"]
    assert heads_alone([run(changes(CHANGES))]).rows == needed_heads([run(changes(CHANGES, "keep-only"))]).rows == ()


def test_stacks_have_layers_of_their_own() -> None:
    rows = changes(CHANGES)["ablation"]
    both = pd.concat([rows, rows.assign(stack="cross", delta=rows["delta"] - 1)], ignore_index=True)
    assert len(best_alone(both)) == 4
    assert set(most_damage(both, 5)["stack"]) == {"cross"}


def test_intervals_of_other_metrics_have_other_scales() -> None:
    tables = [changes(CHANGES), changes([100 * c for c in CHANGES], metric="bleu")]
    table = needed_heads([run(t, str(n)) for n, t in enumerate(tables)])
    assert column(table, "run") == ["0"] * 3 + ["1"] * 3
    assert intervals(table)[0] == pytest.approx((0.0, 0.2, 0.4, 1.0))


def test_what_has_no_interval_has_an_empty_cell() -> None:
    frame, names = changes(CHANGES)["ablation"], ["ci_low", "ci_high", "p_holm"]
    first = frame.index == frame.index[0]
    table = needed_heads([run({"ablation": frame.assign(**{name: frame[name].where(~first) for name in names})})])
    assert column(table, "95 % CI").count("") == column(table, "p (Holm)").count("") == 1
    # columns without a single cell are left out
    table = needed_heads([run({"ablation": frame.assign(**dict.fromkeys(names, np.nan))})])
    assert not {"95 % CI", "p (Holm)"} & {c.name for c in table.columns}
    assert set(column(table, "significant")) == {"no"}


def test_pruned_models_beside_the_whole_one() -> None:
    table = pruned_models([run(ablation_tables())])
    assert column(table, "strategy") == ["none", "ranked", "ranked", *["random, mean of 2"] * 2]
    assert column(table, "pruned") == ["0", "1", "2", "1", "2"]
    assert column(table, "left") == ["6", "5", "4", "5", "4"]
    assert column(table, "verdict") == ["", "not decided", "needed", "", ""]
    assert column(table, "examples that would decide") == ["", "about 1,200", "", "", ""]
    assert column(table, "value")[:3] == ["0.875", "0.825", "0.775"]
    assert column(table, "selection split")[0] == "0.885"
    assert column(table, "parameters")[:2] == ["10,000", "9,999"]
    assert column(table, "theoretical speed-up")[2] == "1.200"
    # from 0.675, the random orders with 2 heads, to 0.925; the tick is the whole model's 0.875
    assert intervals(table)[1] == pytest.approx((0.1 / 0.25, 0.15 / 0.25, 0.2 / 0.25, 0.2 / 0.25))


def test_a_table_without_the_whole_model_has_no_picture() -> None:
    frame = ablation_tables()["pruning"]
    assert set(intervals(pruned_models([run({"pruning": frame[frame["strategy"] != "none"]})]))) == {None}


@pytest.mark.parametrize("tables", [{}, {name: frame.iloc[:0] for name, frame in ablation_tables().items()}])
def test_nothing_to_tell(tables: dict[str, pd.DataFrame]) -> None:
    for make in (needed_heads, heads_alone, pruned_models):
        assert make([run(tables)]).rows == ()


def test_no_head_has_a_change() -> None:
    tables = changes([np.nan] * 6)
    assert needed_heads([run(tables)]).rows == ()
    same = changes([0.0] * 6)["ablation"].assign(ci_low=0.0, ci_high=0.0)
    assert needed_heads([run({"ablation": same})]).rows == ()


def test_damage_by_stack_and_layer() -> None:
    rows = changes(CHANGES)["ablation"]
    cross = rows[rows["layer"] == 0].assign(stack="cross", delta=[-0.3, 0.5, np.nan], p_holm=0.01)
    table = damage_by_layer([run({"ablation": pd.concat([rows, cross], ignore_index=True)})])
    assert column(table, "stack") == ["encoder"] * 3 + ["cross"]
    assert column(table, "layer") == ["all", "0", "1", "all"]
    assert column(table, "heads") == ["6", "3", "3", "3"]
    # Means over the heads that have a number: -0.6 / 5, -0.3 / 3, -0.3 / 2, 0.2 / 2.
    assert column(table, "mean change") == ["-0.120", "-0.100", "-0.150", "0.100"]
    assert column(table, "largest loss") == ["encoder.0.1", "encoder.0.1", "encoder.1.0", "cross.0.0"]
    assert column(table, "change when removed") == ["-0.400", "-0.400", "-0.300", "-0.300"]
    # A head without which the task does better is not needed, however sure that is.
    assert column(table, "needed") == ["2", "1", "1", "1"]
    (worse,) = {*column(damage_by_layer([run(changes(CHANGES, metric="loss"))]), "largest loss")[:1]}
    assert worse == "encoder.0.2"
    assert damage_by_layer([run({"ablation": rows.assign(n=29)})]).rows == ()
    assert damage_by_layer([run(changes(CHANGES, "keep-only"))]).rows == ()


def test_ties_are_told_in_tables_and_what_rounding_leaves_is_0() -> None:
    rows = changes([0.1, -0.1, -0.1, 0.3, -0.1, -0.2])["ablation"]
    table = damage_by_layer([run({"ablation": rows})])
    assert column(table, "largest loss") == ["encoder.1.2", "encoder.0.1 (2 heads tie)", "encoder.1.2"]
    noise = [0.1 + 0.2 - 0.3, 0.3 - 0.1 - 0.2, -9.3e-18]
    for delta in ([*noise, 0.1, -0.3, 0.1 + 0.1], [-0.0] * 6, [2e-9, -1e-9, 0.0] * 2):
        table = damage_by_layer([run(changes(delta))])
        assert set(column(table, "mean change")) == {"0.000"}
    table = damage_by_layer([run(changes([2e-6, 4e-6, 0.0] * 2))])
    assert column(table, "mean change")[0] == "2.0e-06", "small, and no noise"
    alone = changes([0.1, 0.1, -0.1, -0.1, -0.1, -0.1], "keep-only")
    assert column(heads_alone([run(alone)]), "head") == ["encoder.0.0 (2 heads tie)", "encoder.1.0 (3 heads tie)"]


def test_verdicts_are_shown_and_counted() -> None:
    tables = ablation_tables(modes=("zero",))
    table = damage_by_layer([run(tables)])
    counts = [column(table, name) for name in ("needed", "not needed", "not decided")]
    assert counts == [["1", "1", "0"], ["1", "0", "1"], ["4", "2", "2"]]
    heads = needed_heads([run(tables)])
    assert column(heads, "verdict")[0] == "needed"
    assert set(column(heads, "verdict")[1:]) == {"not decided"}
    assert column(heads, "examples that would decide")[:2] == ["", "about 2,300"]


def test_several_random_orders_are_one_row_with_their_range() -> None:
    pruning = ablation_tables()["pruning"].convert_dtypes()
    random = pruning["strategy"] == "random"
    pruning.loc[random, "value"] = [0.7, 0.6, 0.8, 0.5]
    pruning["parameters"] = pruning["parameters"].astype("Int64").mask(random)
    rows = one_row_for_orders(pruning)
    assert rows["strategy"].tolist() == ["none", "ranked", "ranked", *["random, mean of 2"] * 2]
    assert rows["value"].tolist()[3:] == pytest.approx([0.75, 0.55])
    assert list(zip(rows["ci_low"], rows["ci_high"], strict=True))[3:] == [(0.7, 0.8), (0.5, 0.6)]
    assert rows["verdict"].isna().tolist() == [True, False, False, True, True]
    # A single order has an interval of its own, and another package's strategy without a seed stays as it is.
    assert one_row_for_orders(pruning[pruning["seed"].isna() | (pruning["seed"] == 0)])["strategy"].tolist()[3:] == [
        "random",
        "random",
    ]


def test_pruned_heads_are_counted_by_stack() -> None:
    tables = ablation_tables()
    rows, pruning = tables["ablation"], tables["pruning"]
    assert pruned_by_stack([run(tables)]).rows == (), "one stack"
    cross = rows[rows["layer"] == 0].assign(stack="cross")
    removed = ["" if n == 0 else "encoder.0.1 cross.0.0 cross.0.2" for n in pruning["n_pruned"]]
    found = {"ablation": pd.concat([rows, cross]), "pruning": pruning.assign(removed=removed)}
    table = pruned_by_stack([run(found)])
    assert len(table.rows) == (pruning["n_pruned"] > 0).sum()
    assert pruned_by_stack([run(found | {"pruning": pruning.drop(columns="removed")})]).rows == ()
    assert {*column(table, "encoder")} == {"1 of 6"}
    assert {*column(table, "cross")} == {"2 of 3"}
    assert "decoder" not in [c.name for c in table.columns]


def test_rankings_are_compared() -> None:
    agreement = pd.DataFrame(
        [("m", "ranked", "shapley", 0.5, 0.2, 0.7, 72), ("m", "ranked", "attribution", -0.1, np.nan, np.nan, 4)],
        columns=AGREEMENT_OF_RANKINGS.names[:7],
    )
    areas = pd.DataFrame(
        [
            ("m", "ranked", "accuracy", 0.8, 0.7, 0.75, 3.0, 0.0, 3, 30),
            ("m", "random", "accuracy", 0.7, 0.7, 0.75, np.nan, np.nan, 3, 30),
        ],
        columns=PRUNING_AREAS.names[:10],
    )
    runs = [run({"ranking_agreement": agreement, "pruning_areas": areas})]
    assert [bool(interval) for interval in intervals(compared_rankings(runs))] == [True, False]
    assert column(compared_rankings(runs), "95 % CI over heads")[1] == ""
    assert column(compared_rankings(runs), "other strategy") == ["shapley", "attribution"]
    assert column(pruning_areas(runs), "worse than it") == ["3 of 3", ""]
    assert column(pruning_areas(runs), "up to") == ["30 heads"] * 2


@pytest.mark.parametrize(
    ("low", "high", "p_value", "told"),
    [(0.1, 0.2, 0.06, True), (-0.1, 0.2, 0.04, True), (0.1, 0.2, 0.04, False), (-0.2, -0.1, 0.04, False),
     (-0.1, 0.2, 0.5, False), (np.nan, np.nan, 0.01, False)],
)  # fmt: skip
def test_intervals_and_p_values_that_differ_are_of_two_methods(
    low: float, high: float, p_value: float, told: bool
) -> None:
    rows = pd.DataFrame({"ci_low": [low, -1.0], "ci_high": [high, 1.0], "p_value": [p_value, 1.0]})
    assert (two_methods(rows) is not None) == told
