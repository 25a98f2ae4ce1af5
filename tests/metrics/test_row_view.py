"""Metrics of rows: the sums of every metric are those that it makes of weights, for all layers of a stack at once."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import zoo
from few_annotations import annotated
from row_reference import RowsOfWeights, member
from tiers import rest_slow
from watching import run

from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, CallContext, Observer, Tokens
from headlens.attention.rows import TILE
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import SelfCheckError
from headlens.metrics import batch_cache
from headlens.metrics.attention_view import CallView, special_keys
from headlens.metrics.batch_cache import copied_with_facts
from headlens.metrics.metric import MetricSettings, Statistics
from headlens.metrics.metric_registry import registered_metrics
from headlens.metrics.row_view import RowView, room_for, row_facts, word_tiles
from headlens.metrics.similarity import HeadSimilarity, chosen_queries
from headlens.metrics.syntax import Syntax

RELATIONS = ("nsubj", "obj")


class Both(Observer):
    """Shows one observer the weights, and another one the rows."""

    needs_projection = True

    def __init__(self, of_weights: Observer, of_rows: Observer) -> None:
        self.of_weights, self.of_rows = of_weights, of_rows

    def observe(self, call: AttentionCall) -> None:
        context = CallContext(**{field.name: getattr(call, field.name) for field in fields(CallContext)})
        assert self.of_rows.reads_rows(context) or call.window is not None
        assert call.distribution is not None
        assert call.queries is not None
        assert call.keys is not None
        self.of_weights.observe(call)
        if not self.of_rows.reads_rows(context):
            self.of_rows.observe(call)
            return
        rows = RowsOfWeights(call.distribution, call.queries, call.keys, call.to_tokens)
        self.of_rows.observe(replace(call, weights=None, rows=rows))

    def prepare(self) -> None:
        self.of_weights.prepare()
        self.of_rows.prepare()

    def commit(self) -> None:
        self.of_weights.commit()
        self.of_rows.commit()


def both(name: str, one: Observer, other: Observer) -> None:
    """A batch of a model, seen by both."""
    entry = zoo.ZOO[name]
    declared = zoo.batch_tokens(entry)
    tokens = (t and annotated(t, n) for n, t in enumerate((declared.encoder, declared.decoder)))
    session = AttentionSession(entry.build().eval(), observers=[Both(one, other)], kernel="eager")
    with session, session.batch(BatchTokens(*tokens)):
        run(session.model, zoo.padded(entry))


@pytest.mark.parametrize("exclude_self", rest_slow([False, True]))
@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "gpt-oss"])
def test_every_metric_makes_of_rows_what_it_makes_of_weights(name: str, exclude_self: bool) -> None:
    settings = MetricSettings(RELATIONS, exclude_self)
    metrics, sites = [m.of(settings) for m in registered_metrics()], find_sites(zoo.ZOO[name].build())
    of_weights, of_rows = Statistics(metrics, sites), Statistics(metrics, sites)
    both(name, of_weights, of_rows)
    assert set(of_weights.totals) == set(of_rows.totals)
    measured = {metric for metric, *_ in of_weights.totals}
    assert {"confidence", "entropy", "positions", "mass", "norms", "rare"} <= measured
    if name != "marian":
        assert {"syntax", "same_word", "coreference", "pos"} <= measured
    assert ("learned_sink" in measured) == (name == "gpt-oss")
    found = of_rows.totals.arrays()
    for key, expected in of_weights.totals.arrays().items():
        np.testing.assert_allclose(found[key], expected, rtol=1e-5, atol=1e-6, err_msg=key)
        assert found[key].dtype == expected.dtype


def test_similarity_makes_of_rows_what_it_makes_of_weights() -> None:
    sites = find_sites(zoo.ZOO["bert"].build())
    of_weights, of_rows = HeadSimilarity(sites), HeadSimilarity(sites)
    both("bert", of_weights, of_rows)
    np.testing.assert_allclose(of_rows.divergence("encoder"), of_weights.divergence("encoder"), rtol=1e-5, atol=1e-7)


def test_who_needs_weights_says_so() -> None:
    class Weights(Syntax):
        name = "weights"

        def needs(self, queries: Tokens, keys: Tokens) -> None:
            del queries, keys

    tokens = zoo.tokens((5, 3))
    sites = find_sites(zoo.ZOO["bert"].build())
    assert Statistics([Weights()], sites).needs("encoder", tokens, tokens) is None
    assert Statistics([Syntax()], sites).needs("encoder", tokens, tokens) is not None
    assert Statistics([Syntax()], sites, level="word").needs("encoder", tokens, tokens) is None
    pair = tokens.annotated(segment=torch.zeros(tokens.shape, dtype=torch.int64), links=torch.tensor([[0, 0, 1, 1]]))
    for metric in (kind.of(MetricSettings(RELATIONS)) for kind in registered_metrics()):
        needs = Statistics([metric], sites).needs("encoder", pair, pair)
        assert (needs is None) == (metric.name in ("pair", "alignment"))


def test_what_nobody_said_they_need_is_not_there() -> None:
    tokens = zoo.tokens((5, 3))
    nothing = torch.empty(0)
    call = AttentionCall(
        find_sites(zoo.ZOO["bert"].build())[0], nothing, nothing, nothing, tokens, tokens,
        causal=False, weights=None, output=nothing,
    )  # fmt: skip
    needs = Statistics([], []).needs("encoder", tokens, tokens)
    assert needs is not None
    view: CallView = RowView(call, room_for(needs, tokens, tokens, 2), 2)
    for name in ("weights", "peak", "highest", "entropies", "distances", "token_received", "word_targets"):
        with pytest.raises(SelfCheckError, match="asks for"):
            getattr(view, name)


@pytest.mark.parametrize("n_words", [0, 1, TILE - 1, TILE + 1, 3 * TILE])
def test_tiles_have_every_token_of_every_word_once(n_words: int) -> None:
    generator = torch.Generator().manual_seed(n_words)
    lengths = [torch.randint(1, 5, (n,), generator=generator) for n in (n_words, n_words // 2)]
    rows = [torch.arange(len(n)).repeat_interleave(n) for n in lengths]
    word = torch.nn.utils.rnn.pad_sequence([torch.cat([torch.tensor([-1]), row]) for row in rows], True, -1)
    tokens = replace(
        Tokens.only_real(torch.ones_like(word)),
        word=word,
        n_pieces=torch.nn.utils.rnn.pad_sequence(lengths, True, 0),
    )
    tiles = word_tiles(tokens)
    seen = torch.zeros_like(member(tokens))
    for sentence in range(2):
        for tile, (start, stop) in enumerate(zip(tiles.starts[sentence], tiles.starts[sentence, 1:], strict=False)):
            for step in range(int(start), int(stop)):
                assert int(tiles.slots[sentence, step]) == 2 * tile + (step > start)
                for token, of_word in zip(tiles.tokens[sentence, step], tiles.words[sentence, tile], strict=True):
                    if token >= 0:
                        seen[sentence, token, of_word] += 1
    assert torch.equal(seen, member(tokens))
    assert int(tiles.starts[0, -1]) <= (int(lengths[0].max()) if n_words else 0) * max(1, -(-n_words // TILE))
    facts = row_facts(replace(Statistics([], []).needs("encoder", tokens, tokens), words=True), tokens, tokens)
    assert facts.key_words is tiles


def test_what_was_looked_at_ahead_is_with_the_batch_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied any more when metrics, kernels and the comparison of heads ask."""
    sites = find_sites(zoo.ZOO["marian"].build())
    metrics = [m.of(MetricSettings(RELATIONS)) for m in registered_metrics()]
    statistics, similarity = Statistics(metrics, sites), HeadSimilarity(sites)
    before = annotated(zoo.tokens((4, 4)), 2)
    needs = statistics.needs("encoder", before, before)
    host = BatchTokens(annotated(zoo.tokens((7, 4)), 0), annotated(zoo.tokens((5, 6)), 1))
    statistics.look_ahead(host)
    similarity.look_ahead(host)
    assert statistics._needs["encoder"] == (before, before, needs), "the batch at hand is another one"
    _, tokens = copied_with_facts({}, host, torch.device("meta"))
    monkeypatch.setattr(batch_cache, "copied_together", None)
    for site in sites:
        queries, keys = tokens.of(site)
        assert queries is not None
        assert keys is not None
        needs = statistics.needs(site.stack, queries, keys)
        assert needs is not None
        assert row_facts(needs, queries, keys).key_flags.device.type == "meta"
        assert special_keys(keys) is not None
        chosen_queries(queries)
        for metric in metrics:
            if site.stack in metric.stacks:
                metric.facts(queries, keys)
