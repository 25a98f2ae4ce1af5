from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_runs import relevance_tables

from headlens.pages.page_tables import Interval, PageTable
from headlens.relevance_propagation.overviews import (
    largest_heads_table,
    layer_words,
    relevance_findings,
    relevance_series,
    rule_agreement_table,
    top_heads,
)
from headlens.relevance_propagation.shares import relevance_scale, same_output
from headlens.runs.reading import RecordedRun

SHARES = "all heads (shares, not comparable between layers)"


def run(tables: Mapping[str, pd.DataFrame], label: str = "run") -> RecordedRun:
    return RecordedRun(Path("folder") / label, label, {"command": "relevance", "status": "finished"}, tables)


def column(table: PageTable, name: str) -> list[str]:
    place = [c.name for c in table.columns].index(name)
    return [row[place].text for row in table.rows]


def intervals(table: PageTable) -> list[Interval | None]:
    place = next(n for n, c in enumerate(table.columns) if c.name.startswith("95 % CI"))
    return [row[place].interval for row in table.rows]


def shares(values: list[float]) -> dict[str, pd.DataFrame]:
    """Relevance of the six heads under the rule that was asked for; another rule says the opposite."""
    frame = relevance_tables(rules=("epsilon", "gradxact"))["relevance"]
    own = frame["rule"] == "epsilon"
    frame.loc[own, "relevance"] = values
    frame.loc[~own, "relevance"] = [-value for value in values]
    return {"relevance": frame.assign(ci_low=frame["relevance"] - 0.1, ci_high=frame["relevance"] + 0.1)}


def test_heads_stand_in_the_order_of_their_relevance() -> None:
    table = top_heads([run(shares([0.15, 0.4, -0.2, 0.3, np.nan, 0.25]))])
    assert column(table, "head") == ["encoder.0.1", "encoder.1.0", "encoder.1.2", "encoder.0.0"]
    assert column(table, "relevance") == ["0.400", "0.300", "0.250", "0.150"]
    assert column(table, "95 % CI")[0] == "0.300 to 0.500"
    assert column(table, "equal share") == ["0.333"] * 4
    assert set(column(table, "rule")) == {"epsilon"}
    assert set(column(table, "target")) == {"class"}
    # the picture runs from 0, the lowest end of an interval, to the highest, 0.5
    assert intervals(table)[0] == pytest.approx((0.6, 0.8, 1.0, 2 / 3))
    assert "from 0.000 to 0.500" in table.about


@pytest.mark.parametrize("bounds", [(-0.9, -0.1), (-0.2, 0.3), (np.nan, np.nan)])
def test_shares_of_a_layer_that_does_not_serve_the_target_are_not_listed(bounds: tuple[float, float]) -> None:
    tables = shares([0.1, 0.6, 0.3, 0.3, 0.3, 0.4])
    own = tables["relevance"]["rule"] == "epsilon"
    tables["relevance"].loc[own, "raw"] = [-1.0, 0.1, -3.0, 0.3, 0.3, 0.4]
    tables["relevance"][["ci_low", "ci_high"]] = np.nan
    layer = own & (tables["relevance"]["layer"] == 0)
    tables["relevance"].loc[layer, ["layer_raw_low", "layer_raw_high"]] = bounds
    recorded = run(tables)
    assert column(top_heads([recorded]), "head") == ["encoder.1.2", "encoder.1.0", "encoder.1.1"]
    (found,) = relevance_findings(recorded)
    assert "encoder.0.1 has" not in found
    assert "-3.000 in units of the output, 58.8% of the summed magnitudes of its stack's heads" in found


def test_a_share_whose_interval_holds_0_is_not_listed() -> None:
    tables = shares([0.1, 0.6, 0.3, 0.3, 0.3, 0.4])
    own = tables["relevance"]["rule"] == "epsilon"
    tables["relevance"].loc[own, "raw"] = [0.1, 0.6, 0.3, 0.3, 0.3, 0.4]
    tables["relevance"][["ci_low", "ci_high"]] = (0.05, 0.5)
    tables["relevance"].loc[own & (tables["relevance"]["relevance"] == 0.6), ["ci_low", "ci_high"]] = (-0.34, 1.0)
    assert "encoder.0.1" not in column(top_heads([run(tables)]), "head")


def test_shares_without_an_interval_do_not_lead_those_that_have_one() -> None:
    """A layer whose heads cancel in most examples has shares of few, which may be anything."""
    rows = bounded(shares([0.2, 0.5, 0.3, 1.9, 0.3, 0.4])["relevance"], [0.3] * 6, 0.2)
    rows.loc[rows["layer"] == 1, ["ci_low", "ci_high"]] = np.nan
    assert column(top_heads([run({"relevance": rows})]), "head") == ["encoder.0.1", "encoder.0.2", "encoder.0.0"]
    none = rows.assign(ci_low=np.nan, ci_high=np.nan)
    assert column(top_heads([run({"relevance": none})]), "head")[0] == "encoder.1.0"
    assert (
        "of heads in layers that serve the target whose share is above 0 and raw significantly so ("
        in top_heads([run({"relevance": none})]).title
    )


def test_few_examples_are_said_to_be_few() -> None:
    rows = bounded(shares([0.2, 0.5, 0.3, 0.3, 0.3, 0.4])["relevance"], [0.3, 0.9, 0.3, 0.3, 0.3, 0.3], np.nan)
    (told,) = relevance_findings(run({"relevance": rows}))
    few = "in these few examples, which have no intervals and tell little of others"
    assert f"encoder.0.1 contributes most {few} (rule epsilon)" in told
    assert f"has the largest positive share {few}, of its layer's relevance" in told
    (told,) = relevance_findings(run({"relevance": bounded(rows, [0.3, 0.9, 0.3, 0.3, 0.3, 0.3], 0.1)}))
    assert few not in told


def test_no_head_is_listed_whose_contribution_contradicts_its_share() -> None:
    tables = shares([0.1, 0.6, 0.3, 0.3, -0.3, 0.4])
    own = tables["relevance"]["rule"] == "epsilon"
    tables["relevance"].loc[own, "raw"] = [-1.0, -6.0, -3.0, 0.3, 0.3, 0.4]
    assert column(top_heads([run(tables)]), "head") == ["encoder.1.2", "encoder.1.0"]
    (found,) = relevance_findings(run(tables))
    assert found.startswith("demo, encoder: encoder.0.1 contributes most, against the output (rule epsilon): -6.000")
    assert "encoder.1.2 has one of the largest positive shares" in found


def bounded(frame: pd.DataFrame, raw: list[float], half: float) -> pd.DataFrame:
    """Rows of the rule that was asked for, with these contributions, and intervals that reach so far to both sides."""
    rows = frame[frame["rule"] == "epsilon"].assign(raw=raw, raw_low=np.subtract(raw, half), raw_high=np.add(raw, half))
    return rows.assign(ci_low=rows["relevance"] - half / 10, ci_high=rows["relevance"] + half / 10)


def test_no_head_is_listed_whose_contribution_may_be_none() -> None:
    """The first has none, the second has an interval that holds 0, the fourth is below 0."""
    rows = bounded(shares([0.5, 0.4, 0.1, 0.3, 0.4, 0.3])["relevance"], [0.0, 0.1, 0.3, -0.3, 0.4, 0.5], 0.2)
    assert column(top_heads([run({"relevance": rows})]), "head") == ["encoder.1.1", "encoder.1.2", "encoder.0.2"]


@pytest.mark.parametrize(
    ("half", "words"), [(0.2, "share and raw are significantly above 0"), (np.nan, "share and raw are above 0")]
)
def test_titles_and_findings_say_whether_the_interval_of_raw_decides(half: float, words: str) -> None:
    recorded = run({"relevance": bounded(shares([0.5, 0.4, 0.1, 0.3, 0.4, 0.3])["relevance"], [0.3] * 6, half)})
    assert f"of heads in layers that serve the target whose {words} (not comparable" in top_heads([recorded]).title
    assert f"among heads in layers that serve the target whose {words}: 0.500" in relevance_findings(recorded)[0]


def test_the_most_is_said_of_heads_that_intervals_tell_apart() -> None:
    frame, raw = shares([-0.5, 0.3, 0.2, 0.62, 0.5, 0.2])["relevance"], [3.0, -4.0, 0.7, 0.8, 0.9, 1.5]
    overlap = " (in its layer, the intervals of 1 other head overlap with its own)"
    (told,) = relevance_findings(run({"relevance": bounded(frame, raw, 0.4)}))
    assert "encoder.0.1 contributes most, against the output (rule epsilon): -4.000" in told
    assert "encoder.1.0 has the largest positive share" in told
    assert overlap not in told
    (told,) = relevance_findings(run({"relevance": bounded(frame, raw, 0.65)}))
    assert "encoder.0.1 is among the heads that contribute most, against the output" in told
    assert "encoder.1.0 has one of the largest positive shares" in told
    assert told.count(overlap) == 1
    assert overlap.replace("in its layer", "in magnitude") in told, "signs do not count for what contributes most"


@pytest.mark.parametrize("values", [[0.1, 0.4, 0.5], [1.1, 0.4, -0.5], [90.0, -89.5, 0.5]])
def test_positive_shares_of_a_layer_are_added_up(values: list[float]) -> None:
    recorded = run(shares([*values, -0.2, -0.1, -0.3]))
    table = top_heads([recorded])
    total = f"{sum(max(value, 0) for value in values):.3f}"
    assert set(column(table, "its positive shares")) == {total}
    assert f"all positive shares of its layer add up to {total}." in relevance_findings(recorded)[0]
    assert "add up to more than 1" in table.about


@pytest.mark.parametrize(
    ("low", "high", "layer"),
    [(-0.1, 0.1, "its heads cancel"), (0.01, 0.1, "serves the target"), (-0.1, -0.01, "opposes the target")],
)
def test_shares_of_heads_that_cancel_or_oppose_the_target_are_not_listed(low: float, high: float, layer: str) -> None:
    tables = shares([0.9, 0.6, -0.5, 0.3, 0.3, 0.4])
    own = tables["relevance"]["rule"] == "epsilon"
    tables["relevance"].loc[own, "raw"] = [1.0, 1.0, -1.9 if low > 0 else -2.01, 0.3, 0.3, 0.4]
    frame = tables["relevance"].assign(layer_raw_low=0.1, layer_raw_high=2.0)
    frame.loc[frame["layer"] == 0, ["layer_raw_low", "layer_raw_high"]] = (low, high)
    recorded = run({"relevance": frame})
    assert column(largest_heads_table([recorded]), "its layer")[0] == layer
    expected = ["encoder.0.0", "encoder.0.1"] * (low > 0) + ["encoder.1.2", "encoder.1.0", "encoder.1.1"]
    assert column(top_heads([recorded]), "head") == expected
    assert ("encoder.0.0 has" in relevance_findings(recorded)[0]) == (low > 0)


def test_heads_and_the_remainder_are_said_to_add_up_to_the_target() -> None:
    frame = relevance_tables(rules=("logit-attribution", "epsilon"))["relevance"]
    direct = frame["rule"] == "logit-attribution"
    frame.loc[direct, "raw"] = [1.0, 2.0, -0.5, 0.25, 0.25, 0.0]
    assert len(relevance_findings(run({"relevance": frame}))) == 1
    frame.loc[direct, ["remainder", "remainder_low", "remainder_high"]] = [4.0, 3.5, 4.5]
    assert relevance_findings(run({"relevance": frame}))[1:] == [
        "The target is 7.000 on average. All heads together give 3.000 of it themselves; the remainder, 4.000 [3.500, "
        "4.500], is what all else gives: MLPs, embeddings, biases and, where there is one, the activation function "
        "behind the last layer."
    ]


def test_that_all_outputs_are_the_same_is_told_first() -> None:
    recorded = run(relevance_tables())
    record = {**recorded.record, "notes": ["Another note.", same_output(1234)]}
    found = relevance_findings(replace(recorded, record=record))
    assert "the same output for every example (all 1,234 are identical" in found[0]
    assert found[1:] == relevance_findings(recorded)


def test_heads_stand_in_the_order_of_their_size_across_layers() -> None:
    tables = shares([0.5, 0.3, 0.2, 0.9, 0.05, 0.05])
    own = tables["relevance"]["rule"] == "epsilon"
    tables["relevance"].loc[own, "raw"] = [3.0, -5.0, np.nan, 0.5, 0.0, 1.5]
    table = largest_heads_table([run(tables)])
    heads = ["encoder.0.1", "encoder.0.0", "encoder.1.2", "encoder.1.0"]  # none that gives nothing
    assert column(table, "head") == heads
    assert column(table, "raw") == ["-5.000", "3.000", "1.500", "0.500"]
    assert column(table, "magnitude of its stack") == ["50.0%", "30.0%", "15.0%", "5.0%"]
    assert column(table, "share of its layer")[3] == "0.900 [0.800, 1.000]"
    assert "95 % CI" not in {own.name for own in table.columns}  # runs of before have none
    bounded = {"relevance": tables["relevance"].assign(raw_low=-6.0, raw_high=4.0)}
    assert column(largest_heads_table([run(bounded)]), "95 % CI") == ["-6.000 to 4.000"] * 4


def test_at_most_ten_heads_of_every_model_and_stack() -> None:
    frames = [relevance_tables(model)["relevance"] for model in ("one", "two")]
    many = [f.assign(layer=f["layer"] + 2 * n) for f in frames for n in range(3)]
    many = [f.assign(ci_low=np.nan) for f in [*many, frames[0].assign(stack="cross")]]
    table = top_heads([run({"relevance": pd.concat(many)})])
    assert column(table, "model") == ["one"] * 16 + ["two"] * 10
    assert [name.split(".")[0] for name in column(table, "head")] == ["encoder"] * 10 + ["cross"] * 6 + ["encoder"] * 10


def test_an_outlier_has_numbers_but_no_picture() -> None:
    table = top_heads([run(shares([0.1, 90.0, 0.1, 0.2, 0.3, 0.25]))])
    assert column(table, "relevance")[0] == "90.000"
    assert intervals(table)[0] is None
    assert all(shown is not None and all(0 <= place <= 1 for place in shown) for shown in intervals(table)[1:])


def test_runs_stand_below_each_other() -> None:
    runs = [run(relevance_tables("one"), "first"), run({}, "second"), run(relevance_tables("two"), "third")]
    assert list(dict.fromkeys(column(top_heads(runs), "run"))) == ["first", "third"]
    assert column(rule_agreement_table(runs), "run") == ["first", "third"]


def test_rules_and_what_they_agree_in() -> None:
    tables = relevance_tables()
    tables["correlations"] = tables["correlations"].assign(other_rule="gradxact")
    table = rule_agreement_table([run(tables)])
    names = ["model", "stack", "rule", "other rule", "of", "over", "heads", "Spearman", "95 % CI over examples"]
    assert [c.name for c in table.columns] == names
    first, second = ([cell.text for cell in row] for row in table.rows)
    both = ["epsilon", "gradxact"]
    assert first == ["demo", "encoder", *both, "relevance", SHARES, "6", "0.500", "0.250 to 0.750"]
    assert second == ["demo", "all", *both, "its magnitude", "within layers", "6", "-0.250", ""]
    assert intervals(table) == [pytest.approx((0.625, 0.75, 0.875, 0.5)), None]


@pytest.mark.parametrize("rule", ["taylor", "alpha-beta"])
def test_a_rule_without_signs_is_compared_by_magnitudes_alone(rule: str) -> None:
    tables = relevance_tables()
    tables["correlations"] = tables["correlations"].replace("taylor", rule)
    (row,) = rule_agreement_table([run(tables)]).rows
    assert [cell.text for cell in row][2:5] == ["epsilon", rule, "its magnitude"]


@pytest.mark.parametrize(("rule", "raw"), [("taylor", 1.0), ("alpha-beta", 1.0), ("alpha-beta", -1.0)])
def test_a_rule_without_signs_says_nothing_of_serving_the_target(rule: str, raw: float) -> None:
    """Under alpha-beta all heads were said to serve a target above 0, which the rule does by construction."""
    tables = {"relevance": relevance_tables(rules=(rule,))["relevance"].assign(raw=raw)}
    assert column(top_heads([run(tables)]), "head")
    assert set(column(largest_heads_table([run(tables)]), "its layer")) == {"magnitudes, no sign"}
    (found,) = relevance_findings(run(tables))
    assert f"contributes most in magnitude (rule {rule})" in found
    assert "against" not in found
    contribution, _ = relevance_series(tables["relevance"])
    assert "magnitudes, which have no sign" in contribution.about
    assert layer_words(tables["relevance"]) == []
    # Numbers below 0 have colours of their own.
    scale = relevance_scale("raw", tables["relevance"], "raw", tables["relevance"])
    assert (scale.low < 0) == (raw < 0)


def test_over_all_heads_raw_stands_in_place_of_shares() -> None:
    rows = [("relevance", "heads"), ("relevance", "layers"), ("raw", "heads"), ("raw magnitude", "heads")]
    known = relevance_tables()["correlations"].iloc[:1].assign(other_rule="gradxact")
    frame = pd.concat([known.assign(of=of, scope=scope, spearman=n / 8) for n, (of, scope) in enumerate(rows)])
    for kept, expected in (
        (frame, [("relevance", "within layers"), ("raw", "all heads"), ("magnitude of raw", "all heads")]),
        (frame[:2], [("relevance", SHARES), ("relevance", "within layers")]),
        (frame[2:3], [("raw", "all heads")]),
    ):
        table = rule_agreement_table([run({"correlations": kept})])
        assert list(zip(column(table, "of"), column(table, "over"), strict=True)) == expected


@pytest.mark.parametrize("tables", [{}, {"relevance": relevance_tables()["relevance"].iloc[:0]}])
def test_nothing_to_tell(tables: dict[str, pd.DataFrame]) -> None:
    for table in (top_heads, largest_heads_table, rule_agreement_table):
        assert table([run(tables)]).rows == ()


def test_no_head_has_a_share() -> None:
    frame = relevance_tables()["relevance"].assign(relevance=np.nan, ci_low=np.nan, ci_high=np.nan)
    assert top_heads([run({"relevance": frame})]).rows == ()
