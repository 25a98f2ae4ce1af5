"""What clusters hold, against counting token by token, and what they tell, against closed forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import rest_slow

from headlens.analyses.sparsefinder.contents import cluster_contents, information
from headlens.analyses.sparsefinder.fitting import FittedSite, fit_site
from headlens.analyses.sparsefinder.options import FitOptions, ParameterGrid
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore, write_tags
from headlens.tables.sparsefinder_tables import CLUSTERS

GRID = ParameterGrid(windows=(0,), thresholds=(1.0,), groups=(2, 4))
WORDS = ("NOUN", "VERB", "DET", "special")


@pytest.fixture
def tagged(collected: Callable[..., QueryKeyStore], tmp_path: Path) -> QueryKeyStore:
    store = collected(tmp_path)
    for side, site in (("source", "encoder.0"), ("target", "decoder.0")):
        real = [row for batch in store.batches(site) for row in batch.real_queries]
        write_tags(tmp_path, side, ([WORDS[(i + n) % 4] for i in range(int(row.sum()))] for n, row in enumerate(real)))
    return store


def fitted(store: QueryKeyStore, site: str) -> FittedSite:
    return fit_site(lambda: store.batches(site), GRID, FitOptions(2, epochs=1))


@pytest.mark.parametrize("site", rest_slow(["encoder.1", "decoder.0", "cross.1"], ["cross.1"]))
def test_every_token_is_counted_where_it_is_nearest(site: str, tagged: QueryKeyStore) -> None:
    own = fitted(tagged, site)
    found = cluster_contents(tagged, site, own, 4)
    assert found.columns.tolist() == CLUSTERS.names[3:-1]
    counts: Counter[tuple[int, int, str, str]] = Counter()
    tags = list(tagged.tags(site))
    centroids = own.centroids[4]
    for n, pairs in enumerate(tagged.batches(site, 1)):
        queries, keys = own.projections(pairs.queries, pairs.keys)
        for side, vectors, words in (("query", queries, tags[n][0]), ("key", keys, tags[n][1])):
            assert vectors.shape[2] == len(words)
            for head in range(vectors.shape[1]):
                for place, word in enumerate(words):
                    apart = [float((vectors[0, head, place] - c).square().sum()) for c in centroids[head]]
                    counts[head, int(np.argmin(apart)), side, word] += 1
    assert found.set_index(CLUSTERS.names[3:-1][:4])["count"].to_dict() == dict(counts)
    assert found.groupby(["head", "cluster", "side"])["share"].sum().to_numpy() == pytest.approx(1)


def test_without_tags_there_is_nothing(collected: Callable[..., QueryKeyStore], tmp_path: Path) -> None:
    store = collected(tmp_path)
    assert cluster_contents(store, "encoder.0", fitted(store, "encoder.0"), 2).empty


def table(counts: dict[tuple[int, str], int]) -> pd.DataFrame:
    rows = [(0, cluster, "query", tag, count, np.nan) for (cluster, tag), count in counts.items()]
    return pd.DataFrame(rows, columns=CLUSTERS.names[3:-1])


def test_information_of_closed_forms() -> None:
    """All, nothing, and a half: clusters that tell nouns from others, but not verbs from determiners."""
    big = 10**6
    assert information(table({(0, "NOUN"): big, (1, "VERB"): big}))[0] == pytest.approx(1, abs=1e-5)
    alike = {(c, t): big for c in range(2) for t in ("NOUN", "VERB")}
    assert information(table(alike))[0] == pytest.approx(0, abs=1e-5)
    half = {(0, "NOUN"): 2 * big, (1, "VERB"): big, (1, "DET"): big}
    assert information(table(half))[0] == pytest.approx(np.log(2) / (1.5 * np.log(2)), abs=1e-5)
    more = {(0, "special"): 5 * big, (1, "unknown"): 7 * big}
    assert information(table(half | more))[0] == information(table(half))[0]
    assert np.isnan(information(table({(0, "NOUN"): 3, (1, "NOUN"): 4, (1, "special"): 2}))[0])


def test_chance_tells_nothing() -> None:
    """Clusters drawn at random seem to tell something of few tokens; on average the correction takes it away."""
    generator = np.random.default_rng(0)
    told, raw = [], []
    for _ in range(30):
        drawn = Counter(
            zip(generator.integers(4, size=300).tolist(), generator.choice(WORDS[:3], 300).tolist(), strict=True)
        )
        own = table(dict(drawn))
        told.append(information(own)[0])
        joint = own.pivot_table(index="tag", columns="cluster", values="count", fill_value=0).to_numpy() / 300
        tags = joint.sum(1)
        raw.append((joint * np.log(joint / np.outer(tags, joint.sum(0)))).sum() / -(tags * np.log(tags)).sum())
    assert np.mean(told) < np.mean(raw) / 2
    assert np.mean(raw) == pytest.approx(3 * 2 / (2 * 300) / np.log(3), rel=0.15)


@settings(max_examples=settings().max_examples // 2)
@given(st.dictionaries(st.tuples(st.integers(0, 3), st.sampled_from(WORDS[:3])), st.integers(1, 50), min_size=2))
def test_information_is_a_share(counts: dict[tuple[int, str], int]) -> None:
    (value,) = information(table(counts))
    assert np.isnan(value) == (len({tag for _, tag in counts}) < 2)
    assert np.isnan(value) or 0 <= value <= 1
