"""Attention that goes to no token: rows of learned sinks, made by hand and as a model gives them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from handmade import PROJECTION, Setting, call, observed
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from headlens.attention import session as session_module
from headlens.attention.edits_and_observers import AttentionCall, Observer
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import UnsupportedModelError
from headlens.metrics.confidence import Confidence
from headlens.metrics.entropy import Entropy
from headlens.metrics.metric import Metric, Statistics
from headlens.metrics.metric_registry import registered_metrics
from headlens.metrics.norms import Norms
from headlens.metrics.sink import LearnedSink

from .test_metric import METRICS, N_HEADS, corpora, flat

SINKS = (0.0, 2.0, 4.0, 6.0)


class Calls(Observer):
    """Keeps every call."""

    def __init__(self) -> None:
        self.seen: list[AttentionCall] = []

    def observe(self, call: AttentionCall) -> None:
        self.seen.append(call)


def with_rest(given: AttentionCall, rest: Tensor) -> AttentionCall:
    """The same attention over tokens, less what goes to none."""
    assert given.weights is not None
    return dataclasses.replace(given, weights=given.weights * (1 - rest[..., None]), to_tokens=1 - rest)


@given(corpus=corpora, seed=st.integers(0, 10**6), level=st.sampled_from(["token", "word"]))
def test_whatever_goes_to_no_token_changes_no_share_of_tokens(corpus: Any, seed: int, level: Any) -> None:
    """Every metric but the norms, of several calls measured together, too."""
    stack, rows = corpus
    plain = call(rows, Setting(stack))
    rest = torch.rand(plain.weights.shape[:3], generator=torch.Generator().manual_seed(seed))  # type: ignore[union-attr]
    metrics = [m for m in METRICS if not isinstance(m, Norms)]
    # Eighths keep ties: the weights are 64ths.
    found = flat(observed(metrics, [with_rest(plain, (rest * 8).floor() / 8)], level=level))
    expected = flat(observed(metrics, [plain], level=level))
    assert {key for key in found if key[0] != LearnedSink.name} == expected.keys()
    for key, own in expected.items():
        np.testing.assert_allclose(found[key], own, rtol=1e-5, atol=1e-6, err_msg=str(key))


@given(corpus=corpora, seed=st.integers(0, 10**6))
def test_norms_and_the_sink_against_loops(corpus: Any, seed: int) -> None:
    stack, rows = corpus
    plain = call(rows, Setting(stack))
    rest = torch.rand(plain.weights.shape[:3], generator=torch.Generator().manual_seed(seed))  # type: ignore[union-attr]
    given_rest = with_rest(plain, rest)
    sums = flat(observed([Norms(), LearnedSink()], [given_rest]))
    read, sink, n = np.zeros(N_HEADS), np.zeros(N_HEADS), 0
    for number, row in enumerate(rows):
        queries, keys = len(row.queries), len(row.keys or row.queries)
        n += queries
        for head, query in np.ndindex(N_HEADS, queries):
            sink[head] += float(rest[number, head, query])
            for key in range(keys):
                weight = float(row.weights[head, query, key]) * (1 - float(rest[number, head, query]))
                read[head] += weight * float(np.linalg.norm(PROJECTION.numpy() @ row.values[head, key]))
    site = str(plain.site)
    assert sums["learned_sink", site, "to_sink.x"] == pytest.approx(sink, rel=1e-5)
    assert (sums["learned_sink", site, "to_sink.n"] == n).all()
    assert sums["norms", site, "read"] == pytest.approx(read, rel=1e-5)


def gpt_oss() -> Any:
    """All heads of the first layer are alike but for their sinks."""
    model: Any = zoo.ZOO["gpt-oss"].build()
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        attention.sinks.copy_(torch.tensor(SINKS))
        for name in ("q_proj", "k_proj"):
            weight = getattr(attention, name).weight
            weight.copy_(weight[: attention.head_dim].repeat(len(weight) // attention.head_dim, 1))
            if getattr(attention, name).bias is not None:
                getattr(attention, name).bias.zero_()
    return model


def tables(model: Any, *metrics: Metric) -> tuple[list[Any], Statistics]:
    statistics = Statistics(metrics, find_sites(model))
    entry = zoo.ZOO["gpt-oss"]
    with (
        AttentionSession(model, observers=[statistics], kernel="fast") as session,
        session.batch(zoo.batch_tokens(entry)),
    ):
        model(**zoo.padded(entry))
    return [table.rows.query("layer == 0") for table in statistics.head_tables()], statistics


def test_heads_that_differ_in_their_sinks_alone_have_the_same_entropy() -> None:
    (found, *_), _ = tables(gpt_oss(), Entropy())
    assert found["entropy_norm"].to_numpy() == pytest.approx(found["entropy_norm"].iloc[0], rel=1e-5)
    (found, *_), _ = tables(gpt_oss(), Confidence())
    assert found["confidence_all"].to_numpy() == pytest.approx(found["confidence_all"].iloc[0], rel=1e-5)


def test_the_share_of_the_sink_is_that_of_its_logit() -> None:
    model, calls, entry = gpt_oss(), Calls(), zoo.ZOO["gpt-oss"]
    with AttentionSession(model, observers=[calls]) as session, session.batch(zoo.batch_tokens(entry)):
        model(**zoo.padded(entry))
    assert all(call.to_tokens is not None for call in calls.seen)
    first = calls.seen[0]
    key = first.key_of_heads
    scores = (first.query.double() @ key.double().transpose(2, 3)) * first.query.shape[3] ** -0.5
    ahead = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
    far = torch.ones_like(ahead).tril(-3)  # the window of this layer
    scores = scores.masked_fill(ahead | far, -torch.inf)
    mass = scores.exp().sum(-1)
    expected = (torch.tensor(SINKS).exp()[:, None] / (mass + torch.tensor(SINKS).exp()[:, None])).float()
    real = first.queries.real  # type: ignore[union-attr]
    for number in range(len(real)):
        own = 1 - first.to_tokens[number][:, real[number]]  # type: ignore[index]
        torch.testing.assert_close(own, expected[number][:, real[number]], rtol=1e-4, atol=1e-5)


def test_the_column_and_what_the_others_are_is_told() -> None:
    (found, *_), statistics = tables(gpt_oss(), LearnedSink())
    assert found["to_sink"].is_monotonic_increasing
    (note,) = statistics.notes()
    assert note.startswith("In 3 of 3 layers attention weights do not add up to 1: a part goes to no token, as with a")


def test_models_without_have_neither_column_nor_note() -> None:
    model, entry = zoo.ZOO["llama"].build(), zoo.ZOO["llama"]
    statistics = Statistics([LearnedSink()], find_sites(model))
    with AttentionSession(model, observers=[statistics]) as session, session.batch(zoo.batch_tokens(entry)):
        model(**zoo.padded(entry))
    assert statistics.head_tables() == statistics.notes() == []
    assert LearnedSink in registered_metrics()


def after_softmax_1(scores: Tensor) -> Tensor:
    """A softmax with a 1 more below the line (Miller 2023): like a sink of 0."""
    return torch.softmax(torch.nn.functional.pad(scores, (0, 1)), -1)[..., :-1]


def with_attention(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> Statistics:
    """A BERT whose scores become weights in another way, measured."""

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any) -> Any:
        scores = query @ key.transpose(2, 3) * query.shape[3] ** -0.5 + (0 if mask is None else mask)
        weights = change(scores)
        return (weights @ value).transpose(1, 2), weights

    monkeypatch.setattr(session_module, "own_attention", lambda *_: attend)
    model, entry = zoo.ZOO["bert"].build(), zoo.ZOO["bert"]
    statistics = Statistics([LearnedSink()], find_sites(model))
    with AttentionSession(model, observers=[statistics]) as session, session.batch(zoo.batch_tokens(entry)):
        model(**zoo.padded(entry))
    return statistics


def test_rows_are_summed_whatever_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = with_attention(monkeypatch, after_softmax_1).head_tables()
    assert found.rows["to_sink"].between(0.001, 0.5).all()
    assert with_attention(monkeypatch, lambda scores: torch.softmax(scores, -1)).head_tables() == []


@pytest.mark.parametrize(
    "change", [torch.sigmoid, lambda s: 2 * s.softmax(-1) - (2 * s).softmax(-1) * 1.5, lambda s: 3 * s.softmax(-1)]
)
def test_weights_that_are_no_shares_are_refused(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"encoder\.0: attention weights are no shares of a whole"):
        with_attention(monkeypatch, change)
