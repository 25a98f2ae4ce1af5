"""Whether heads point at antecedents, on attention set by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from handmade import Row, Setting, call, columns, observed, one_hot, uniform
from naive_samples import make_seq

from headlens.heads import Stack
from headlens.metrics.coreference import Coreference

# [CLS] Ann saw Bob ##by , he saw her [SEP]; entities Ann 0, Bobby 1
SEQ = make_seq([-1, 0, 1, 2, 2, 3, 4, 5, 6, -1], cls=[0], sep=[9], punct=[5])
# Word, entity, has an antecedent, found by the nearest mention, by the same word
MENTIONS = [(0, 0, 0, 0, 0), (2, 1, 0, 0, 0), (4, 1, 1, 1, 0), (6, 0, 1, 0, 0)]


def found_by(weights: Any, mentions: list[tuple[int, ...]] = MENTIONS, stack: Stack = "encoder") -> dict[str, float]:
    return columns(Coreference(), call([Row(weights, SEQ, mentions=mentions)], Setting(stack)))


def test_a_head_that_finds_every_antecedent() -> None:
    found = found_by(one_hot(lambda q: {6: 4, 8: 1}.get(q, 0), len(SEQ)))
    assert (found["coreference"], found["mentions"]) == (1, 2)
    assert (found["coreference_nearest"], found["coreference_same_word"]) == (0.5, 0)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_neither_itself_nor_another_entity_is_an_antecedent(stack: Stack) -> None:
    assert found_by(one_hot(lambda q: q, len(SEQ)), stack=stack)["coreference"] == 0
    assert found_by(one_hot(lambda q: {6: 1, 8: 3}.get(q, 0), len(SEQ)), stack=stack)["coreference"] == 0


def test_heads_are_tested_against_the_better_baseline_and_corrected_over_all_sites() -> None:
    """Of nine mentions the nearest earlier one is right for two: a head that finds all gains seven, loses none."""
    n = 12
    sentence = make_seq([-1, *range(10), -1], cls=[0], sep=[11])
    mentions = [(0, 0, 0, 0, 0), *((word, 0, 1, int(word < 3), 0) for word in range(1, 10))]
    finds, fails = one_hot(lambda q: max(q - 1, 0), n), one_hot(lambda q: 0, n)
    calls = [
        call([Row(np.concatenate([one, fails]), sentence, mentions=mentions)], Setting(layer=layer))
        for layer, one in enumerate((finds, fails))
    ]
    (table,) = (t for t in observed([Coreference()], calls).head_tables() if "coreference_p_holm" in t.rows)
    assert table.rows["coreference_p_value"].tolist() == pytest.approx([0.5**7, 1, 1, 1])
    assert table.rows["coreference_p_holm"].tolist() == pytest.approx([4 * 0.5**7, 1, 1, 1])


def test_a_later_mention_is_none() -> None:
    later = [(0, 0, 0, 0, 0), (2, 0, 1, 1, 0), (6, 0, 1, 1, 0)]
    assert found_by(one_hot(lambda q: {3: 8, 4: 8, 8: 3}.get(q, 0), len(SEQ)), later)["coreference"] == 0.5


def test_a_word_that_heads_mentions_of_two_entities() -> None:
    """ "Ann" of "Ann and Bob", which both are an entity; each mention counts."""
    both = [(0, 0, 0, 0, 0), (0, 1, 0, 0, 0), (4, 1, 1, 1, 0), (6, 0, 1, 0, 0)]
    assert found_by(one_hot(lambda q: {6: 1, 8: 1}.get(q, 0), len(SEQ)), both)["coreference"] == 1


def test_mentions_of_other_entities_change_nothing() -> None:
    """Of entities that are mentioned once, at words of their own and at words of others."""
    single = [(5, 2, 0, 0, 0), (4, 3, 0, 0, 0), (0, 4, 0, 0, 0)]
    weights = one_hot(lambda q: {6: 4, 8: 1}.get(q, 0), len(SEQ))
    assert found_by(weights, MENTIONS + single) == pytest.approx(found_by(weights), nan_ok=True)
    assert found_by(one_hot(lambda q: 7, len(SEQ)), MENTIONS + single)["coreference"] == 0


def test_without_antecedents_nothing_is_known() -> None:
    found = found_by(uniform(len(SEQ)), MENTIONS[:2])
    assert found["mentions"] == 0
    assert np.isnan(found["coreference"])
    assert observed([Coreference()], [call([Row(uniform(len(SEQ)), SEQ)])]).tables() == {}
