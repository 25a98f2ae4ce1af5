"""The word a word points at, from few rows and columns, against word-level maps written out in full."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from fractions import Fraction

import numpy as np
import torch
from handmade import Row, Setting, call, random_maps, uniform
from hypothesis import given
from hypothesis import strategies as st
from naive_samples import Seq, make_seq
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.metrics.attention_view import CallView, peak_among
from headlens.metrics.words import places, plan

HEADS = 2


@st.composite
def sequences(draw: st.DrawFn) -> Seq:
    """Words in pieces, some of which stand apart, special tokens and tokens of no word."""
    n_words = draw(st.integers(0, 5))
    pieces = [w for w in range(n_words) for _ in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        pieces = draw(st.permutations(pieces))
        # Words are numbered in the order in which they begin.
        order = list(dict.fromkeys(pieces))
        pieces = [order.index(w) for w in pieces]
    start, end, loose = (draw(st.integers(0, 1)) for _ in range(3))
    word = [-1] * start + pieces + [-1] * (loose + end)
    word = word or [-1]
    return make_seq(word, cls=[0] * start, sep=[len(word) - 1] * end)


def all_arcs(tokens: Tokens) -> Tensor:
    """Every word governs every other one."""
    found = [(b, d, h, 0) for b, n in enumerate(tokens.n_words.tolist()) for d in range(n) for h in range(n) if d != h]
    return torch.tensor(found, dtype=torch.int64).view(-1, 4)


def view_of(rows: list[Row], stack: str, *, arcs: bool, rarity: bool) -> CallView:
    one = call(rows, Setting(stack))  # type: ignore[arg-type]
    assert one.queries is not None
    assert one.keys is not None
    ranks = torch.ones_like(one.keys.n_pieces) if rarity else None
    keys = dataclasses.replace(one.keys, arcs=all_arcs(one.keys) if arcs else None, rarity=ranks)
    queries = keys if stack != "cross" else one.queries
    return CallView(dataclasses.replace(one, queries=queries, keys=keys))


def in_full(view: CallView, *, others: bool) -> Tensor:
    """First token of every row's target, from the whole word-level map."""
    units, asked = view.key_words, view.queried
    candidates = units.tokens.word >= 0
    if others:
        candidates = candidates[:, None] & ~torch.eye(candidates.shape[1], dtype=torch.bool)
    target = peak_among(view.word_weights, candidates).key  # (batch, heads, query units)
    unit = view.query_words.of_word[asked.plan.sentence, asked.plan.word]
    found = target[asked.plan.sentence, :, unit]
    first = torch.full(units.tokens.shape, -1)
    for b, t in (units.unit >= 0).nonzero().tolist():
        u = units.unit[b, t]
        first[b, u] = t if first[b, u] < 0 else first[b, u]
    return torch.where(found < 0, -1, first[asked.plan.sentence[:, None], found.clamp(min=0)])


@given(
    seqs=st.lists(sequences(), min_size=1, max_size=4),
    targets=st.lists(sequences(), min_size=4, max_size=4),
    stack=st.sampled_from(["encoder", "decoder", "cross"]),
    asks=st.sampled_from([(True, False), (False, True), (True, True)]),
    seed=st.integers(0, 999),
)
def test_targets_are_those_of_the_full_word_level_map(
    seqs: list[Seq], targets: list[Seq], stack: str, asks: tuple[bool, bool], seed: int
) -> None:
    rng, rows = np.random.default_rng(seed), []
    for seq, target in zip(seqs, targets, strict=False):
        queries = target if stack == "cross" else seq
        weights = random_maps(rng, HEADS, len(queries), len(seq), causal=stack == "decoder")
        rows.append(Row(weights * (rng.random(weights.shape) < 0.8), queries, seq))
    view = view_of(rows, stack, arcs=asks[0] and stack != "cross", rarity=asks[1] or stack == "cross")
    assert torch.equal(view.word_targets, in_full(view, others=False))
    if stack != "cross":
        assert torch.equal(view.other_targets, in_full(view, others=True))
    assert torch.equal(view.word_targets, in_full(view, others=False))


@given(seed=st.integers(0, 10**6), near=st.integers(-2, 2), pieces=st.integers(2, 4))
def test_pieces_are_added_so_exactly_that_neighbouring_numbers_are_told_apart(
    seed: int, near: int, pieces: int
) -> None:
    """A word in pieces against a word whose weight is the nearest single-precision number, or one close by."""
    rng = np.random.default_rng(seed)
    parts = rng.dirichlet(np.ones(pieces)).astype(np.float32) / np.float32(3)
    single = np.float32(sum(map(Fraction, parts.tolist())))
    for _ in range(abs(near)):
        single = np.nextafter(single, np.float32(np.sign(near)))
    weights = np.zeros((1, pieces + 1, pieces + 1), dtype=np.float32)
    weights[0, :, 0], weights[0, :, 1:] = single, parts
    seq = make_seq([0, *[1] * pieces])
    view = view_of([Row(weights, seq)], "encoder", arcs=True, rarity=True)
    whole = sum(map(Fraction, parts.tolist()))
    row = view.queried.plan.row_of_word[0, 0]
    assert view.word_targets[row, 0] == (1 if whole > Fraction(float(single)) else 0)


def test_places_of_words() -> None:
    seq = make_seq([-1, 0, 1, 0, -1, 1, 2, -1], cls=[0], sep=[7])
    found = places(call([Row(uniform(), seq), Row(uniform(2), make_seq([0, 0]))]).queries)  # type: ignore[arg-type]
    assert found.first.tolist() == [[1, 2, 6], [0, 0, 0]]
    assert found.starts.nonzero().tolist() == [[0, 1], [0, 2], [0, 6], [1, 0]]
    assert torch.stack([found.sentence, found.word, found.token]).T.tolist() == [[0, 0, 3], [0, 1, 5], [1, 0, 1]]


def test_only_words_that_are_asked_for_have_rows() -> None:
    seq = make_seq([-1, 0, 1, 1, 2, 3, -1], cls=[0], sep=[6])
    rows = [Row(uniform(7), seq, None, arcs=[(3, 1, 0)], rarity=[0] * 4)] * 2
    tokens = call(rows).queries
    assert tokens is not None
    found = plan(tokens, tokens)
    assert found.row_of_word.tolist() == [[-1, 0, -1, 1], [-1, 2, -1, 3]]
    assert found.token.tolist() == [2, 5, 2, 5]
    rare = dataclasses.replace(tokens, rarity=torch.tensor([[0, 0, 0, 0], [0, 2, 1, 0]]))
    assert plan(rare, rare).row_of_word.tolist() == [[-1, 0, -1, 1], [2, 3, 4, 5]]
    nothing = dataclasses.replace(tokens, rarity=None, arcs=None)
    assert plan(nothing, nothing).token.tolist() == []


def test_plans_do_not_keep_a_batch() -> None:
    tokens = call([Row(uniform(), arcs=[(0, 1, 0)])]).queries
    assert tokens is not None
    plan(tokens, tokens)
    there = weakref.ref(tokens)
    del tokens
    gc.collect()
    assert there() is None
