"""Keys that are drawn at random."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headlens.analyses.sparsefinder.measures import allowed_pairs
from headlens.analyses.sparsefinder.predictors import Predictor, QueryKeyVectors, random_predictor


def of_lengths(queries: list[int], keys: list[int], *, before: int = 0, causal: bool = False) -> QueryKeyVectors:
    """Sentences of so many tokens, padded; what their vectors are does not matter."""
    n, m = max(queries), max(keys)
    real = torch.arange(n) < torch.tensor(queries)[:, None], torch.arange(m) < torch.tensor(keys)[:, None]
    return QueryKeyVectors(torch.zeros(len(queries), 2, n, 3), torch.zeros(len(keys), 2, m, 3), *real, before, causal)


def drawn(predictor: Predictor, vectors: QueryKeyVectors) -> Tensor:
    """The graph of the pairs that can be looked at."""
    allowed = allowed_pairs(vectors.real_queries, vectors.real_keys, causal=vectors.causal)
    return predictor.graph(vectors) & allowed


SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=3)


@given(SIZES, st.integers(1, 15), st.booleans(), st.integers(0, 2**32 - 1))
def test_every_query_has_so_many_other_keys(sizes: list[int], count: int, causal: bool, seed: int) -> None:
    vectors = of_lengths(sizes, sizes, causal=causal)
    graph = random_predictor(count, seed).graph(vectors)
    allowed = allowed_pairs(vectors.real_queries, vectors.real_keys, causal=causal)
    assert graph.shape == (len(sizes), 2, max(sizes), max(sizes))
    for sentence, size in enumerate(sizes):
        for query in range(size):
            rows = graph[sentence, :, query]
            assert (rows.sum(dim=-1) == min(count, query if causal else size - 1)).all()
            assert not rows[:, query].any()
            assert not (rows & ~allowed[sentence, :, query]).any()


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 14))
def test_of_a_source_all_keys_are_others_but_that_in_ones_place(queries: int, keys: int, count: int) -> None:
    graph = drawn(random_predictor(count), of_lengths([queries], [keys]))[0, 0]
    for query in range(queries):
        assert int(graph[query].sum()) == min(count, keys - (query < keys))


@given(st.integers(2, 70), st.integers(1, 6), st.booleans(), st.data())
def test_what_comes_after_changes_nothing(size: int, count: int, cross: bool, data: st.DataObject) -> None:
    """So that a text can be written with a cache."""
    end = data.draw(st.integers(1, size))
    begin = data.draw(st.integers(0, end - 1))
    keys = 9 if cross else size
    whole = drawn(random_predictor(count, 5), of_lengths([size], [keys], causal=not cross))
    own = of_lengths([end - begin], [keys if cross else end], before=begin, causal=not cross)
    part = random_predictor(count, 5).graph(own)
    assert torch.equal(part[0], whole[0, :, begin:end, : part.shape[-1]])


def test_all_other_keys_are_as_likely_for_every_head() -> None:
    vectors = of_lengths([6], [6])
    graphs = torch.stack([random_predictor(2, seed).graph(vectors)[0] for seed in range(1000)]).double()
    expected = torch.full((6, 6), 2 / 5, dtype=torch.float64).fill_diagonal_(0)
    # Four standard errors of a share of 0.4 in 2,000 draws.
    assert float((graphs.mean(dim=(0, 1)) - expected).abs().max()) < 4 * math.sqrt(0.24 / 2000)
    # Heads agree as often as two draws do: of a row's ten pairs of keys in one case of ten.
    agree = (graphs[:, 0] == graphs[:, 1]).all(dim=-1).double().mean()
    assert float(agree) == pytest.approx(0.1, abs=4 * math.sqrt(0.09 / 6000))
