"""Projections and clusters that are learned from sentences with planted groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_info
from tiers import rest_slow

from headlens.analyses.sparsefinder.fitting import (
    FittedSite,
    fit_centroids,
    fit_projections,
    load_fitted,
    points_of,
    save_fitted,
)
from headlens.analyses.sparsefinder.measures import allowed_pairs, graph_counts
from headlens.analyses.sparsefinder.options import FitOptions
from headlens.analyses.sparsefinder.predictors import QueryKeyProjections, in_one_cluster, within
from headlens.analyses.sparsefinder.query_key_store import StoredBatch
from headlens.errors import OptionError, OutputError

HEADS, SIZE, GROUPS = 2, 16, 4


def sentence(seed: int, hidden: torch.Tensor, *, causal: bool = False) -> StoredBatch:
    """Queries look at keys of their own group, which two of sixteen directions tell, other ones for each head."""
    generator = torch.Generator().manual_seed(seed)
    real = torch.arange(20) < torch.tensor([[20], [5 + seed % 15]])
    kinds = torch.randint(0, GROUPS, (2, 20), generator=generator)
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])[kinds]
    vectors = []
    for _ in range(2):
        noise = torch.randn(2, HEADS, 20, SIZE - 2, generator=generator)
        told = 3 * signs[:, None].expand(2, HEADS, 20, 2)
        vectors.append(torch.cat([told, noise], dim=-1) @ hidden)
    allowed = allowed_pairs(real, real, causal=causal)
    gold = (kinds[:, None, :, None] == kinds[:, None, None, :]).expand(2, HEADS, 20, 20) & allowed
    return StoredBatch(vectors[0], vectors[1], real, real, causal=causal, weights=gold)


@pytest.fixture
def hidden() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator))[0] for _ in range(HEADS)])


@pytest.mark.parametrize("causal", rest_slow([False, True], [True]))
@pytest.mark.parametrize("shared", rest_slow([False, True]))
def test_groups_are_found(hidden: torch.Tensor, *, shared: bool, causal: bool) -> None:
    def batches() -> Iterator[StoredBatch]:
        return (sentence(seed, hidden, causal=causal) for seed in range(60))

    seen = 0

    def advance(count: int) -> None:
        nonlocal seen
        seen += count

    options = FitOptions(2, shared, epochs=3, learning_rate=0.02)
    projections, losses = fit_projections(batches, options, advance)
    assert seen == 3 * 60 * 2
    assert len(losses) == 3
    assert losses[-1] < 0.7 * losses[0], "most is learned in the first epoch"
    assert not any(p.requires_grad for p in projections.parameters())
    held = sentence(999, hidden, causal=causal)
    q, k = projections(held.queries, held.keys)
    points = points_of((*projections(own.queries, own.keys), own) for own in batches())
    centroids = fit_centroids(points, GROUPS)
    assert centroids.shape == (HEADS, GROUPS, 2)
    counts = graph_counts(held.gold, in_one_cluster(q, k, centroids), held.allowed)
    gold = graph_counts(held.gold, held.gold, held.allowed)
    if shared:  # apart, queries and keys of a group have centroids of their own where their projections differ
        assert float(counts.shares[0].min()) > 0.95
        assert float((counts.shares[1] - gold.shares[1]).abs().max()) < 0.1
    best = max(
        float(own.shares[0].mean() + own.shares[1].mean())
        for own in (graph_counts(held.gold, within(q, k, t / 10), held.allowed) for t in range(1, 40))
    )
    assert best > float(1.0 + gold.shares[1].mean()) - 0.1


def test_the_same_seed_learns_the_same(hidden: torch.Tensor) -> None:
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(5 + len(found))
        before = torch.get_rng_state()
        found.append(fit_projections(lambda: [sentence(1, hidden)], FitOptions(seed=seed))[0].weight)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_clusters_are_those_of_each_head_alone_and_found_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    points, threads = torch.randn(HEADS, 300, 3, generator=torch.Generator().manual_seed(0)), []
    fit = KMeans.fit

    def counting(self: KMeans, *args: Any) -> KMeans:
        threads.extend(pool["num_threads"] for pool in threadpool_info())
        return fit(self, *args)

    wanted = [fit(KMeans(5, n_init=1, random_state=7), head.double().numpy()).cluster_centers_ for head in points]
    before = threadpool_info()
    monkeypatch.setattr(KMeans, "fit", counting)
    found = fit_centroids(points, 5, seed=7)
    assert set(threads) == {1}
    assert threadpool_info() == before
    assert np.allclose(found.numpy(), np.stack(wanted), atol=1e-6)


def test_points_have_no_padding_and_are_a_sample(hidden: torch.Tensor) -> None:
    sentences = [sentence(seed, hidden) for seed in range(40)]
    everything = points_of(((s.queries, s.keys, s) for s in sentences), most=10**6)
    assert everything.shape == (HEADS, 2 * sum(int(s.real_queries.sum()) for s in sentences), SIZE)
    few = points_of(((s.queries, s.keys, s) for s in sentences), most=500)
    assert few.shape == (HEADS, 500, SIZE)
    known = {tuple(row.tolist()): place for place, row in enumerate(everything[0])}
    places = torch.tensor([known[tuple(row.tolist())] for row in few[0]]).double()
    total = everything.shape[1]
    # Even over all: the mean place of 500 without replacement, four standard errors.
    assert abs(float(places.mean()) / total - 0.5) < 4 * (1 / 12 / 500) ** 0.5
    assert len(set(places.tolist())) == 500
    again = points_of(((s.queries, s.keys, s) for s in sentences), most=500)
    assert torch.equal(few, again)


def test_what_cannot_be() -> None:
    with pytest.raises(OptionError, match="no sentences to learn projections from"):
        fit_projections(list)
    with pytest.raises(OptionError, match="no sentences to find clusters in"):
        points_of([])
    with pytest.raises(OptionError, match="9 clusters were asked for, but there are only 4 queries and keys"):
        fit_centroids(torch.zeros(1, 4, 2), 9)
    for wrong in ({"dimensions": 0}, {"epochs": 0}, {"margin": 0.0}, {"learning_rate": -1.0}, {"clip": float("nan")}):
        with pytest.raises(OptionError, match="--"):
            FitOptions(**wrong)  # type: ignore[arg-type]


def fitted(seed: int, *, shared: bool) -> FittedSite:
    torch.manual_seed(seed)
    centroids, routing = ({count: torch.randn(3, count, d) for count in (2, 10)} for d in (4, 8))
    return FittedSite(QueryKeyProjections(3, 8, 4, shared=shared), [0.5, 0.1 + seed], centroids, routing)


def test_what_was_learned_comes_back(tmp_path: Path) -> None:
    saved = {f"encoder.{n}": fitted(n, shared=n != 1) for n in (0, 1, 10)} | {"cross.0": fitted(7, shared=False)}
    save_fitted(tmp_path / "projections.safetensors", saved)
    read = load_fitted(tmp_path / "projections.safetensors")
    assert set(read) == set(saved)
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 6, 8)
    for site, own in saved.items():
        other = read[site]
        assert other.losses == own.losses
        for one, two in zip(own.projections(q, k), other.projections(q, k), strict=True):
            assert torch.equal(one, two)
        assert not any(p.requires_grad for p in other.projections.parameters())
        for name in ("centroids", "routing"):
            ours, theirs = getattr(own, name), getattr(other, name)
            assert set(ours) == set(theirs) == {2, 10}
            assert all(torch.equal(ours[count], theirs[count]) for count in ours)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "projections.safetensors"
    with pytest.raises(OptionError, match="cannot be read as projections"):
        load_fitted(path)
    path.write_bytes(b"nothing")
    with pytest.raises(OptionError, match="cannot be read as projections"):
        load_fitted(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(OptionError, match="it is of another kind"):
        load_fitted(path)
    with pytest.raises(OutputError):
        save_fitted(tmp_path / "projections.safetensors" / "below", {"encoder.0": fitted(0, shared=True)})
