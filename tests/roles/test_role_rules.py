"""When a head gets which role, and which of its roles comes first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.classify.overviews import family_counts
from headlens.errors import OptionError
from headlens.heads import Head, HeadTable
from headlens.roles.role_options import Thresholds
from headlens.roles.role_rules import count_families, label, mark_syntactic, role_family, role_scores, too_little_notes

NOTHING = {
    "positional_offset": -1.0,
    "positional_share": 0.2,
    "self_share": 0.1,
    "rare_top1": 0.1,
    "to_sep": 0.1,
    "to_eos": math.nan,
    "entropy_norm": 0.3,
    "to_first": 0.1,
    "to_punct": 0.1,
    "to_prev": 0.1,
    "to_next": 0.1,
    "same_word": 0.1,
}
ABOVE, BELOW = 1 + 1e-9, 1 - 1e-9


def heads(**columns: float) -> HeadTable:
    return HeadTable.from_columns([Head("encoder", 0, 0)], **{k: [v] for k, v in (NOTHING | columns).items()})


def roles(syntax: HeadTable | None = None, thresholds: Thresholds | None = None, **columns: float) -> str:
    row = label(heads(**columns), syntax, thresholds or Thresholds()).rows.iloc[0]
    assert row["role"] == row["roles"].split("; ")[0]
    return str(row["roles"])


def syntax(*rows: dict[str, Any], thresholds: Thresholds | None = None) -> HeadTable:
    usual = {"stack": "encoder", "layer": 0, "head": 0, "relation": "nsubj", "direction": "dep->head"}
    usual |= {"n": 30, "accuracy": 0.5, "baseline": 0.3, "p_holm": 0.01}
    return mark_syntactic(HeadTable(pd.DataFrame([usual | r for r in rows])), thresholds or Thresholds())


def test_no_role() -> None:
    assert roles() == ""


# A share just below, at and just above its threshold; "more than half" for rare words, "at least" for the others.
@pytest.mark.parametrize(
    ("columns", "threshold", "expected", "at"),
    [
        ("positional_share", 0.9, "positional(-1)", True),
        ("self_share", 0.9, "self", True),
        ("rare_top1", 0.5, "rare", False),
        ("to_sep", 0.5, "separator", True),
        ("to_eos", 0.5, "separator", True),
        ("entropy_norm", 0.9, "broad", True),
        ("to_first", 0.5, "sink", True),
        ("to_punct", 0.5, "punctuation", True),
        ("to_prev", 0.5, "previous", True),
        ("to_next", 0.5, "next", True),
        ("same_word", 0.5, "same word", True),
    ],
)
def test_thresholds(columns: str, threshold: float, expected: str, at: bool) -> None:
    assert roles(**{columns: threshold * BELOW}) == ""
    assert roles(**{columns: threshold}) == (expected if at else "")
    assert roles(**{columns: threshold * ABOVE}) == expected


@pytest.mark.parametrize("n", [10, 20, 30, 70, 110])
def test_nine_of_ten_is_enough_for_every_length(n: int) -> None:
    assert roles(positional_share=n * 9 // 10 / n) == "positional(-1)"


def test_thresholds_are_options() -> None:
    low = Thresholds(
        positional=0.2, diagonal=0.1, rare=0.09, separator=0.1, broad=0.3, sink=0.1, punctuation=0.1, neighbour=0.1,
        same_word=0.1,
    )  # fmt: skip
    found = set(roles(thresholds=low).split("; "))
    others = {"sink", "punctuation", "previous", "next", "same word"}
    assert found == {"positional(-1)", "self", "rare", "separator", "broad"} | others


def test_as_often_as_at_random_is_no_same_word() -> None:
    assert roles(same_word=0.6, same_word_chance=0.6) == ""
    assert roles(same_word=0.6, same_word_chance=0.59) == "same word"


@pytest.mark.parametrize("column", ["repeated_words", "rare_words", "tokens"])
def test_too_few_instances_give_no_role_but_a_nearest_one(column: str) -> None:
    values = {"same_word": 0.9, "rare_top1": 0.85, column: 29.0}
    held = {"repeated_words": "rare", "rare_words": "same word", "tokens": ""}
    assert roles(**values) == held[column]
    assert nearest(**values)[0] == (held[column] or "same word")


def nearest(syntax: HeadTable | None = None, **columns: float) -> tuple[str, float]:
    row = label(heads(**columns), syntax, Thresholds()).rows.iloc[0]
    return str(row["nearest"]), float(row["nearest_score"])


def test_the_nearest_role_of_a_head_that_holds_none() -> None:
    assert nearest() == ("broad", pytest.approx(0.3 / 0.9))
    assert nearest(to_first=0.4) == ("sink", pytest.approx(0.8))
    # 0.09 of the margin of 0.10 above the baseline
    assert nearest(syntax({"accuracy": 0.39}), to_first=0.4) == ("syntactic(nsubj dep->head)", pytest.approx(0.9))
    assert nearest(syntax({"accuracy": 0.39, "n": 29}), to_first=0.4)[0] == "sink"


def test_as_good_as_a_fixed_offset_is_near_to_no_relation() -> None:
    """However often the offset is right: 0.85 of 0.95 would be nearer than 0.4 of 0.5."""
    table = syntax({"accuracy": 0.85, "baseline": 0.85}, {"relation": "obj", "accuracy": 0.6, "baseline": 0.85})
    assert nearest(table, to_first=0.4) == ("sink", pytest.approx(0.8))
    shares = {"coreference": 0.7, "coreference_nearest": 0.65, "coreference_same_word": 0.2, "mentions": 50.0}
    assert nearest(**shares) == ("coreference", pytest.approx(0.5))
    assert nearest(**shares, to_first=0.3)[0] == "sink"


@pytest.mark.parametrize(("p_value", "expected"), [(0.049, "syntactic(nsubj dep->head)"), (0.05, "sink")])
def test_no_relation_is_near_that_an_offset_finds_about_as_well_by_chance(p_value: float, expected: str) -> None:
    table = syntax({"accuracy": 0.39, "p_value": p_value, "p_holm": 1.0})
    assert nearest(table, to_first=0.4)[0] == expected


def test_the_nearest_role_of_a_head_that_holds_some_is_the_strongest() -> None:
    # Twice its threshold, but less of what is possible than 0.99 of 1 is above 0.9.
    assert nearest(positional_share=0.99, to_prev=0.9) == ("positional(-1)", pytest.approx(1.1))


def test_nothing_measured_is_near_to_nothing() -> None:
    name, score = nearest(**dict.fromkeys(NOTHING, math.nan))
    assert name == ""
    assert math.isnan(score)


@pytest.mark.parametrize(
    ("offset", "expected"), [(-1.0, "positional(-1)"), (1.0, "positional(+1)"), (-8.0, "positional(-8)")]
)
def test_positional_names_its_offset(offset: float, expected: str) -> None:
    assert roles(positional_share=1.0, positional_offset=offset) == expected


def test_separator_is_the_larger_of_two_kinds() -> None:
    assert roles(to_sep=0.3, to_eos=0.6) == "separator"
    # a token that is both (RoBERTa's </s>) is not counted twice
    assert roles(to_sep=0.3, to_eos=0.3) == ""


@pytest.mark.parametrize("column", list(NOTHING))
def test_empty_cells_give_no_role(column: str) -> None:
    assert roles(**{column: math.nan}) == ""


def test_missing_columns_give_no_role() -> None:
    table = HeadTable.from_columns([Head("cross", 0, 0)], confidence=[1.0])
    assert label(table, None, Thresholds()).rows["roles"].tolist() == [""]


@pytest.mark.parametrize(
    ("accuracy", "baseline", "kind", "expected"),
    [
        (0.4, 0.3, "absolute", True),
        (0.4 * BELOW, 0.3, "absolute", False),
        (0.4 * ABOVE, 0.3, "absolute", True),
        (0.3, 0.2, "absolute", True),  # 0.2 + 0.1 is a little more than 0.3 in floating point
        (0.33, 0.3, "relative", True),
        (0.33 * BELOW, 0.3, "relative", False),
        (1.0, 0.95, "absolute", False),
        (1.0, 0.9, "relative", True),
        (0.0, 0.0, "relative", True),
    ],
)
def test_margin(accuracy: float, baseline: float, kind: Any, expected: bool) -> None:
    thresholds = Thresholds(margin_kind=kind)
    table = syntax({"accuracy": accuracy, "baseline": baseline}, thresholds=thresholds)
    assert table.rows["syntactic"].tolist() == [expected]
    assert roles(table, thresholds) == ("syntactic(nsubj dep->head)" if expected else "")


def test_margin_is_an_option() -> None:
    rows = {"accuracy": 0.5, "baseline": 0.3}
    found = [bool(syntax(rows, thresholds=Thresholds(margin=m)).rows["syntactic"][0]) for m in (0.0, 0.2, 0.21)]
    assert found == [True, True, False]


@pytest.mark.parametrize(("n", "least", "expected"), [(29, 30, False), (30, 30, True), (31, 30, True), (5, 5, True)])
def test_min_instances(n: int, least: int, expected: bool) -> None:
    table = syntax({"n": n}, thresholds=Thresholds(min_instances=least))
    assert table.rows["syntactic"].tolist() == [expected]


@pytest.mark.parametrize(
    ("p_holm", "accuracy", "expected"),
    [(0.049, 0.5, True), (0.05, 0.5, False), (math.nan, 0.5, False), (0.001, 0.35, False)],
)
def test_significant_asks_for_both(p_holm: float, accuracy: float, expected: bool) -> None:
    assert syntax({"p_holm": p_holm, "accuracy": accuracy}).rows["significant"].tolist() == [expected]


def test_a_relation_that_never_occurs_gives_no_role() -> None:
    empty = {"n": 0, "accuracy": math.nan, "baseline": math.nan, "p_holm": math.nan}
    table = syntax(empty, thresholds=Thresholds(min_instances=0))
    assert table.rows[["syntactic", "significant"]].to_numpy().tolist() == [[False, False]]


def test_above_the_margin_without_significance_is_the_nearest_role_and_none_that_is_held() -> None:
    """Of all relations some are above the margin by chance."""
    table = syntax({"p_holm": 0.9})
    assert table.rows["syntactic"].tolist() == [True]
    assert roles(table) == ""
    assert nearest(table) == ("syntactic(nsubj dep->head)", pytest.approx(0.2 / 0.1))


def test_several_relations() -> None:
    table = syntax(
        {"direction": "head->dep", "accuracy": 0.6},
        {"relation": "amod", "accuracy": 0.9, "baseline": 0.7},
        {"relation": "obj", "accuracy": 0.35},
        {"head": 1, "accuracy": 0.99},
    )
    assert roles(table) == "syntactic(amod dep->head); syntactic(nsubj head->dep)"


def test_strongest_role_first() -> None:
    """By the share of the room above the threshold: (0.95 - 0.9) / 0.1 = 0.5, (0.7 - 0.5) / 0.5 = 0.4."""
    both = {"positional_share": 0.95, "rare_top1": 0.7}
    assert roles(**both) == "positional(-1); rare"
    assert roles(**both | {"rare_top1": 0.8}) == "rare; positional(-1)"
    # (0.76 - 0.4) / 0.6 = 0.6
    assert roles(syntax({"accuracy": 0.76}), **both).startswith("syntactic(nsubj dep->head); positional(-1)")
    # (0.64 - 0.4) / 0.6 = 0.4 < 0.5
    assert roles(syntax({"accuracy": 0.64 * BELOW}), **both).split("; ")[0] == "positional(-1)"


def test_relative_margins_are_scaled_by_their_own_threshold() -> None:
    # baseline 0.5 needs 0.55 relatively and 0.6 absolutely: (0.8 - 0.55) / 0.45 = 0.56, (0.8 - 0.6) / 0.4 = 0.5
    row = {"accuracy": 0.8, "baseline": 0.5}
    for kind, first in (("relative", "syntactic(nsubj dep->head)"), ("absolute", "rare")):
        thresholds = Thresholds(margin_kind=kind)  # type: ignore[arg-type]
        assert roles(syntax(row, thresholds=thresholds), thresholds, rare_top1=0.765).split("; ")[0] == first


def test_every_kind_of_role_at_once() -> None:
    found = roles(
        syntax({"direction": "head->dep", "accuracy": 0.9}),
        positional_share=0.91,
        self_share=0.92,
        rare_top1=0.8,
        to_sep=0.7,
        entropy_norm=0.95,
    )
    # 0.83, 0.6, 0.5, 0.4, 0.2, 0.1
    assert found == "syntactic(nsubj head->dep); rare; broad; separator; self; positional(-1)"


def test_a_threshold_of_one_leaves_no_room() -> None:
    assert roles(thresholds=Thresholds(diagonal=1.0), self_share=1.0, rare_top1=0.6) == "rare; self"


def test_heads_keep_their_own_roles() -> None:
    table = HeadTable.from_columns(
        [Head("encoder", 0, 0), Head("decoder", 0, 0)], **{k: [v, v] for k, v in NOTHING.items()}
    )
    found = label(table, syntax({"stack": "decoder"}), Thresholds()).rows
    assert dict(zip(found["stack"], found["role"], strict=True)) == {
        "encoder": "",
        "decoder": "syntactic(nsubj dep->head)",
    }


@pytest.mark.parametrize(
    ("role", "family"),
    [("positional(-1)", "positional"), ("syntactic(nsubj dep->head)", "syntactic"), ("rare", "rare"), ("", "none")],
)
def test_families(role: str, family: str) -> None:
    assert role_family(role) == family


def test_counting_families() -> None:
    frame = pd.DataFrame({"role": ["positional(-1)", "positional(+1)", "", "rare"]})
    assert count_families(frame).to_dict() == {"positional": 2, "none": 1, "rare": 1}


def test_bound_of_arrays() -> None:
    baseline = np.array([0.0, 0.5])
    assert Thresholds().syntactic(baseline).tolist() == [0.1, 0.6]
    assert Thresholds(margin_kind="relative").syntactic(baseline).tolist() == [0.0, 0.55]


def test_too_little_data_gives_no_role() -> None:
    strong = {"self_share": 0.99, "rare_top1": 0.99}
    assert roles(**strong, tokens=30, rare_words=30) == "rare; self"
    assert roles(**strong, tokens=30, rare_words=29) == "self"
    assert roles(**strong, tokens=29, rare_words=30) == ""


@pytest.mark.parametrize("name", ["positional", "diagonal", "margin", "rare", "separator", "broad"])
def test_a_threshold_that_nothing_compares_with_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"--thresholds {name}=nan is not a finite number") as caught:
        Thresholds(**{name: math.nan})
    assert "0.9" in caught.value.advice


def test_an_infinite_margin_is_refused() -> None:
    with pytest.raises(OptionError, match="--thresholds margin=inf"):
        Thresholds(margin=math.inf)


@pytest.mark.parametrize(
    ("sentences", "tokens", "told"), [(30, 1000, False), (29, 5000, True), (400, 999, True), (1, 1, True)]
)
def test_so_much_text_gives_roles(sentences: int, tokens: int, told: bool) -> None:
    notes = too_little_notes(sentences, tokens, Thresholds())
    read = f"{sentences} sentence{'s' * (sentences > 1)} with {tokens} token{'s' * (tokens > 1)}"
    expected = (
        f"No roles are assigned: {read} {'was' if sentences == 1 else 'were'} read, but roles need 30 with 1000. Give "
        "more text, or lower them: --thresholds min-sentences=…,min-tokens=…."
    )
    assert notes == [expected] * told
    assert not too_little_notes(sentences, tokens, Thresholds(min_sentences=1, min_tokens=1))


def test_a_head_that_maps_one_text_on_the_other_from_one_side() -> None:
    assert roles(pair_tokens=30, first_to_second=0.1, second_to_first=0.75) == "pair(second->first)"
    assert roles(pair_tokens=29, first_to_second=0.1, second_to_first=0.75) == ""
    assert roles(pair_tokens=30, first_to_second=0.5, second_to_first=0.5 * BELOW) == "pair(first->second)"


@pytest.mark.parametrize(
    ("nearest", "same_word", "mentions", "expected"),
    [
        (0.4, 0.2, 30, "coreference"),
        (0.2, 0.4, 30, "coreference"),
        (0.41, 0.2, 30, ""),
        (0.2, 0.41, 30, ""),
        (0.1, 0.1, 29, ""),
    ],
)
def test_a_coreference_head_beats_both_baselines(
    nearest: float, same_word: float, mentions: int, expected: str
) -> None:
    columns = {"coreference_nearest": nearest, "coreference_same_word": same_word, "mentions": mentions}
    assert roles(coreference=0.5, **columns) == expected
    # an interval that holds a baseline shows nothing
    assert roles(coreference=0.5, coreference_ci_low=max(nearest, same_word) - 0.01, **columns) == ""
    assert roles(coreference=math.nan, **columns) == ""


@pytest.mark.parametrize(
    ("p_value", "p_holm", "role", "closest"),
    [(0.001, 0.049, "coreference", "coreference"), (0.001, 0.05, "", "coreference"), (0.05, 1.0, "", "sink")],
)
def test_a_coreference_head_is_significant_among_all_heads(
    p_value: float, p_holm: float, role: str, closest: str
) -> None:
    shares = {"coreference": 0.6, "coreference_nearest": 0.4, "coreference_same_word": 0.2, "mentions": 79.0}
    tests = {"coreference_p_value": p_value, "coreference_p_holm": p_holm}
    assert roles(**shares, **tests) == role
    assert nearest(**shares, **tests, to_first=0.4)[0] == closest
    # as where another version measured
    assert roles(**shares) == "coreference"


def test_the_margin_of_a_coreference_head_may_be_relative() -> None:
    columns = {"coreference": 0.5, "coreference_nearest": 0.3, "coreference_same_word": 0.4, "mentions": 99}
    assert roles(thresholds=Thresholds(margin=0.25, margin_kind="relative"), **columns) == "coreference"
    assert roles(thresholds=Thresholds(margin=0.26, margin_kind="relative"), **columns) == ""


@pytest.mark.parametrize(
    ("column", "norm", "role"),
    [
        ("to_first", "norm_to_first", "sink"),
        ("to_sep", "norm_to_special", "separator"),
        ("to_punct", "norm_to_punct", "punctuation"),
        ("to_prev", "norm_to_prev", "previous"),
        ("to_next", "norm_to_next", "next"),
    ],
)
def test_a_role_by_weights_alone_is_told(column: str, norm: str, role: str) -> None:
    def by_weight(**columns: float) -> str:
        rows = label(heads(**columns), None, Thresholds()).rows
        assert role in str(rows["roles"].iloc[0]) or columns[column] < 0.5
        return str(rows["roles_by_weight"].iloc[0])

    assert by_weight(**{column: 0.6, norm: 0.5 * BELOW}) == role
    assert by_weight(**{column: 0.6, norm: 0.5}) == ""
    assert by_weight(**{column: 0.6, norm: math.nan}) == ""
    assert by_weight(**{column: 0.6}) == ""
    assert by_weight(**{column: 0.4, norm: 0.1}) == ""


def scores(table: HeadTable, trees: HeadTable | None = None, stack: str = "encoder") -> dict[str, tuple[Any, ...]]:
    found = role_scores(table, trees, Thresholds())
    found = found[found["stack"] == stack].drop(columns=["stack", "needed", "null", "above_threshold"])
    return {role: tuple(rest) for role, *rest in found.itertuples(index=False)}


def test_a_role_without_a_threshold_has_no_row() -> None:
    """Where most sentences have several rarest words; `inf` in a table could not be read back."""
    table = heads(rare_top1=0.7)
    assert "rare" in set(role_scores(table, None, Thresholds())["role"])
    found = role_scores(table, None, Thresholds(rare=math.inf))
    assert "rare" not in set(found["role"])
    assert np.isfinite(found[["value", "needed"]].to_numpy(float)).all()
    assert label(table, None, Thresholds(rare=math.inf)).rows["nearest"].iloc[0] != "rare"


def test_the_best_head_of_a_role_is_one_that_holds_it() -> None:
    places = [Head("encoder", 0, 0), Head("encoder", 0, 1)]
    table = HeadTable.from_columns(places, **{name: [value] * 2 for name, value in NOTHING.items()})
    near = {"head": 0, "accuracy": 0.9, "p_holm": 0.07}
    for held, best in ((True, 1), (False, 0)):
        trees = syntax(near, {"head": 1, "accuracy": 0.8, "p_holm": 0.01 if held else 0.2})
        assert scores(table, trees)["syntactic(nsubj dep->head)"][1:4] == (int(held), 0, best)


def test_of_every_role_the_heads_that_hold_it_and_the_best_one() -> None:
    places = [Head("encoder", 0, 0), Head("encoder", 0, 1), Head("encoder", 1, 0), Head("cross", 0, 0)]
    columns = {name: [value] * 4 for name, value in NOTHING.items()} | {
        "positional_share": [0.95, 0.92, 0.2, 0.99],
        "positional_offset": [1.0, -1.0, -1.0, 2.0],
        "rare_top1": [0.1, 0.3, 0.3, math.nan],
        "to_first": [0.6, 0.1, 0.8, 0.7],
    }
    trees = syntax({"head": 1, "accuracy": 0.8}, {"head": 0, "accuracy": 0.45}, {"head": 0, "relation": "obj", "n": 9})
    table = HeadTable.from_columns(places, **columns)
    found = scores(table, trees)
    # heads, held, layer, head, number, share of the threshold
    assert found["positional"] == (3, 2, 0, 0, 0.95, pytest.approx(0.95 / 0.9))
    assert found["rare"] == (3, 0, 0, 1, 0.3, pytest.approx(0.6))
    assert found["sink"] == (3, 2, 1, 0, 0.8, pytest.approx(1.6))
    assert found["syntactic(nsubj dep->head)"] == (2, 2, 0, 1, 0.8, pytest.approx(0.5 / 0.1))
    assert "syntactic(obj dep->head)" not in found, "too few instances"
    cross = scores(table, trees, "cross")
    assert cross["positional"] == (1, 1, 0, 0, 0.99, pytest.approx(1.1))
    assert "rare" not in cross
    # The same roles as in heads.csv.
    labelled = label(table, trees, Thresholds()).rows
    held = [role_family(role) for row in labelled[labelled["stack"] == "encoder"]["roles"] for role in row.split("; ")]
    assert {role: held.count(role_family(role)) for role in found} == {role: own[1] for role, own in found.items()}


def test_heads_are_counted_by_every_role_that_they_hold() -> None:
    heads = pd.DataFrame(
        [
            ("m", "sink", "sink; next", "sink", 0.5),
            ("m", "rare", "rare", "rare", 0.5),
            ("m", "", "", "syntactic(obj dep->head)", 0.5),
            ("m", "", "", "", 0.5),
            ("even", "", "", "", 1.0),
        ],
        columns=["model", "role", "roles", "nearest", "entropy_norm"],
    ).assign(stack="encoder", layer=0, head=range(5))
    rows = family_counts(heads)
    assert [row["role"] for row in rows] == ["next", "rare", "sink", "syntactic", "none"]
    counts = {name: [row[name] for row in rows] for name in rows[0] if name != "role"}
    assert counts == {
        "m": [0, 1, 1, 0, 2],
        "m (held at all)": [1, 1, 1, 0, 2],
        "m (closest, if no role)": [0, 0, 0, 1, 1],
        "even": [0, 0, 0, 0, 1],
    }
    assert family_counts(heads.iloc[:2])[-1]["m"] == 0, "that no head is without a role is said, too"
