"""Monotonicity of cross-attention set by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from handmade import SENTENCE, Row, Setting, call, columns, observed, one_hot
from naive_samples import Seq, make_seq

from headlens.metrics.monotonicity import Monotonicity


def share(path: Sequence[int], target: Seq, column: str = "monotonicity") -> float:
    row = Row(one_hot(lambda q: path[q], len(path), 8), target, SENTENCE)
    return float(columns(Monotonicity(), call([row], Setting("cross")))[column])


@pytest.mark.parametrize(
    ("path", "expected"),
    [([1, 2, 3, 4], 1), ([4, 3, 2, 1], 0), ([1, 1, 2, 2], 1), ([1, 3, 2, 4], 2 / 3), ([6, 1, 2, 3], 2 / 3)],
)
def test_paths(path: list[int], expected: float) -> None:
    assert share(path, make_seq(range(4))) == pytest.approx(expected)


@pytest.mark.parametrize(("path", "stays"), [([2, 2, 2, 2], 1), ([1, 2, 3, 4], 0), ([1, 1, 2, 1], 1 / 3)])
def test_a_head_that_stays_on_one_token_is_told_apart(path: list[int], stays: float) -> None:
    assert share(path, make_seq(range(4)), "monotonicity_stays") == pytest.approx(stays)


def test_steps_over_special_tokens_do_not_count() -> None:
    target = make_seq([-1, 0, 1, -1, 2, 3], special=[0], eos=[3])
    assert share([6, 1, 2, 1, 5, 4], target) == 1 / 2


def test_special_keys_do_not_count() -> None:
    # [SEP] is no place: the second query points nowhere, so no step has two ends.
    assert math.isnan(share([1, 7, 2], make_seq(range(3))))


def test_one_target_token_has_no_steps() -> None:
    assert math.isnan(share([1], make_seq([0])))


def test_other_stacks_have_none() -> None:
    assert observed([Monotonicity()], [call([Row(one_hot(lambda q: q))])]).tables() == {}
