"""What several metrics share of a call, against plain passes over all weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from handmade import Padding, Row, Setting, call, random_maps
from hypothesis import given
from hypothesis import strategies as st
from naive_samples import Seq, make_seq

from headlens.metrics import attention_view as views
from headlens.metrics.attention_view import CallView, peak_among, special_keys


@st.composite
def sequences(draw: st.DrawFn) -> Seq:
    """Special tokens anywhere, of any kind, or none."""
    kinds = draw(st.lists(st.sampled_from(["word", "word", "cls", "sep", "bos", "eos"]), min_size=1, max_size=9))
    n_words = 0
    word, found = [], {"cls": [], "sep": [], "bos": [], "eos": []}
    for place, kind in enumerate(kinds):
        word.append(n_words if kind == "word" else -1)
        n_words += kind == "word"
        if kind != "word":
            found[kind].append(place)
    return make_seq(word, **found)


@given(
    seqs=st.lists(sequences(), min_size=1, max_size=4),
    most=st.sampled_from([0, 2, 8]),
    padding=st.integers(0, 3),
    learning=st.booleans(),
    seed=st.integers(0, 999),
)
def test_peaks_are_those_of_a_pass_over_all_weights(
    seqs: list[Seq], most: int, padding: int, learning: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = [Row(random_maps(rng, 2, len(s)) * (rng.random((2, len(s), len(s))) < 0.7), s) for s in seqs]
    one = call(rows, Setting(padding=Padding(keys=padding)))
    assert one.weights is not None
    before = one.weights.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "MOST_SPECIAL", most)
        view = CallView(dataclasses.replace(one, weights=one.weights.requires_grad_(learning)))
        with torch.no_grad():
            peak, (between, everywhere) = view.peak, view.highest
    real = view.queries.real[:, None].expand(peak.key.shape)
    expected = peak_among(before, ~view.keys.special)
    assert torch.equal(peak.key[real], expected.key[real])
    assert torch.equal(peak.weight[real], expected.weight[real].clamp(min=0))
    separators = view.keys.real & ~view.keys.separator
    assert torch.equal(between[real], peak_among(before, separators).weight[real].clamp(min=0))
    assert torch.equal(everywhere[real], before.amax(-1)[real])
    assert torch.equal(one.weights, before)


def test_padding_is_never_a_peak() -> None:
    """A row that is masked throughout is uniform, over padding too."""
    seq = make_seq([-1, 0, -1], cls=[0], sep=[2])
    only_special = make_seq([-1, -1], cls=[0], sep=[1])
    one = call([Row(np.full((1, 3, 3), 0.2), seq), Row(np.full((1, 2, 2), 0.2), only_special)])
    assert one.weights is not None
    view = CallView(dataclasses.replace(one, weights=torch.full_like(one.weights, 0.2)))
    assert view.peak.key[0, 0].tolist() == [1, 1, 1]
    assert view.peak.key[1, 0, :2].tolist() == [-1, -1]


def test_special_keys_stand_in_order_and_short_lists_are_filled_up() -> None:
    seqs = [make_seq([-1, 0, -1, 1, -1], cls=[0], sep=[2, 4]), make_seq([0, -1], eos=[1])]
    found = special_keys(call([Row(np.ones((1, len(s), len(s))), s) for s in seqs]).keys)  # type: ignore[arg-type]
    assert found is not None
    assert found.token.tolist() == [[0, 2, 4], [1, 1, 1]]
    assert found.separator.tolist() == [[False, True, True], [True, True, True]]


@pytest.mark.parametrize("seqs", [[make_seq([-1] * 9, sep=range(9))], [make_seq([0]), make_seq([-1], cls=[0])]])
def test_many_special_keys_or_sentences_without_any_are_looked_at_in_full(seqs: list[Seq]) -> None:
    keys = call([Row(np.ones((1, len(s), len(s))), s) for s in seqs]).keys
    assert special_keys(keys) is None  # type: ignore[arg-type]
