"""Syntactic accuracy of heads whose attention is set by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from handmade import Row, Setting, call, heads, observed, one_hot, uniform
from hypothesis import given
from hypothesis import strategies as st
from naive_samples import make_seq
from naive_statistics import holm, paired_p_value, wilson

from headlens.metrics.syntax import Syntax, most_frequent_offsets

# unbelievable <-amod- cats <-nsubj- sleep -punct-> .
ARCS = ((0, 1, 0), (1, 2, 1))
RELATIONS = ("amod", "nsubj")
FIRST_TOKEN = {0: 1, 1: 4, 2: 5, 3: 6}
WORD_OF = {0: -1, 1: 0, 2: 0, 3: 0, 4: 1, 5: 2, 6: 3, 7: -1}


def pointing(goal: dict[int, int]) -> Any:
    """All pieces of a word look at the first piece of another; the rest at [SEP]."""
    return one_hot(lambda q: FIRST_TOKEN[goal[WORD_OF[q]]] if WORD_OF[q] in goal else 7)


def rows(*batch: Row, metric: Syntax | None = None, setting: Setting | None = None) -> dict[tuple[Any, ...], Any]:
    tables = observed([metric or Syntax(RELATIONS)], [call(batch, setting)]).tables()
    return {(r["head"], r["relation"], r["direction"]): r for r in tables["syntax"].rows.to_dict("records")}


def test_one_hot_on_the_head_of_every_word() -> None:
    found = rows(Row(pointing({0: 1, 1: 2}), arcs=ARCS))
    for relation in RELATIONS:
        up, down = found[0, relation, "dep->head"], found[0, relation, "head->dep"]
        assert (up["n"], up["correct"], up["accuracy"]) == (1, 1, 1)
        assert (up["baseline_offset"], down["baseline_offset"]) == (1, -1)
        assert up["baseline"] == down["baseline"] == 1
    # nobody looks back at the dependents
    assert found[0, "nsubj", "head->dep"]["correct"] == 0


def test_one_hot_on_the_subject() -> None:
    found = rows(Row(pointing({2: 1}), arcs=ARCS))
    assert found[0, "nsubj", "head->dep"]["accuracy"] == 1
    assert found[0, "nsubj", "dep->head"]["accuracy"] == 0


def test_heads_are_counted_apart() -> None:
    found = rows(Row(heads(pointing({1: 2}), pointing({0: 1}), uniform()), arcs=ARCS))
    hits = [[found[h, r, "dep->head"]["correct"] for r in RELATIONS] for h in range(3)]
    assert hits == [[0, 1], [1, 0], [0, 0]]


def test_pieces_vote_for_their_word_by_mean_attention() -> None:
    two_of_three = one_hot(lambda q: 4 if q in (1, 3) else 5)
    one_of_three = one_hot(lambda q: 4 if q == 1 else 5)
    found = rows(Row(heads(two_of_three, one_of_three), arcs=ARCS))
    assert [found[h, "amod", "dep->head"]["correct"] for h in (0, 1)] == [1, 0]


def test_a_word_in_pieces_receives_their_sum() -> None:
    pieces = sum(one_hot(lambda _, k=k: k) for k in (1, 2, 3))
    found = rows(Row(0.2 * pieces + 0.4 * one_hot(lambda _: 5), arcs=ARCS))
    assert found[0, "amod", "head->dep"]["correct"] == 1


def test_special_tokens_are_no_target() -> None:
    found = rows(Row(0.9 * one_hot(lambda _: 7) + 0.1 * pointing({1: 2}), arcs=ARCS))
    assert found[0, "nsubj", "dep->head"]["correct"] == 1


def test_exclude_self() -> None:
    weights = 0.6 * one_hot(lambda q: q) + 0.4 * pointing({0: 1, 1: 2})
    with_self, without = (
        rows(Row(weights, arcs=ARCS), metric=Syntax(RELATIONS, exclude_self=e)) for e in (False, True)
    )
    assert [r[0, "nsubj", "dep->head"]["correct"] for r in (with_self, without)] == [0, 1]


def chain(arcs: Sequence[tuple[int, int, int]], choose: Callable[[int], int], n: int = 6) -> Row:
    """A sentence of whole words without special tokens."""
    return Row(one_hot(choose, n), make_seq(range(n)), arcs=arcs)


def test_statistics_of_a_mixed_head() -> None:
    """Six instances of one relation: the baseline (+1) has four, the head five, three of them both."""
    arcs = [(0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 4, 0), (4, 2, 0), (5, 3, 0)]
    right = {0: 1, 1: 2, 2: 3, 3: 0, 4: 2, 5: 3}
    row = rows(chain(arcs, right.__getitem__), metric=Syntax(("dep",)))[0, "dep", "dep->head"]
    assert (row["n"], row["correct"], row["baseline_offset"]) == (6, 5, 1)
    assert (row["accuracy"], row["baseline"]) == (5 / 6, 4 / 6)
    assert row["p_value"] == pytest.approx(paired_p_value(2, 1))
    assert (row["ci_low"], row["ci_high"]) == pytest.approx(wilson(5, 6))


def test_only_differing_instances_decide_the_test() -> None:
    """Seven of seven right, the baseline four: three differ, whatever both have right."""
    arcs = [(0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 4, 0), (4, 2, 0), (5, 3, 0), (6, 0, 0)]
    row = rows(chain(arcs, lambda q: arcs[q][1], n=7), metric=Syntax(("dep",)))[0, "dep", "dep->head"]
    assert (row["correct"], row["baseline"]) == (7, 4 / 7)
    assert row["p_value"] == pytest.approx(1 / 8)


def test_holm_runs_over_the_whole_table() -> None:
    arcs = [(i, i + 1, 0) for i in range(5)] + [(5, 0, 1), (4, 1, 1)]
    row = chain(arcs, lambda q: [1, 2, 0, 4, 1, 0][q])
    found = rows(row, metric=Syntax(("a", "b", "never")))
    p_values = [r["p_value"] for r in found.values()]
    known = [p for p in p_values if not math.isnan(p)]
    assert len(known) == 4
    adjusted = [r["p_holm"] for r in found.values() if not math.isnan(r["p_value"])]
    assert adjusted == pytest.approx(holm(known))


def test_a_relation_without_instances_is_empty() -> None:
    row = rows(Row(uniform(), arcs=ARCS[:1]), metric=Syntax(("amod", "obj")))[0, "obj", "dep->head"]
    assert (row["n"], row["correct"]) == (0, 0)
    empty = ("accuracy", "ci_low", "ci_high", "baseline_offset", "baseline", "p_value", "p_holm")
    assert all(math.isnan(row[name]) for name in empty)


def test_no_instances_at_all_make_no_table() -> None:
    assert observed([Syntax(RELATIONS)], [call([Row(uniform(), arcs=())])]).tables() == {}
    assert observed([Syntax(RELATIONS)], [call([Row(uniform())])]).tables() == {}


def test_cross_attention_has_no_trees() -> None:
    assert observed([Syntax(RELATIONS)], [call([Row(uniform(), arcs=ARCS)], Setting("cross"))]).tables() == {}


def test_baseline_from_elsewhere() -> None:
    n = np.zeros((1, 2, 129), dtype=np.int64)
    n[0, :, 64 - 2] = 7  # offset -2 is the most frequent there
    baseline = {"encoder": most_frequent_offsets(n)}
    metric = Syntax(("dep",), baseline=baseline)  # type: ignore[arg-type]
    arcs = [(1, 2, 0), (2, 3, 0), (4, 2, 0)]
    row = rows(chain(arcs, lambda _: 2), metric=metric)[0, "dep", "dep->head"]
    assert (row["baseline_offset"], row["baseline"]) == (-2, 1 / 3)
    # right: (1, 2) alone and (4, 2) together with the baseline
    assert (row["correct"], row["p_value"]) == (2, paired_p_value(1, 0))


@pytest.mark.parametrize(
    ("offsets", "chosen"),
    [({-1: 3, 1: 3}, -1), ({-2: 3, 1: 3}, 1), ({-3: 4, 1: 3}, -3), ({5: 1}, 5), ({-64: 9, 64: 9, 63: 1}, 63)],
)
def test_ties_between_baseline_offsets(offsets: dict[int, int], chosen: int) -> None:
    n = np.zeros((1, 1, 129), dtype=np.int64)
    for offset, count in offsets.items():
        n[0, 0, 64 + offset] = count
    assert most_frequent_offsets(n)[0, 0] - 64 == chosen


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda ends: ends[0] != ends[1]), min_size=1),
    st.integers(-8, 8).filter(bool),
)
def test_a_head_that_knows_its_offset_alone_never_beats_the_baseline(ends: list[tuple[int, int]], offset: int) -> None:
    arcs = [(dependent, head, 0) for dependent, head in ends]
    found = rows(chain(arcs, lambda q: min(max(q + offset, 0), 8), n=9), metric=Syntax(("dep",)))
    for (_, _, direction), row in found.items():
        clipped = [(d, h) if direction == "dep->head" else (h, d) for d, h in ends]
        at_the_edge = sum(not 0 <= source + offset <= 8 and target in (0, 8) for source, target in clipped)
        assert row["correct"] - at_the_edge <= row["baseline"] * row["n"] + 1e-9


def test_far_arcs_count_but_are_no_baseline() -> None:
    arcs = [(0, 79, 0), (0, 78, 0), (1, 2, 0)]
    row = rows(chain(arcs, lambda _: 79, n=80), metric=Syntax(("dep",)))[0, "dep", "dep->head"]
    assert (row["n"], row["correct"], row["baseline_offset"], row["baseline"]) == (3, 1, 1, 1 / 3)
