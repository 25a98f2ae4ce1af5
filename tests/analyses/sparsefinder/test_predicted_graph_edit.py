"""Models that look over predicted graphs alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import zoo
from torch import Tensor
from watching import Watch, run

from headlens.analyses.sparsefinder.block_masks import BlockClusters
from headlens.analyses.sparsefinder.fitting import fit_centroids
from headlens.analyses.sparsefinder.predictors import (
    Predictor,
    QueryKeyProjections,
    QueryKeyVectors,
    bucket_predictor,
    cluster_predictor,
    directions,
    distance_predictor,
    empty_predictor,
    hash_predictor,
    pattern_predictor,
    random_predictor,
)
from headlens.analyses.sparsefinder.restricted_task import PredictedGraphEdit, Sparsity
from headlens.attention.attach_edit import attach_edit
from headlens.attention.edits_and_observers import BatchTokens, Tokens
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.attention_masks.patterns import BigBird, Global, Longformer, Random, Window
from headlens.errors import OptionError

# Graphs of which a query needs nothing but its keys; the first has all pairs.
PAIRWISE: tuple[Callable[[QueryKeyProjections], Predictor], ...] = (
    lambda own: distance_predictor(own, math.inf),
    lambda own: distance_predictor(own, 0.5),
    lambda own: distance_predictor(own, 0.5) | pattern_predictor(Window(1)),
    lambda own: cluster_predictor(torch.randn(own.weight.shape[1], 3, own.weight.shape[3]), own),
    lambda own: hash_predictor(4, seed=1),
    lambda own: pattern_predictor(Window(1) | Global(1)),
    lambda own: random_predictor(1, seed=3),
    lambda own: pattern_predictor(Global(1)) | random_predictor(2),
    lambda own: empty_predictor(),
)
NAMES = [name for name in ("bert", "albert", "marian", "gpt2", "llama") if name in zoo.ZOO]


def by_hand(graphs: list[Tensor]) -> Predictor:
    """Graphs that were made by hand, one for each call in turn."""
    return Predictor(lambda _: graphs.pop(0))


def switched(name: str) -> Any:
    model = zoo.ZOO[name].build()
    switch(model, Entmax())
    return model


def watched(model: Any, name: str, *edits: PredictedGraphEdit) -> tuple[Tensor, Watch]:
    entry, watch = zoo.ZOO[name], Watch()
    with AttentionSession(model, observers=[watch], edits=edits) as session, session.batch(zoo.batch_tokens(entry)):
        return run(model, zoo.padded(entry)), watch


def golds(watch: Watch) -> dict[str, list[Tensor]]:
    found: dict[str, list[Tensor]] = {}
    for call in watch.calls:
        found.setdefault(str(call.site), []).append(call.weights > 0)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_over_graphs_that_hold_the_gold_ones_nothing_changes(name: str) -> None:
    """Sparse consistency of a whole model, and over no graph at all something does."""
    model = switched(name)
    full, watch = watched(model, name)
    generator = torch.Generator().manual_seed(0)
    drawn = {site: [torch.rand(g.shape, generator=generator) < 0.3 for g in own] for site, own in golds(watch).items()}
    more = {site: by_hand([a | b for a, b in zip(own, drawn[site], strict=True)]) for site, own in golds(watch).items()}
    restricted, _ = watched(model, name, PredictedGraphEdit(more))
    real = zoo.batch_tokens(zoo.ZOO[name])
    tokens = (real.decoder or real.encoder).real.bool()
    assert torch.allclose(restricted[tokens], full[tokens], atol=1e-6)
    none = {site: by_hand([torch.zeros_like(g) for g in own]) for site, own in golds(watch).items()}
    alone, seen = watched(model, name, PredictedGraphEdit(none))
    assert not torch.allclose(alone[tokens], full[tokens], atol=1e-3)
    for call in seen.calls:
        # Every query has one key: its own place, or the last.
        weights = call.weights.transpose(1, 2)[call.queries.real.bool()]
        assert torch.allclose(weights.max(dim=-1).values, torch.ones(()))


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_zero_where_nothing_was_predicted(name: str) -> None:
    model = switched(name)
    _, watch = watched(model, name)
    sites = list(golds(watch))
    _, seen = watched(model, name, PredictedGraphEdit({sites[0]: pattern_predictor(Window(1))}))
    for call in seen.calls:
        places = torch.arange(call.weights.shape[2])[:, None] - torch.arange(call.weights.shape[3])
        far = (places.abs() > 1) & call.queries.real.bool()[:, None, :, None]
        beyond = torch.arange(call.weights.shape[2]) >= call.keys.real.sum(1, keepdim=True)
        far &= ~beyond[:, None, :, None]
        if str(call.site) == sites[0]:
            assert not call.weights[far.expand_as(call.weights)].any()


def vectors(seed: int = 0) -> QueryKeyVectors:
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (torch.randn(2, 3, n, 8, generator=generator) for n in (9, 7))
    return QueryKeyVectors(
        queries, keys, torch.arange(9) < torch.tensor([[9], [4]]), torch.arange(7) < torch.tensor([[7], [6]])
    )


def test_every_method_gives_a_graph_and_windows_are_added() -> None:
    torch.manual_seed(0)
    projections = QueryKeyProjections(3, 8, 4)
    own = vectors()
    points = torch.cat([directions(own.queries), directions(own.keys)], dim=2).transpose(0, 1).flatten(1, 2)
    methods: dict[str, Predictor] = {
        "distance": distance_predictor(projections, 1.0),
        "bucket": bucket_predictor(projections, 3),
        "cluster": cluster_predictor(torch.randn(3, 4, 4), projections),
        "routing": cluster_predictor(fit_centroids(points, 4), top=1),
        "lsh": hash_predictor(4, rounds=2),
        "longformer": pattern_predictor(Longformer(1, 2)),
        "bigbird": pattern_predictor(BigBird(1, 1, 1)),
        "window": pattern_predictor(Window(2)),
    }
    inside = own.real_queries[:, None, :, None] & own.real_keys[:, None, None, :]
    for name, method in methods.items():
        graph, wider = (
            m.graph(own).expand(2, 3, 9, 7) & inside for m in (method, method | pattern_predictor(Window(3)))
        )
        assert graph.dtype is torch.bool
        assert graph.any(), name
        assert not (graph & ~wider).any()
        assert torch.equal(wider, (graph | pattern_predictor(Window(3)).graph(own)) & inside)


def test_no_threshold_and_one_cluster_are_everything() -> None:
    projections = QueryKeyProjections(3, 8, 4)
    for method in (
        distance_predictor(projections, math.inf),
        bucket_predictor(projections, 1),
        cluster_predictor(torch.zeros(3, 1, 4), projections),
    ):
        own = vectors()
        inside = own.real_queries[:, None, :, None] & own.real_keys[:, None, None, :]
        assert (method.graph(own) | ~inside).all()


def test_patterns_have_the_length_of_each_sentence() -> None:
    own = vectors()
    found = pattern_predictor(Longformer(0, 1)).graph(own)
    for row, (n, m) in enumerate(((9, 7), (4, 6))):
        allowed = torch.from_numpy(Longformer(0, 1).allowed(max(n, m)))[:n, :m]
        assert torch.equal(found[row, 0, :n, :m], allowed)
        assert not found[row, 0, n:].any()


def test_what_is_refused() -> None:
    model = switched("bert")
    with pytest.raises(OptionError, match=r"There is no decoder\.7 in this model"):
        AttentionSession(model, edits=[PredictedGraphEdit({"decoder.7": pattern_predictor(Window(1))})])
    session = AttentionSession(model, edits=[PredictedGraphEdit({"encoder.0": pattern_predictor(Window(1))})])
    with session, pytest.raises(OptionError, match="it was not declared which tokens are padding"):
        run(model, zoo.padded(zoo.ZOO["bert"]))


def greedy(model: Any, entry: Any, predictors: dict[str, Predictor], steps: int) -> Tensor:
    """Texts written token by token, every pass with its tokens declared."""
    inputs = zoo.padded(entry)
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    written = torch.full((len(source["input_ids"]), 1), model.config.decoder_start_token_id)
    for _ in range(steps):
        real = torch.ones_like(written, dtype=torch.bool)
        tokens = BatchTokens(Tokens.only_real(source["attention_mask"]), Tokens.only_real(real))
        with AttentionSession(model, edits=[PredictedGraphEdit(predictors)]) as session, session.batch(tokens):
            logits = model(**source, decoder_input_ids=written, use_cache=False).logits
        written = torch.cat([written, logits[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    return written


@pytest.mark.slow
def test_texts_that_are_written_over_predicted_graphs() -> None:
    """As if every prefix were read by itself, with a cache too where graphs need no other queries."""
    entry, model = zoo.ZOO["marian"], switched("marian")
    inputs = zoo.padded(entry)
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    torch.manual_seed(0)
    sites = AttentionSession(model).sites
    width = model.config.d_model
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": 1}
    options |= {"forced_eos_token_id": None, "bad_words_ids": None, "eos_token_id": 10**6}
    projections = {str(s): QueryKeyProjections(s.n_heads, width // s.n_heads, 3) for s in sites}
    texts = []
    others = (
        lambda own: bucket_predictor(own, 2),
        lambda own: distance_predictor(own, 0.5) | pattern_predictor(Random(1)),  # drawn anew for every length
        lambda own: BlockClusters(own, torch.randn(own.weight.shape[1], 2, own.weight.shape[3]), 2, 1).predictor,
    )
    for made in (*PAIRWISE, *others):
        predictors = {site: made(own) for site, own in projections.items()}
        expected = greedy(model, entry, predictors, 6)
        with torch.inference_mode(), attach_edit(model, PredictedGraphEdit(predictors, written=True)):
            texts.append(model.generate(**source, **options, use_cache=False))
            assert torch.equal(texts[-1], expected)
            if made in PAIRWISE:
                assert torch.equal(model.generate(**source, **options), expected)
            else:
                with pytest.raises(OptionError, match=r"decoder\.0: these graphs cannot be predicted for one query"):
                    model.generate(**source, **options)
    with torch.inference_mode():
        assert torch.equal(texts[0], model.generate(**source, **options))
        assert len({tuple(text.flatten().tolist()) for text in texts}) > 3, "graphs do not matter"
        told = pytest.raises(OptionError, match=r"decoder\.0: it was not declared which tokens are padding")
        with attach_edit(model, PredictedGraphEdit(predictors)), told:
            model.generate(**source, **options)


def test_what_a_failed_pass_counted_is_forgotten() -> None:
    """A batch that does not fit into memory fails somewhere in the middle, and is run again in halves."""
    model = zoo.ZOO["bert"].build()
    first, second = find_sites(model)[:2]
    pairs = torch.ones(2, 1, 3, 3, dtype=torch.bool)
    half, counted = pairs.clone(), Sparsity()
    half[..., 0] = False
    plain = Sparsity()
    for own, fails in ((counted, True), (plain, False)):
        if fails:
            own.add(first, pairs, pairs, 4)  # and then there is no memory
        for part in (slice(0, 1), slice(1, 2)):
            own.add(first, half[part], pairs[part], 4)
            own.add(second, pairs[part], pairs[part], 4)
            own.commit()
    assert counted.mean == plain.mean == pytest.approx((1 / 3 + 0) / 2)

    @counted.whole()
    def fail() -> None:
        counted.add(first, pairs, pairs, 4)
        counted.commit()
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        fail()
    assert counted.mean == plain.mean
