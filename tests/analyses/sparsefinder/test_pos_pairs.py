"""Pairs of parts of speech, against counting pair by pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiers import rest_slow

from headlens.analyses.sparsefinder.contents import pos_pairs
from headlens.analyses.sparsefinder.pareto_points import joined_sites
from headlens.analyses.sparsefinder.predictors import QueryKeyProjections, distance_predictor, pattern_predictor
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore, write_tags
from headlens.attention_masks.patterns import Window
from headlens.tables.sparsefinder_tables import POS_PAIRS

WORDS = ("NOUN", "VERB", "DET", "special")
KEY = POS_PAIRS.names[3:-3][:3]


@pytest.fixture
def tagged(collected: Callable[..., QueryKeyStore], tmp_path: Path) -> QueryKeyStore:
    store = collected(tmp_path)
    for side, site in (("source", "encoder.0"), ("target", "decoder.0")):
        real = [row for batch in store.batches(site) for row in batch.real_queries]
        write_tags(
            tmp_path, side, ([WORDS[(i * i + n) % 4] for i in range(int(row.sum()))] for n, row in enumerate(real))
        )
    return store


@pytest.mark.parametrize("fixed", rest_slow([False, True], [True]))
@pytest.mark.parametrize("site", rest_slow(["encoder.1", "decoder.0", "cross.1"], ["decoder.0", "cross.1"]))
def test_pairs_one_by_one(site: str, fixed: bool, tagged: QueryKeyStore) -> None:
    first = next(tagged.batches(site))
    _, heads, _, size = first.queries.shape
    projections = QueryKeyProjections(heads, size, 3).requires_grad_(requires_grad=False)
    # Whatever the projections are, half of the pairs are nearer than the median.
    near = float(torch.cdist(*projections(first.queries, first.keys)).median())
    predictor = pattern_predictor(Window(1)) if fixed else distance_predictor(projections, near)
    found = pos_pairs(tagged, site, predictor)
    assert found.columns.tolist() == POS_PAIRS.names[3:-3]
    tags = list(tagged.tags(site))
    expected: dict[str, Counter[tuple[int, str, str]]] = {name: Counter() for name in POS_PAIRS.names[3:-3][3:]}
    for n, one in enumerate(tagged.batches(site, 1)):
        graph = predictor.graph(one).expand_as(one.weights)
        for head in range(heads):
            for i, query in enumerate(tags[n][0]):
                for j, key in enumerate(tags[n][1]):
                    if site.startswith("decoder") and j > i:
                        continue
                    place = (head, query, key)
                    weight, guess = float(one.weights[0, head, i, j]), bool(graph[0, head, i, j])
                    expected["pairs"][place] += 1
                    expected["gold"][place] += weight > 0
                    expected["predicted"][place] += guess
                    expected["found"][place] += guess and weight > 0
                    expected["weight"][place] += weight
    for name, counts in expected.items():
        assert found.set_index(KEY)[name].to_dict() == pytest.approx(dict(counts), abs=1e-5), name
    assert 0 < found["predicted"].sum() < found["pairs"].sum()
    assert found["weight"].sum() == pytest.approx(heads * sum(len(queries) for queries, _ in tags), rel=1e-2)


def test_all_sites_and_no_tags(
    tagged: QueryKeyStore, collected: Callable[..., QueryKeyStore], tmp_path_factory: pytest.TempPathFactory
) -> None:
    predictors = {site: pattern_predictor(Window(1)) for site in ("encoder.0", "cross.1")}
    table = joined_sites({site: pos_pairs(tagged, site, own) for site, own in predictors.items()})
    assert table.columns.tolist() == ["stack", "layer", *POS_PAIRS.names[3:-3]]
    assert set(zip(table["stack"], table["layer"], strict=True)) == {("encoder", 0), ("cross", 1)}
    bare = collected(tmp_path_factory.mktemp("bare"))
    assert joined_sites({site: pos_pairs(bare, site, own) for site, own in predictors.items()}).empty
