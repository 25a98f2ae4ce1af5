"""Offsets of heads whose attention is set by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from handmade import SENTENCE, Row, Setting, call, columns, heads, measured, one_hot, uniform
from naive_samples import make_seq

from headlens.metrics.attention_view import CallView
from headlens.metrics.positions import OFFSETS, Positions, positional
from headlens.metrics.ratio_estimator import ratio_interval, ratio_sums

LONG = make_seq([-1, *range(28), -1], cls=[0], sep=[29])


def histogram(row: Row, **options: Any) -> dict[str, int]:
    found = columns(Positions(), call([row], options.pop("setting", None)), **options)
    assert list(found["offset"]) == OFFSETS
    return {o: int(c) for o, c in zip(found["offset"], found["count"], strict=True) if c}


def test_offsets_are_named_from_left_to_right() -> None:
    assert ["<-8", *map(str, range(-8, 9)), ">8"] == OFFSETS


def test_previous_token() -> None:
    # 28 words; the first one's previous token is [CLS], which is no place: it points nowhere and does not count.
    assert histogram(Row(one_hot(lambda q: q - 1, 30), LONG)) == {"-1": 27}


def test_diagonal() -> None:
    assert histogram(Row(one_hot(lambda q: q))) == {"0": 6}


def test_ties_go_to_the_first_word() -> None:
    assert histogram(Row(uniform())) == {str(d): 1 for d in range(-5, 1)}


@pytest.mark.parametrize("token", [0, 7])
def test_a_head_wholly_on_a_special_token_points_nowhere(token: int) -> None:
    assert histogram(Row(one_hot(lambda _: token))) == {}


def test_far_offsets_go_to_the_tails() -> None:
    assert histogram(Row(one_hot(lambda q: q + 9 if q < 15 else q - 9, 30), LONG)) == {">8": 14, "<-8": 14}
    assert histogram(Row(one_hot(lambda q: q + 8 if q < 15 else q - 8, 30), LONG)) == {"8": 14, "-8": 14}


def test_next_word_of_a_word_in_pieces() -> None:
    # The first piece looks at the next piece, the other two at the word after.
    weights = one_hot(lambda q: [0, 2, 4, 4, 5, 6, 6, 7][q])
    assert histogram(Row(weights), level="word") == {"1": 3, "0": 1}


def test_causal() -> None:
    setting = Setting("decoder")
    assert histogram(Row(one_hot(lambda q: q - 2, 30), LONG), setting=setting) == {"-2": 26}


def test_cross_counts_positions_on_both_sides() -> None:
    target = make_seq([-1, 0, 1, 2], special=[0])
    row = Row(one_hot(lambda q: q + 2, 4, 8), target, SENTENCE)
    assert histogram(row, setting=Setting("cross")) == {"2": 3}


def test_nothing_to_point_at() -> None:
    row = Row(uniform(2), make_seq([0, 1]), make_seq([-1, -1], cls=[0], sep=[1]))
    found = columns(Positions(), call([row], Setting("cross")))
    assert found["count"].sum() == 0
    assert np.isnan(found["share"]).all()


def test_shares() -> None:
    found = columns(Positions(), call([Row(one_hot(lambda q: q - 1, 30), LONG)]))
    assert found["share"][OFFSETS.index("-1")] == 1
    assert found["share"].sum() == 1


def test_heads_are_counted_apart() -> None:
    weights = heads(*(one_hot(lambda q, d=d: q + d, 30) for d in (-3, 0, 2)))
    counts = measured(Positions(), call([Row(weights, LONG)]))["count"]
    offset, share, diagonal = positional(counts)
    assert list(offset) == [-3, -1, 2]
    assert list(share) == [1, 0, 1]
    assert list(diagonal) == [0, 1, 0]


def counted(**numbers: int) -> Any:
    counts = np.zeros((1, len(OFFSETS)), dtype=np.int64)
    for name, number in numbers.items():
        counts[0, OFFSETS.index(name.translate(str.maketrans("mp_", "-+ ")).strip("+ ") or "0")] = number
    return counts


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"m1": 5, "p1": 5}, -1),
        ({"m2": 5, "p1": 5}, 1),
        ({"m8": 5, "p7": 5}, 7),
        ({"p3": 6, "m1": 5}, 3),
        ({"_0": 9, "p4": 1}, 4),
    ],
)
def test_ties_between_offsets(numbers: dict[str, int], expected: int) -> None:
    offset, share, _ = positional(counted(**numbers))
    assert offset[0] == expected
    assert share[0] == max(v for k, v in numbers.items() if k != "_0") / sum(numbers.values())


def test_tails_never_win() -> None:
    counts = counted(m3=1)
    counts[0, [0, -1]] = 50, 60
    offset, share, _ = positional(counts)
    assert (offset[0], share[0]) == (-3, 1 / 111)


def test_no_query_has_no_offset() -> None:
    offset, share, diagonal = positional(counted())
    assert all(math.isnan(v[0]) for v in (offset, share, diagonal))


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_of_the_commonest_offset_is_that_of_a_mean_by_sentences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 9, 6)
    rows, hits, counted = [], [], []
    for length in lengths:
        target = np.where(rng.random(length) < 0.6, np.arange(length) - 1, rng.integers(0, length, length)).clip(0)
        rows.append(Row(one_hot(target.__getitem__, length), make_seq(range(length))))
        hits.append(target - np.arange(length) == -1)
        counted.append(np.ones(length, bool))
    longest = lengths.max()
    values, mask = np.zeros((len(rows), 1, longest)), np.zeros((len(rows), longest), bool)
    for i, length in enumerate(lengths):
        values[i, 0, :length], mask[i, :length] = hits[i], counted[i]
    batch = call(rows)
    expected = ratio_sums("x", CallView(batch), torch.from_numpy(values), torch.from_numpy(mask))
    low, high = ratio_interval("x", {name: value.numpy() for name, value in expected.items()}, share=True)
    found = Positions().head_columns(measured(Positions(), batch))
    assert found["positional_offset"][0] == -1
    ends = found["positional_share_ci_low"][0], found["positional_share_ci_high"][0]
    assert ends == pytest.approx((low[0], high[0]))
    assert found["positional_share"][0] == pytest.approx(values.sum() / mask.sum())
