"""What a head needs beside a threshold: an interval above the null head; what is said of heads that are all alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.classify.findings import classify_findings
from headlens.heads import Head, HeadTable
from headlens.roles.even_attention import even_sentence, is_even, uniform_heads
from headlens.roles.role_agreement import agreement_notes, role_agreement
from headlens.roles.role_options import Thresholds
from headlens.roles.role_rules import label, mark_syntactic, null_notes, role_scores
from headlens.roles.syntax_verdicts import explained_verdicts, verdicts


def table(n: int = 1, **columns: float) -> HeadTable:
    usual = {"tokens": 2000.0, "entropy_norm": 0.5, "to_first": 0.1, "positional_offset": -1.0}
    heads = [Head("encoder", 0, number) for number in range(n)]
    return HeadTable.from_columns(heads, **{name: [value] * n for name, value in (usual | columns).items()})


def roles(**columns: float) -> str:
    return str(label(table(**columns), None, Thresholds()).rows["roles"].iloc[0])


@pytest.mark.parametrize(
    ("column", "value", "low", "role"),
    [
        ("rare_top1", 0.64, 0.6, "rare"),
        ("same_word", 0.7, 0.6, "same word"),
        ("positional_share", 0.95, 0.93, "positional(-1)"),
        ("first_to_second", 0.8, 0.7, "pair(first->second)"),
        ("coreference", 0.6, 0.5, "coreference"),
    ],
)
def test_the_interval_has_to_be_above_the_null_head(column: str, value: float, low: float, role: str) -> None:
    known = {column: value, f"{column}_ci_low": low, "coreference_nearest": 0.1, "coreference_same_word": 0.1}
    assert roles(**known) == role  # as in runs of earlier versions
    assert roles(**known, **{f"{column}_null": low - 0.01}) == role
    assert roles(**known, **{f"{column}_null": low}) == ""
    assert roles(**known, **{f"{column}_null": value}) == ""


@pytest.mark.parametrize("column", ["to_first", "to_sep", "to_punct", "to_prev"])
def test_a_share_without_an_interval_has_to_be_above_it_itself(column: str) -> None:
    assert roles(**{column: 0.6, f"{column}_null": 0.5}) != ""
    assert roles(**{column: 0.6, f"{column}_null": 0.6}) == ""


def test_an_even_head_is_not_broad_and_one_of_equal_weights_holds_no_role() -> None:
    assert roles(entropy_norm=0.95, entropy_norm_null=1.0) == "broad"
    assert roles(entropy_norm=0.99, entropy_norm_null=1.0) == ""
    assert roles(entropy_norm=0.995, to_first=0.6) == "sink"
    assert roles(entropy_norm=1.0, to_first=0.6) == ""


def test_between_words_a_head_is_even_by_what_uniform_attention_has() -> None:
    assert roles(entropy_norm=0.95, entropy_norm_null=0.95) == ""
    assert roles(entropy_norm=0.945, entropy_norm_null=0.95) == ""
    assert roles(entropy_norm=0.93, entropy_norm_null=0.95) == "broad"
    rows = heads_of([0.945] * 40).assign(entropy_norm_null=0.95)
    assert is_even(rows)
    assert even_sentence(rows).startswith(
        "all 40 heads spread their attention evenly (entropy ≥ 99 % of that of uniform attention): what they"
    )


def test_heads_that_attend_uniformly_are_named() -> None:
    """Between words uniform attention has less than the largest entropy, and another head may have more than it."""
    heads = table(3).rows.assign(entropy_norm=[0.97, 0.971, 0.5], entropy_norm_null=0.97, rare_top1=0.9)
    assert uniform_heads(heads).tolist() == [True, False, False]
    assert uniform_heads(heads.assign(entropy_norm=1 + 1e-8, entropy_norm_null=1.0)).tolist() == [True] * 3
    assert uniform_heads(heads.drop(columns="entropy_norm_null")).tolist() == [False] * 3
    rows = label(HeadTable(heads), None, Thresholds()).rows
    assert rows["roles"].tolist() == ["", "rare", "rare"]
    (note,) = null_notes(rows, role_scores(HeadTable(heads), None, Thresholds()))
    assert note.startswith("1 head attends uniformly (encoder.0.0): all tokens tie")
    assert null_notes(rows[2:], role_scores(HeadTable(heads[2:]), None, Thresholds())) == []


@pytest.mark.parametrize("column", ["to_first", "rare_top1", "positional_share"])
def test_no_role_is_near_to_a_head_that_attends_evenly(column: str) -> None:
    assert nearest(entropy_norm=0.989, **{column: 0.45})[0] == "broad"
    assert nearest(entropy_norm=0.99, **{column: 0.45}) == ("", pytest.approx(math.nan, nan_ok=True))


def trees(null: float, stack: str = "encoder", **numbers: float) -> HeadTable:
    row = {"stack": stack, "layer": 0, "head": 0, "relation": "nsubj", "direction": "dep->head", "n": 100}
    row |= {"baseline_offset": -1}
    numbers = {
        "accuracy": 0.6,
        "ci_low": 0.5,
        "ci_high": 0.7,
        "baseline": 0.2,
        "p_value": 0.0,
        "p_holm": 0.0,
        **numbers,
    }
    return mark_syntactic(HeadTable(pd.DataFrame([row | numbers | {"accuracy_null": null}])), Thresholds())


@pytest.mark.parametrize(
    ("null", "held", "verdict"), [(0.49, True, "yes"), (0.5, False, "no (uniform)"), (math.nan, True, "yes")]
)
def test_a_syntactic_head_is_above_the_null_head_too(null: float, held: bool, verdict: str) -> None:
    syntax = trees(null)
    assert list(syntax.rows)[-3:] == ["accuracy_null", "needed", "verdict"]
    row = label(table(), syntax, Thresholds()).rows.iloc[0]
    assert (row["roles"] == "syntactic(nsubj dep->head)") == held
    assert verdicts(syntax.rows, 30) == [verdict] == list(syntax.rows["verdict"])
    told = classify_findings({"syntax": syntax.rows.assign(model="m")})[0]
    assert ("finds the verb" in told) == held


@pytest.mark.parametrize(
    ("stack", "numbers", "verdict"),
    [
        ("encoder", {"n": 29}, "too few"),
        ("encoder", {"accuracy": 0.29}, "no"),
        ("encoder", {"p_holm": 0.06}, "no (n.s.)"),
        ("encoder", {"baseline": 0.91}, "no (ceiling)"),
        ("encoder", {"baseline": 0.9, "accuracy": 1.0}, "yes"),
        ("decoder", {"baseline_offset": 1, "baseline": 0.62, "accuracy": 0.0}, "no (later)"),
        ("decoder", {"baseline_offset": 2, "accuracy": 0.4}, "yes"),
        ("decoder", {"baseline_offset": -2, "accuracy": 0.2}, "no"),
        ("encoder", {"baseline_offset": 1, "accuracy": 0.2}, "no"),
    ],
)
def test_why_a_head_does_not_follow_a_relation(stack: str, numbers: dict[str, float], verdict: str) -> None:
    rows = trees(0.1, stack, **numbers).rows
    assert list(rows["verdict"]) == [verdict]
    assert rows["needed"].item() == pytest.approx(rows["baseline"].item() + 0.1)


def test_verdicts_that_are_no_plain_words_are_explained_where_they_occur() -> None:
    (told,) = explained_verdicts(["no", "no (later)", "yes", "no (later)"])
    assert told == "no (later): the other word mostly stands to the right, where a causal head cannot look."
    assert explained_verdicts(["yes", "no"]) == []


def nearest(syntax: HeadTable | None = None, **columns: float) -> tuple[str, float]:
    row = label(table(**columns), syntax, Thresholds()).rows.iloc[0]
    return str(row["nearest"]), float(row["nearest_score"])


@pytest.mark.parametrize(
    ("column", "value", "role", "score"),
    [
        ("rare_top1", 0.4, "rare", 0.8),
        ("same_word", 0.4, "same word", 0.8),
        ("positional_share", 0.81, "positional(-1)", 0.9),
    ],
)
def test_no_role_is_near_to_a_head_that_is_not_above_the_null_head(
    column: str, value: float, role: str, score: float
) -> None:
    """Else the head has 0.5 of 0.9 of an even head's entropy."""
    assert nearest(**{column: value}) == (role, pytest.approx(score))  # as in runs of earlier versions
    assert nearest(**{column: value, f"{column}_null": value - 0.01}) == (role, pytest.approx(score))
    assert nearest(**{column: value, f"{column}_null": value}) == ("broad", pytest.approx(0.5 / 0.9))
    assert nearest(**{column: value, f"{column}_null": value + 0.1, "entropy_norm": math.nan}) == (
        "sink",
        pytest.approx(0.2),
    )
    only = {column: value, f"{column}_null": value, "entropy_norm": math.nan, "to_first": math.nan}
    assert nearest(**only) == ("", pytest.approx(math.nan, nan_ok=True))


@pytest.mark.parametrize(("null", "role"), [(0.26, "syntactic(nsubj dep->head)"), (0.28, "broad")])
def test_no_relation_is_near_that_uniform_attention_finds_as_often(null: float, role: str) -> None:
    short = trees(null)
    short.rows[["accuracy", "syntactic", "significant"]] = [0.28, False, False]
    assert nearest(short)[0] == role


def test_roles_csv_says_what_the_threshold_alone_would_give() -> None:
    heads = table(2, rare_top1=0.64, rare_top1_ci_low=0.6, rare_top1_null=0.63, rare_words=500.0)
    scores = role_scores(heads, None, Thresholds())
    rare = scores.set_index("role").loc["rare"]
    assert rare[["held", "above_threshold", "null", "needed"]].tolist() == [0, 2, 0.63, 0.5]
    (note,) = null_notes(label(heads, None, Thresholds()).rows, scores)
    assert "rare (0.63, threshold 0.50; 2 of 2 heads pass that and 0 hold the role)" in note


def heads_of(entropies: list[float], **columns: Any) -> pd.DataFrame:
    rows = pd.DataFrame({"model": "m", "stack": "encoder", "layer": 0, "head": range(len(entropies))})
    return rows.assign(entropy_norm=entropies, **{"role": "", "roles": "", **columns})


@pytest.mark.parametrize(
    ("entropies", "told"),
    [
        ([1.0] * 40, "all 40 heads spread their attention evenly (entropy ≥ 99 %): what they have learned, if any"),
        ([0.995] * 38 + [0.4] * 2, "38 of 40 heads spread their attention evenly (entropy ≥ 99 %): what they have"),
        ([0.99], "the only head spreads its attention evenly (entropy ≥ 99 %): what it has learned, if anything"),
        ([0.995] * 8 + [0.4] * 2, ""),
        ([math.nan] * 4, ""),
        ([], ""),
    ],
)
def test_heads_that_all_attend_evenly_are_told_of_first(entropies: list[float], told: str) -> None:
    rows = heads_of(entropies)
    assert is_even(rows) == bool(told)
    if told:
        (sentence,) = classify_findings({"heads": rows})
        assert sentence.startswith(f"m, encoder: {told}")


@pytest.mark.parametrize(
    ("even", "roled", "told"),
    [(8, 0, "none of them has a role"), (6, 1, "1 of them has a role"), (2, 2, "2 of them have a role"), (0, 1, None)],
)
def test_some_even_heads_among_others_are_told_of(even: int, roled: int, told: str | None) -> None:
    roles_of = ["sink"] * roled + [""] * (9 - roled) + ["sink"]
    rows = heads_of([0.995] * even + [0.4] * (10 - even), roles=roles_of).assign(model="m", role=roles_of)
    found = " ".join(classify_findings({"heads": rows}))
    assert ("evenly" in found) == bool(told)
    if told:
        start = f"m, encoder: {even} of 10 heads spread their attention evenly (entropy ≥ 99 %); {told}."
        assert found.startswith(start)


def test_even_heads_that_hold_a_role_have_learned_something() -> None:
    """In 512 tokens a head may give the previous one 13 times the weight of others, with an entropy of 99 %."""
    sentence = even_sentence(heads_of([0.995] * 3, roles=["positional(-1)", "", ""]))
    assert sentence == "all 3 heads spread their attention evenly (entropy ≥ 99 %); 1 head has a role, see heads.csv."


def test_models_without_roles_do_not_agree_on_them() -> None:
    both = pd.concat([heads_of([1.0] * 4), heads_of([1.0] * 4).assign(model="other")])
    found = role_agreement(both)
    assert found[["heads", "same", "with_role"]].to_numpy().tolist() == [[4, 4, 0]]
    assert agreement_notes(found) == ["m and other: no head has a role in either of them."]
    assert np.isnan(found["kappa"]).all()
