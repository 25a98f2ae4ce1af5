"""What strategies ask: scores, importances turned into scores, and a memory that survives JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.analyses.ablate.pruning_strategies import Score, in_order, scores_of
from headlens.analyses.ablate.scorers import CachedScorer, ImportanceScorer, per_layer
from headlens.errors import SelfCheckError
from headlens.heads import Head
from headlens.runs.checkpoint import unpacked

A, B, C, D = Head("encoder", 0, 0), Head("encoder", 0, 1), Head("encoder", 1, 0), Head("cross", 0, 0)


class Counting:
    """Scores by place in the alphabet, and notes what it was asked."""

    def __init__(self) -> None:
        self.questions: list[tuple[frozenset[Head], list[Head]]] = []

    def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, float]:
        self.questions.append((removed, list(candidates)))
        return {h: 0.1 * len(removed) + h.head / 3 for h in candidates}


def test_heads_stand_in_the_order_of_the_model() -> None:
    decoder, later = Head("decoder", 0, 0), Head("encoder", 10, 0)
    assert in_order({D, later, C, decoder, B, A}) == (A, B, C, later, decoder, D)


def test_importance_is_a_score_with_the_other_sign() -> None:
    seen = []

    def importance(removed: frozenset[Head]) -> Mapping[Head, float]:
        seen.append(removed)
        return {A: 3.0, B: 4.0, C: 5.0, D: 100.0}

    found = ImportanceScorer(importance).without(frozenset({D}), [A, B])
    assert found == pytest.approx({A: -3 / 5, B: -4 / 5})
    # D is gone, C may not go, but counts in its layer.
    assert ImportanceScorer(importance).without(frozenset({B}), [A, C]) == {A: -1.0, C: -1.0}
    assert ImportanceScorer(importance, normalize=False).without(frozenset(), [A, C]) == {A: -3.0, C: -5.0}
    assert seen == [{D}, {B}, set()]


def test_layers_are_sites() -> None:
    """Cross-attention and self-attention of the same depth are not one layer."""
    found = per_layer({A: 1.0, B: 2.0, C: 0.0, D: 7.0})
    assert found == pytest.approx({A: 5**-0.5, B: 2 * 5**-0.5, C: 0.0, D: 1.0})


@given(st.lists(st.floats(1e-250, 1e250), min_size=1, max_size=5))
def test_every_layer_has_norm_1(values: list[float]) -> None:
    found = per_layer({Head("encoder", 3, i): v for i, v in enumerate(values)})
    assert np.linalg.norm(list(found.values())) == pytest.approx(1)
    if len(values) == 1:
        assert list(found.values()) == [1.0]


def test_nan_counts_as_worst_and_silence_is_an_error() -> None:
    class Undefined:
        def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, float]:
            return {A: float("nan"), B: -1e300}

    assert scores_of(Undefined(), frozenset(), [A, B]) == {A: Score(-np.inf), B: Score(-1e300)}
    with pytest.raises(SelfCheckError, match=r"No score is known for head encoder\.1\.0 with 1 others gone"):
        scores_of(Undefined(), frozenset({D}), [A, C])


def test_what_is_finer_decides_between_equal_values_alone() -> None:
    assert Score(0.9, -2.0) > Score(0.9, -3.0) > Score(0.8, 7.0)
    assert Score.of(Score(0.5, float("nan"))) == Score(0.5, -np.inf)


def test_what_is_known_is_not_asked_again() -> None:
    scorer, kept = Counting(), []
    memory = CachedScorer(scorer, keep=kept.append)
    tenth, more, third = Score(0.1), Score(0.1 + 1 / 3), Score(1 / 3)
    assert memory.without(frozenset({D}), [A]) == {A: tenth}
    assert memory.without(frozenset({D}), [A, B, C]) == {A: tenth, B: more, C: tenth}
    assert memory.without(frozenset({D}), [B, A]) == {B: more, A: tenth}
    assert memory.without(frozenset(), [B]) == {B: third}
    assert scorer.questions == [({D}, [A]), ({D}, [B, C]), (set(), [B])]
    assert kept == [{D}, {D}, set()]
    assert memory.known == {frozenset({D}): {A: tenth, B: more, C: tenth}, frozenset(): {B: third}}
    again = CachedScorer(scorer)
    again.take(memory.dump())
    assert list(again.without(frozenset({D}), [C, A])) == [C, A]
    assert len(scorer.questions) == 3


NUMBERS = st.floats(allow_nan=False, max_value=1e308)


@given(st.dictionaries(st.sampled_from([A, B, C]), st.builds(Score, NUMBERS, NUMBERS)))
def test_answers_survive_a_checkpoint_to_the_last_bit(scores: dict[Head, Score]) -> None:
    memory, again = CachedScorer(Counting()), CachedScorer(Counting())
    memory.known[frozenset({D})] = scores
    content = memory.dump()
    json.dumps(unpacked(content)[0], allow_nan=False)
    again.take(content)
    assert again.known == memory.known
