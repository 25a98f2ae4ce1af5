"""What weights are made of: the rest that is found is the one that went in, by closed forms in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from headlens.pages.score_parts import ScoreParts

Array = npt.NDArray[np.float64]
HEADS, QUERIES, KEYS, D = 2, 5, 7, 4
DISTANCE = np.abs(np.arange(QUERIES)[:, None] - np.arange(KEYS))


def products() -> tuple[ScoreParts, Array]:
    """Random queries and keys of heads 1 and 3, and their scores."""
    generator = np.random.default_rng(0)
    queries, keys = (generator.standard_normal((HEADS, n, D)).astype(np.float32) for n in (QUERIES, KEYS))
    parts = ScoreParts(2, [1, 3], 0.5, queries, keys)
    return parts, 0.5 * np.einsum("hqd,hkd->hqk", queries.astype(np.float64), keys.astype(np.float64))


def softmax(scores: Array, sink: float = -np.inf) -> npt.NDArray[np.float32]:
    """Weights by the definition, beside a sink that is no key, as a model in single precision has them."""
    raised = np.exp(scores)
    weights: npt.NDArray[np.float32] = (raised / (raised.sum(-1, keepdims=True) + np.exp(sink))).astype(np.float32)
    return weights


def largest(numbers: Array) -> float:
    return float(np.abs(numbers).max())


def test_products_alone_leave_no_rest() -> None:
    parts, scores = products()
    weights = softmax(scores)
    found = parts.fitted(weights)
    assert (found.rest == 0).all()
    assert (found.sums == 1).all()
    assert largest(found.weights() - weights) < 1e-6
    assert max(found.off) < 1e-6


@pytest.mark.parametrize(
    "change",
    [
        lambda scores: scores - 0.3 * DISTANCE,  # ALiBi
        lambda scores: scores + np.random.default_rng(1).standard_normal((HEADS, QUERIES, KEYS)),  # a bias of positions
        lambda scores: 2 * np.tanh(scores / 2),  # a soft cap
        lambda scores: np.where(DISTANCE > 1, scores - 3, scores),  # a penalty
    ],
)
def test_what_went_into_scores_is_found_up_to_a_constant_for_each_query(change: Callable[[Array], Array]) -> None:
    parts, scores = products()
    weights = softmax(change(scores))
    found = parts.fitted(weights)
    rest = change(scores) - scores
    assert largest(found.rest - (rest - rest.max(-1, keepdims=True))) < 1e-5
    assert largest(found.weights() - weights) < 1e-6


def test_only_the_head_with_a_bias_has_a_rest() -> None:
    parts, scores = products()
    scores[1] -= 0.3 * DISTANCE
    found = parts.fitted(softmax(scores))
    assert (found.rest[0] == 0).all()
    assert largest(found.rest[1] + 0.3 * DISTANCE - (0.3 * DISTANCE).min(-1, keepdims=True)) < 1e-5


def test_a_sink_takes_a_part_and_is_no_rest() -> None:
    parts, scores = products()
    weights = softmax(scores, sink=1.5)
    found = parts.fitted(weights)
    raised = np.exp(scores).sum(-1)
    assert (found.rest == 0).all()
    assert largest(found.sums - raised / (raised + np.exp(1.5))) < 1e-6
    assert largest(found.weights() - weights) < 1e-6


def test_masked_keys_have_no_weight_and_the_others_no_rest() -> None:
    parts, scores = products()
    mask = np.tri(QUERIES, KEYS) == 0
    weights = softmax(np.where(mask, -np.inf, scores))
    found = parts.fitted(weights)
    assert (found.rest == np.where(mask, -np.inf, 0)).all()
    assert (found.weights()[:, mask] == 0).all()
    assert largest(found.weights() - weights) < 1e-6


def test_a_query_that_gives_nothing_has_no_weights() -> None:
    parts, scores = products()
    weights = softmax(scores)
    weights[:, 2] = 0
    found = parts.fitted(weights)
    assert (found.weights()[:, 2] == 0).all()
    assert largest(found.weights() - weights) < 1e-6


def test_weights_of_few_digits_agree_within_them_and_say_by_how_much() -> None:
    parts, scores = products()
    exact = softmax(scores)
    rounded = np.round(exact * 256) / 256
    assert (parts.fitted(rounded).rest != 0).any()
    found = parts.fitted(rounded, agrees=2e-2)
    assert (found.rest[rounded > 0] == 0).all()
    assert max(found.off) == pytest.approx(largest(found.weights() - rounded))
    assert max(found.off) > 1e-4


def test_some_heads_of_a_layer() -> None:
    parts, scores = products()
    found = parts.fitted(softmax(scores))
    one = found.of_heads([1])
    assert (one.heads, one.layer, one.off) == ([3], 2, found.off[1:])
    assert np.array_equal(one.weights(), found.weights()[1:])
    assert found.of_heads([0, 1]) is found


SHAPE = (3, 4, QUERIES, KEYS)


def test_parts_fit_weights_of_their_shape_alone() -> None:
    parts, scores = products()
    found = parts.fitted(softmax(scores))
    found.check(SHAPE)
    for shape in ((2, 4, QUERIES, KEYS), (3, 3, QUERIES, KEYS), (3, 4, QUERIES, QUERIES), (3, 4, KEYS, KEYS)):
        with pytest.raises(ValueError, match="do not fit"):
            found.check(shape)


@pytest.mark.parametrize(
    "change",
    [
        {"layer": -1},
        {"layer": "1"},
        {"heads": [1, True]},
        {"heads": [1]},
        {"heads": []},
        {"shared_by": 0},
        {"scaling": float("nan")},
        {"off": [0.0]},
        {"queries": np.full((HEADS, QUERIES, D), np.inf, np.float32)},
        {"rest": np.full((HEADS, QUERIES, KEYS), np.nan, np.float32)},
        {"rest": np.ones((HEADS, QUERIES, KEYS), np.float32)},
        {"sums": np.ones((HEADS, KEYS), np.float32)},
    ],
)
def test_broken_parts_are_refused(change: dict[str, Any]) -> None:
    parts, scores = products()
    with pytest.raises(ValueError, match=r"fit|whole|finite"):
        replace(parts.fitted(softmax(scores)), **change).check(SHAPE)
