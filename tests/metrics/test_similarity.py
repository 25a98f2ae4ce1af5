"""Distances between heads, their embedding and their clusters."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import naive_metrics
import numpy as np
import pytest
from handmade import Row, Setting, call, heads, one_hot, random_maps, uniform
from hypothesis import given
from hypothesis import strategies as st
from naive_samples import Sample, make_seq
from scipy.spatial.distance import jensenshannon, pdist, squareform
from sklearn import manifold

from headlens.attention.edits_and_observers import AttentionCall
from headlens.metrics.similarity import HeadSimilarity, classical_mds, clusters

RNG = np.random.default_rng


def watched(*passes: list[AttentionCall]) -> HeadSimilarity:
    sites = list(dict.fromkeys(c.site for calls in passes for c in calls))
    similarity = HeadSimilarity(sites)
    for calls in passes:
        for one in calls:
            similarity.observe(one)
        similarity.commit()
    return similarity


def test_known_divergences() -> None:
    maps = heads(one_hot(lambda _: 1), one_hot(lambda _: 1), one_hot(lambda _: 5), uniform())
    divergence = watched([call([Row(maps)])]).divergence("encoder")
    to_uniform = jensenshannon([1, *[0] * 7], [1 / 8] * 8) ** 2
    expected = [
        [0, 0, math.log(2), to_uniform],
        [0, 0, math.log(2), to_uniform],
        [math.log(2), math.log(2), 0, to_uniform],
        [to_uniform] * 3 + [0],
    ]
    np.testing.assert_allclose(divergence, expected, atol=1e-7)


def two_layers(seed: int, *, sampled: bool) -> list[list[AttentionCall]]:
    rng = RNG(seed)
    seqs = [make_seq(range(n)) for n in (3, 6, 5)]
    maps = [[random_maps(rng, 2, len(s)) for s in seqs] for _ in range(2)]
    chosen = [2, 0, 4] if sampled else [None] * 3
    found = []
    for part in ([0, 2], [1]):
        rows = [[Row(maps[layer][i], seqs[i], sampled=chosen[i]) for i in part] for layer in range(2)]
        found.append([call(rows[layer], Setting(layer=layer)) for layer in range(2)])
    return found


def test_all_queries_against_scipy() -> None:
    passes = two_layers(1, sampled=False)
    expected = np.zeros((4, 4))
    for calls in passes:
        for sentence, length in enumerate(calls[0].queries.real.sum(1).tolist()):  # type: ignore[union-attr]
            own = np.concatenate([c.weights[sentence].double().numpy() for c in calls])  # type: ignore[index]
            for i, j in np.ndindex(4, 4):
                expected[i, j] += sum(jensenshannon(own[i, q], own[j, q]) ** 2 for q in range(length))
    np.testing.assert_allclose(watched(*passes).divergence("encoder"), expected / 14, atol=1e-6)


def test_sampled_queries_equal_all_of_a_corpus_of_those_queries() -> None:
    sampled = two_layers(2, sampled=True)
    exhaustive = []
    for calls, chosen in zip(two_layers(2, sampled=False), ([2, 4], [0]), strict=True):
        cut = []
        for one in calls:
            assert one.weights is not None
            assert one.queries is not None
            weights = one.weights[range(len(chosen)), :, chosen][:, :, None]
            real = one.queries.real[:, :1]
            cut.append(dataclasses.replace(one, weights=weights, queries=dataclasses.replace(one.queries, real=real)))
        exhaustive.append(cut)
    first, second = watched(*sampled), watched(*exhaustive)
    assert first.totals.of("similarity")["encoder"]["tokens"] == 3
    np.testing.assert_allclose(first.divergence("encoder"), second.divergence("encoder"), atol=1e-12)


def test_sentences_without_a_sample_are_left_out() -> None:
    rows = [Row(random_maps(RNG(3), 2, 8), sampled=s) for s in (3, -1)]
    both, one = watched([call(rows)]), watched([call(rows[:1])])
    np.testing.assert_array_equal(both.divergence("encoder"), one.divergence("encoder"))


def test_naive_distances() -> None:
    rng = RNG(4)
    seq = make_seq(range(5))
    weights = random_maps(rng, 3, 5).astype(np.float32)
    similarity = watched([call([Row(weights, seq)])])
    naive = naive_metrics.jensen_shannon([Sample("encoder", seq, seq, weights[None])])
    np.testing.assert_allclose(np.sqrt(similarity.divergence("encoder")), naive, atol=1e-4)


def test_table_has_both_ways_of_every_pair() -> None:
    table = watched(*two_layers(5, sampled=True)).table()
    assert table is not None
    rows = table.rows
    assert len(rows) == 4 * 3
    key = ["layer", "head", "other_layer", "other_head"]
    values = {tuple(r[k] for k in key): r["js_divergence"] for r in rows.to_dict("records")}
    assert all(values[c, d, a, b] == v for (a, b, c, d), v in values.items())
    np.testing.assert_allclose(rows["js_distance"] ** 2, rows["js_divergence"])
    assert set(rows["tokens"]) == {3}


def test_embedding_has_a_row_per_head() -> None:
    table = watched(*two_layers(6, sampled=False)).embedding()
    assert table is not None
    assert [str(h) for h in table.heads] == [f"encoder.{i}.{h}" for i in range(2) for h in range(2)]
    assert sorted(table.rows["similarity_leaf"]) == [0, 1, 2, 3]


def test_stacks_are_compared_apart_and_an_incomplete_one_not_at_all() -> None:
    row = Row(random_maps(RNG(7), 2, 8))
    encoder, cross = call([row]), call([row], Setting("cross"))
    similarity = HeadSimilarity([encoder.site, cross.site, call([row], Setting("decoder")).site])
    similarity.observe(encoder)
    similarity.observe(cross)
    similarity.commit()
    assert similarity.stacks == ["encoder", "cross"]
    similarity.observe(cross)
    similarity.commit()
    tokens = similarity.totals.of("similarity")
    assert (tokens["encoder"]["tokens"], tokens["cross"]["tokens"]) == (8, 16)


def test_nothing_seen() -> None:
    similarity = HeadSimilarity([])
    similarity.commit()
    assert similarity.table() is None
    assert similarity.embedding() is None
    assert similarity.stacks == []


def test_calls_without_weights_or_tokens_are_passed_by() -> None:
    one = call([Row(random_maps(RNG(8), 2, 8))])
    for missing in ("weights", "queries"):
        assert watched([dataclasses.replace(one, **{missing: None})]).table() is None


@given(seed=st.integers(0, 999), n=st.integers(2, 9))
def test_planar_points_are_reproduced(seed: int, n: int) -> None:
    distance = squareform(pdist(RNG(seed).normal(size=(n, 2))))
    points = classical_mds(distance)
    np.testing.assert_allclose(squareform(pdist(points)), distance, atol=1e-6)
    np.testing.assert_allclose(points.mean(0), 0, atol=1e-9)


@pytest.mark.skipif(not hasattr(manifold, "ClassicalMDS"), reason="scikit-learn has it from 1.8 on")
def test_embedding_against_sklearn() -> None:
    distance = squareform(pdist(RNG(11).normal(size=(12, 5))))
    expected = manifold.ClassicalMDS(n_components=2, metric="precomputed").fit_transform(distance)
    found = classical_mds(distance)
    for axis in range(2):
        sign = np.sign(expected[:, axis] @ found[:, axis])
        np.testing.assert_allclose(found[:, axis], sign * expected[:, axis], atol=1e-9)


def test_signs_are_fixed() -> None:
    points = classical_mds(squareform(pdist(RNG(12).normal(size=(7, 3)))))
    for axis in points.T:
        assert axis[np.abs(axis).argmax()] > 0


@pytest.mark.parametrize("n", [1, 2])
def test_few_heads(n: int) -> None:
    distance = np.ones((n, n)) - np.eye(n)
    points = classical_mds(distance)
    assert points.shape == (n, 2)
    assert np.isfinite(points).all()
    cluster, leaf = clusters(distance)
    assert sorted(leaf) == list(range(n))
    assert len(cluster) == n


def groups(sizes: list[int]) -> Any:
    centres = np.repeat(np.arange(len(sizes)) * 100.0, sizes)
    return squareform(pdist((centres + RNG(0).normal(size=len(centres)))[:, None]))


def test_clusters_are_found() -> None:
    cluster, leaf = clusters(groups([3, 2, 4]), most=3)
    assert [len(set(cluster[a:b])) for a, b in ((0, 3), (3, 5), (5, 9))] == [1, 1, 1]
    assert set(cluster) == {1, 2, 3}
    # members of a cluster are neighbours among the leaves
    assert all(np.ptp(leaf[cluster == c]) == (cluster == c).sum() - 1 for c in (1, 2, 3))


def test_at_most_so_many_clusters() -> None:
    assert len(set(clusters(groups([1] * 12))[0])) <= 8
