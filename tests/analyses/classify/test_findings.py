"""What a classification says in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.classify.findings import classify_findings

HEAD = {"model": "m", "stack": "encoder", "layer": 0, "to_first": 0.1, "to_sep": 0.1, "to_eos": np.nan}
HEAD |= {"to_punct": 0.1, "positional_offset": -1.0, "role": "", "roles": "", "nearest": "broad", "nearest_score": 0.5}


def heads(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([HEAD | {"head": number} | row for number, row in enumerate(rows)])


def held(role: str, score: float = 1.1, **more: Any) -> dict[str, Any]:
    return {"role": role, "roles": role, "nearest": role, "nearest_score": score, **more}


def syntax(*rows: dict[str, Any]) -> pd.DataFrame:
    usual = {"model": "m", "stack": "encoder", "layer": 0, "head": 1, "relation": "obj", "direction": "head->dep"}
    usual |= {"n": 318, "accuracy": 0.68, "ci_low": 0.62, "ci_high": 0.73, "baseline": 0.47}
    return pd.DataFrame([usual | {"syntactic": True, "significant": True} | row for row in rows])


def test_heads_that_rest() -> None:
    (said,) = classify_findings(
        {
            "heads": heads(
                held("sink", to_first=0.6), held("sink", to_first=0.8), held("separator", to_eos=0.7), {"roles": ""}
            )
        }
    )
    assert said == (
        "m, encoder: 2 of 4 heads attend mainly to the first token (70% of their weight), "
        "1 attends mainly to the separator or end-of-sentence token (70% of its weight)."
    )


def test_a_head_may_rest_and_do_something_else() -> None:
    row = held("positional(-1)", positional_share=0.95, to_first=0.6) | {"roles": "positional(-1); sink"}
    rests, does = classify_findings({"heads": heads(row)})
    assert rests == "m, encoder: 1 of 1 head attends mainly to the first token (60% of its weight)."
    assert does == "m, encoder: encoder.0.0 attends most to the previous token for 95% of the tokens."


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "finds the object of a verb (obj head->dep)"),
        ({"direction": "dep->head"}, "finds the verb of an object (obj dep->head)"),
        ({"relation": "amod"}, "finds the adjective of a noun (amod head->dep)"),
        ({"relation": "nsubj:outer"}, "finds the subject of a verb (nsubj:outer head->dep)"),
        ({"relation": "nk", "direction": "dep->head"}, "finds the head of a dependent (nk dep->head)"),
    ],
)
def test_the_best_relation(row: dict[str, Any], said: str) -> None:
    tables = {"heads": heads(held("syntactic(obj head->dep)"), {}), "syntax": syntax(row)}
    assert classify_findings(tables) == [
        f"m, encoder: encoder.0.1 {said} in 68% [62%, 73%] of 318 cases; a fixed offset does so in 47%."
    ]


def test_the_others_that_follow_relations_are_counted() -> None:
    rows = syntax({}, {"head": 0, "accuracy": 0.6}, {"head": 0, "relation": "amod"}, {"head": 2, "significant": False})
    (said,) = classify_findings({"heads": heads(held("syntactic(obj head->dep)")), "syntax": rows})
    assert said.endswith("a fixed offset does so in 47%. 1 other head also follows a relation.")


def test_no_relation_is_followed() -> None:
    (said, _) = classify_findings({"heads": heads(held("sink")), "syntax": syntax({"significant": False})})[::-1]
    assert said == (
        "m, encoder: no head beats the fixed-offset baseline of any relation significantly and by the required margin."
    )


def test_the_role_farthest_above_its_threshold() -> None:
    same = {"same_word": 0.73, "same_word_ci_low": 0.7, "same_word_ci_high": 0.76, "repeated_words": 1812.0}
    rows = heads(held("broad", 1.05, entropy_norm=0.95), held("same word", 1.46, same_word_chance=0.06, **same))
    assert classify_findings({"heads": rows}) == [
        "m, encoder: encoder.0.1 finds another occurrence of a repeated word in 73% [70%, 76%] of 1,812 cases, "
        "chance level 6%."
    ]


@pytest.mark.parametrize(("broad", "named"), [(17, True), (18, False), (19, False)])
def test_no_head_is_named_as_broad_where_nearly_all_are(broad: int, named: bool) -> None:
    even = [held("broad", 1 + number / 100, entropy_norm=0.92, entropy_norm_null=1.0) for number in range(broad - 2)]
    rows = [
        {"entropy_norm": 0.994},
        *even,
        held("broad", 1.2, entropy_norm=0.97, entropy_norm_null=1.0),
        *[{}] * (20 - broad),
    ]
    (said,) = classify_findings({"heads": heads(*rows)})
    alone = f"encoder.0.{broad - 1} spreads its attention, with 97% of the maximum entropy; uniform attention: 100%."
    all_of = "spread their attention nearly evenly (92% to 99% of the maximum entropy; uniform attention: 100%)."
    assert said == f"m, encoder: {alone if named else f'{broad} of 20 heads {all_of}'}"
    better = held("positional(-1)", 1.1, positional_share=0.99)
    *_, last = classify_findings({"heads": heads(*rows[:19], better)})
    assert ("previous token" in last) != named


def test_without_any_role() -> None:
    assert classify_findings({"heads": heads({}, {})}) == ["m, encoder: none of 2 heads has a role on this text."]
    assert classify_findings({"heads": heads({})}, ["m"]) == [
        "m, encoder: no head is given a role because too little text was read; the notes say how much."
    ]
    assert classify_findings({}) == []


def test_how_little_is_read_where_heads_rest() -> None:
    rows = heads(held("sink", to_first=0.6, norm_to_first=0.05), held("sink", to_first=0.8, norm_to_first=0.15))
    (said,) = classify_findings({"heads": rows})
    assert said == (
        "m, encoder: 2 of 2 heads attend mainly to the first token (70% of their weight, 10% of the norms of the "
        "weighted values)."
    )


def test_a_head_that_finds_antecedents() -> None:
    found = {"coreference": 0.51, "mentions": 1450.0, "coreference_nearest": 0.38, "coreference_same_word": 0.34}
    assert classify_findings({"heads": heads(held("coreference", **found))}) == [
        "m, encoder: encoder.0.0 finds an antecedent for 51% of 1,450 mentions, choosing the nearest "
        "mention: 38%, choosing the same word: 34%."
    ]


@pytest.mark.parametrize(
    ("direction", "said"),
    [
        ("first->second", "gives 70% [60%, 80%] of the weight of tokens in the first text to the second text"),
        ("second->first", "gives 75% of the weight of tokens in the second text to the first text"),
    ],
)
def test_a_head_that_maps_texts(direction: str, said: str) -> None:
    ends = {"first_to_second_ci_low": 0.6, "first_to_second_ci_high": 0.8}
    row = held(f"pair({direction})", first_to_second=0.7, second_to_first=0.75, **ends)
    assert classify_findings({"heads": heads(row)}) == [f"m, encoder: encoder.0.0 {said}."]
