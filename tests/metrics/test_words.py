"""From tokens to words, against sums written out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from handmade import SENTENCE, Padding, Row, Setting, call, one_hot, random_maps, uniform
from hypothesis import given
from hypothesis import strategies as st
from naive_samples import Sample, Seq, make_seq
from naive_words import word_map

from headlens.errors import SelfCheckError
from headlens.metrics.attention_view import CallView, peak_among
from headlens.metrics.words import word_level


@st.composite
def sequences(draw: st.DrawFn, most: int = 12) -> Seq:
    """Words in one to four pieces between special tokens and tokens of no word."""
    word: list[int] = []
    special = [0] if draw(st.booleans()) else []
    word += [-1] * len(special)
    for unit in range(draw(st.integers(1, 4))):
        word += [unit] * draw(st.integers(1, 4))
        word += [-1] * draw(st.integers(0, 1))
    word = word[:most]
    end = [len(word)] if draw(st.booleans()) else []
    word += [-1] * len(end)
    punct = [t for t in range(len(word)) if t not in special + end and draw(st.integers(0, 3)) == 0]
    return make_seq(word, cls=special, sep=end, punct=punct)


@given(seq=sequences(), target=sequences(), seed=st.integers(0, 99), cross=st.booleans())
def test_words_against_written_out_sums(seq: Seq, target: Seq, seed: int, cross: bool) -> None:
    queries = target if cross else seq
    weights = random_maps(np.random.default_rng(seed), 2, len(queries), len(seq)).astype(np.float32)
    setting = Setting("cross" if cross else "encoder", padding=Padding(queries=2, keys=1, words=2))
    view = CallView(call([Row(weights, queries, seq if cross else None), Row(uniform(1), make_seq([0]))], setting))
    sample = Sample("cross" if cross else "encoder", queries, seq, weights[None])
    rows, keys = view.query_words.tokens.word[0].tolist(), view.key_words.tokens.word[0].tolist()
    for head in range(2):
        expected = word_map(sample, 0, head)
        for i, query in enumerate(rows):
            for j, key in enumerate(keys):
                if query >= 0 and key >= 0:
                    assert view.word_weights[0, head, i, j].item() == pytest.approx(expected[query, key], abs=1e-12)
    real = view.query_words.tokens.real[0]
    assert torch.allclose(view.word_weights[0, :, real].sum(-1), torch.ones(1, dtype=torch.float64), atol=1e-6)


def test_units_of_a_sentence() -> None:
    level = word_level(call([Row(uniform())]).queries)  # type: ignore[arg-type]
    assert level.unit.tolist() == [[0, 1, 1, 1, 2, 3, 4, 5]]
    assert level.n_pieces.tolist() == [[1, 3, 1, 1, 1, 1]]
    assert level.of_word.tolist() == [[1, 2, 3, 4]]
    tokens = level.tokens
    assert tokens.word.tolist() == [[-1, 0, 1, 2, 3, -1]]
    assert tokens.special.tolist() == [[True, False, False, False, False, True]]
    assert (tokens.cls.tolist()[0][0], tokens.sep.tolist()[0][5], tokens.punct.tolist()[0][4]) == (True, True, True)


def test_pieces_that_do_not_touch_are_one_word() -> None:
    seq = make_seq([0, 1, 0, -1, 1])
    level = word_level(call([Row(uniform(5), seq)]).queries)  # type: ignore[arg-type]
    assert level.unit.tolist() == [[0, 1, 0, 2, 1]]
    assert level.tokens.word.tolist() == [[0, 1, -1]]


def test_padding_is_no_unit() -> None:
    batch = call([Row(uniform()), Row(uniform(2), make_seq([0, 0]))])
    level = word_level(batch.queries)  # type: ignore[arg-type]
    assert level.unit[1].tolist() == [0, 0, *[-1] * 6]
    assert level.tokens.real[1].tolist() == [True, *[False] * 5]
    assert level.tokens.special[1].tolist() == [False, *[True] * 5]
    assert level.of_word[1].tolist() == [0, -1, -1, -1]


def test_equal_words_stay_equal() -> None:
    """Means of equal sums must tie, whichever pieces they come from; ties go to the first word."""
    seq = make_seq([0, 0, 0, 1, 2])
    splits = [(a, b, 96 - a - b) for a in range(65) for b in range(65) if 0 <= 96 - a - b <= 64]
    rows = []
    for split in splits:
        weights = np.zeros((1, 5, 5))
        weights[0, :3, 3], weights[0, :3, 4] = np.array(split) / 64, 1 - np.array(split) / 64
        rows.append(Row(weights, seq))
    found = CallView(call(rows)).word_weights[:, 0, 0, 1:]
    assert (found == 0.5).all()


def test_level_of_the_view() -> None:
    one = call([Row(one_hot(lambda q: q))])
    assert CallView(one).weights.shape == (1, 1, 8, 8)
    assert CallView(one, "word").weights.shape == (1, 1, 6, 6)
    assert CallView(one, "word").queries.shape == (1, 6)


def test_low_precision_is_raised_before_anything_is_added() -> None:
    view = CallView(call([Row(uniform())], Setting(dtype=torch.bfloat16)))
    assert view.weights.dtype == torch.float32


def test_a_call_without_weights_or_tokens_is_refused() -> None:
    one = call([Row(uniform())])
    for missing in ("weights", "queries", "keys"):
        with pytest.raises(SelfCheckError, match=r"encoder\.0: a metric needs attention weights and the tokens"):
            CallView(dataclasses.replace(one, **{missing: None}))


def test_first_of_several_peaks() -> None:
    weights = torch.tensor([[[[0.2, 0.4, 0.4, 0.0]]]])
    assert peak_among(weights, torch.tensor([[True] * 4])).key.item() == 1
    assert peak_among(weights, torch.tensor([[True, False, True, True]])).key.item() == 2
    nothing = peak_among(weights, torch.zeros(1, 4, dtype=torch.bool))
    assert nothing.weight.item() == -1


def test_available_keys() -> None:
    rows = [Row(uniform()), Row(uniform(2), make_seq([0, 1]))]
    assert CallView(call(rows)).available.tolist() == [[8] * 8, [2] * 8]
    causal = CallView(call(rows, Setting("decoder"))).available
    assert causal[0].tolist() == list(range(1, 9))
    assert causal[1, :2].tolist() == [1, 2]
    assert len(SENTENCE) == 8
