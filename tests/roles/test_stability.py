"""How often heads keep their roles: against draws written out, and on a model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from saved import Memory, build, save, tree
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

import headlens
from headlens.corpora.batches import pooled_batches
from headlens.corpora.sentence import Example
from headlens.metrics.accumulator import Accumulator
from headlens.models.loading import load
from headlens.roles.head_roles import GROUPS, SentenceGroups, classify_heads, role_stability
from headlens.roles.role_options import ClassifyOptions, Thresholds

WORDS = (("dogs", "cats", "birds"), ("chase", "see", "like"), ("small", "old"), ("mice", "birds", "cats"))
CORPUS = Memory([Example(tree(s, v, a, o)) for s in WORDS[0] for v in WORDS[1] for a in WORDS[2] for o in WORDS[3]])


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    save(build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=90), folder, wordpiece_tokenizer)
    return folder


def groups_of(values: list[float | None]) -> SentenceGroups:
    """Groups whose sum is a value; None for one without a sentence."""
    groups = SentenceGroups()
    for totals, value in zip(groups.totals.values(), values, strict=True):
        if value is not None:
            totals.add_arrays({"m|encoder.0|x": np.array([value, 1.0, -value])})
    return groups


def above(totals: Accumulator) -> list[str]:
    (sums,) = totals.of("m").values()
    return ["up" if x > 0 else "" for x in sums["x"].tolist()]


def test_shares_are_those_of_draws_written_out() -> None:
    values = np.random.default_rng(3).normal(0.3, 1.0, GROUPS)
    values[[2, 7]] = 0.0
    filled = [i for i in range(GROUPS) if i not in (2, 7)]
    own = [values.sum() > 0, True, -values.sum() > 0]
    generator, kept = np.random.default_rng(5), np.zeros(3)
    for _ in range(200):
        times = generator.multinomial(len(filled), np.full(len(filled), 1 / len(filled)))
        total = sum(n * values[i] for n, i in zip(times, filled, strict=True))
        kept += np.array([total > 0, True, -total > 0]) == own
    given_values = [None if i in (2, 7) else v for i, v in enumerate(values)]
    calls: list[int] = []
    found = role_stability(groups_of(given_values), above, 200, 5, calls.append)
    np.testing.assert_allclose(found, kept / 200)
    assert found[1] == 1
    assert 0.5 < found[0] < 1
    assert calls == [1] * 200


def test_what_every_sentence_says_never_changes() -> None:
    assert role_stability(groups_of([1.0] * GROUPS), above, 30, 0).tolist() == [1, 1, 1]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 4))), st.integers(30, 90), st.integers(1, 20))
def test_batches_are_of_one_group(examples: list[tuple[int, int]], tokens: int, pool: int) -> None:
    batches = list(pooled_batches(examples, tokens, lambda e: e[0], lambda _: 1, pool, lambda e: e[1]))
    assert all(len({group for _, group in batch}) == 1 for batch in batches)
    assert Counter(e for batch in batches for e in batch) == Counter(examples)
    assert all(len(b) == 1 or len(b) * max(n for n, _ in b) <= tokens for b in batches)


@pytest.mark.parametrize("most", rest_slow([40, 2000], [2000]))
def test_draws_change_no_other_number(tiny_bert: Path, most: int) -> None:
    loaded, asked = load(str(tiny_bert)), Thresholds(min_instances=5, min_sentences=1, min_tokens=1)
    plain = ClassifyOptions(relations=("nsubj",), thresholds=asked, batch_tokens=most, similarity="off")
    drawn = replace(plain, stability=2)
    one, other = (classify_heads(loaded, Memory(list(CORPUS)[::2]), options) for options in (plain, drawn))
    assert one.with_stability() is one
    for name, table in one.tables.items():
        assert_frame_equal(other.tables[name].rows, table.rows, rtol=1e-9, atol=1e-9, check_exact=False)
    rows = other.with_stability().tables["heads"].rows
    assert rows["role_stability"].between(0, 1).all()
    assert_frame_equal(rows.drop(columns="role_stability"), other.tables["heads"].rows)


def test_too_little_has_no_roles_that_could_be_kept(tiny_bert: Path) -> None:
    few = Memory(list(CORPUS)[:3])
    found = classify_heads(load(str(tiny_bert)), few, ClassifyOptions(relations=("nsubj",), stability=3))
    assert found.too_little
    drawn = found.with_stability()
    assert "role_stability" not in drawn.tables["heads"].rows
    assert drawn.notes[-1] == "No head has a role on so little text, so none has a stability."


@pytest.mark.slow
def test_the_option(tiny_bert: Path) -> None:
    least = {"min_sentences": 1, "min_tokens": 1, "frequency": "none", "similarity": "off"}
    result = headlens.classify(str(tiny_bert), limit=10, stability=2, figures=False, **least)
    assert set(result.tables["heads"]["role_stability"] * 2) <= {0, 1, 2}
