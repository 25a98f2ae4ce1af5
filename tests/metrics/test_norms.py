"""What heads read by norm: on values set by hand, and against transformers' own values and weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import naive_metrics
import numpy as np
import pytest
import torch
import zoo
from handmade import SENTENCE, Padding, Row, Setting, call, columns, heads, measured, one_hot, uniform
from naive_samples import Sample
from transformers_attention import run_eagerly, unpadded
from watching import run

from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, Observer
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import UnsupportedModelError
from headlens.metrics.attention_view import projected_norms
from headlens.metrics.metric import Statistics
from headlens.metrics.norms import Norms
from headlens.weights import after_heads
from headlens.weights.head_slicing import output_weight

N = len(SENTENCE)


def padded(weights: Any, values: Any) -> AttentionCall:
    """A sentence as beside a longer one: padding has values of its own, which must not count."""
    return call([Row(weights, values=values)], Setting(padding=Padding(keys=3)))


def read(weights: Any, values: Any) -> dict[str, float]:
    return columns(Norms(), padded(weights, values))


def test_a_sink_whose_value_is_nothing_reads_what_is_left() -> None:
    values = np.ones((1, N, 2))
    values[:, 0] = 0
    weights = 0.9 * one_hot(lambda _: 0) + 0.1 * one_hot(lambda q: q - 1)
    found = read(weights, values)
    assert found["norm_to_first"] == 0
    # The first token has itself before it.
    assert found["idle"] == pytest.approx(0.9 + 0.1 * 2 / N)
    assert found["norm_to_prev"] == pytest.approx(1)


def test_equal_values_give_the_shares_of_weights() -> None:
    found = read(uniform(), np.ones((1, N, 2)))
    assert found["norm_to_first"] == pytest.approx(1 / N)
    assert found["norm_to_special"] == pytest.approx(2 / N)
    assert found["norm_to_punct"] == pytest.approx(1 / N)
    assert found["norm_to_self"] == pytest.approx(1 / N)
    # The five words that are no signs, each read by the queries that are neither itself nor beside it.
    assert found["norm_to_other"] == pytest.approx(5 * (N - 3) / N**2)
    assert (found["idle"], found["norm_share"]) == (0, 1)


@pytest.mark.parametrize(
    ("key", "kinds", "other"),
    [(0, {"first", "special"}, 0), (7, {"special"}, 0), (6, {"punct"}, 0), (3, set(), (N - 3) / N)],
)
def test_all_is_read_of_one_key(key: int, kinds: set[str], other: float) -> None:
    found = read(one_hot(lambda _: key), np.ones((1, N, 2)))
    for kind in ("first", "special", "punct"):
        assert found[f"norm_to_{kind}"] == (kind in kinds)
    assert found["norm_to_other"] == pytest.approx(other)


@pytest.mark.parametrize(("value", "idle"), [(0.1, 0), (0.08, 1)])
def test_padding_has_no_part_in_the_mean_norm(value: float, idle: float) -> None:
    """Values nearer to the threshold than padding would move it, by its norms or by its number."""
    values = np.ones((1, N, 2))
    values[:, 3] = value
    threshold = 0.1 * (N - 1 + value) / N
    assert (value < threshold) == idle
    assert threshold * N / (N + 3) < value < threshold + 0.1 * 3 * 0.7 / N
    assert read(one_hot(lambda _: 3), values)["idle"] == idle


def test_heads_share_the_norms_of_their_layer() -> None:
    values = np.ones((2, N, 2)) * np.array([3.0, 1.0])[:, None, None]
    sums = measured(Norms(), padded(heads(uniform(), uniform()), values))
    assert Norms().compute(sums)["norm_share"] == pytest.approx([0.75, 0.25])


def test_nothing_is_read_where_all_values_are_nothing() -> None:
    found = read(uniform(), np.zeros((1, N, 2)))
    assert np.isnan(found["norm_to_first"])
    assert found["idle"] == 0


@pytest.mark.parametrize("name", ["bert", "albert", "marian"])
def test_against_values_of_the_model_itself(name: str) -> None:
    entry = zoo.ZOO[name]
    model, tokens = entry.build().eval(), with_signs(entry)
    make_values_uneven(model, name)
    statistics = Statistics([Norms()], find_sites(model))
    with (
        AttentionSession(model, observers=[statistics], kernel="fast") as session,
        session.batch(tokens),
        torch.no_grad(),
    ):
        run(model, zoo.padded(entry))
    heads_table = statistics.tables()["norms"].rows
    for stack, modules in heads_table.groupby("stack"):
        corpus = samples(model, name, str(stack))
        for row in modules.to_dict("records"):
            naive = naive_metrics.norms(corpus, row["layer"], row["head"])
            assert {key: row[key] for key in naive} == pytest.approx(naive, abs=1e-5)


def with_signs(entry: zoo.Entry) -> BatchTokens:
    """The tokens of the model's inputs; the second word of every sentence that has two is punctuation."""
    declared = zoo.batch_tokens(entry)
    return BatchTokens(*(t and replace(t, punct=t.word == 1) for t in (declared.encoder, declared.decoder)))


def value_layer(model: Any, name: str, module: str) -> torch.nn.Module:
    return model.get_submodule(f"{module}.{'v_proj' if name == 'marian' else 'value'}")


def make_values_uneven(model: Any, name: str) -> None:
    """Gives two keys small values, as trained models do; with random weights all norms are about the same.

    Of a sentence of four tokens in a batch of seven the second key is idle only if padding counts; the third always is.
    """
    factors = torch.tensor([1, 0.08, 0.02, 1, 1, 1, 1])[:, None]
    for module in dict.fromkeys(site.module for site in find_sites(model)):
        value_layer(model, name, module).register_forward_hook(lambda _, __, out: out * factors[: out.shape[1]])


def samples(model: Any, name: str, stack: str) -> list[Sample]:
    """Weights of transformers, and values as the value projection gives them, multiplied by W_O written out."""
    entry, kept = zoo.ZOO[name], dict[str, list[Any]]()
    sites = [site for site in find_sites(model) if site.stack == stack]
    hooks = []
    for module in dict.fromkeys(site.module for site in sites):
        layer = value_layer(model, name, module)
        hooks.append(layer.register_forward_hook(lambda _, __, out, m=module: kept.setdefault(m, []).append(out)))
    with torch.no_grad():
        run(model, zoo.padded(entry))
    for hook in hooks:
        hook.remove()
    inputs = {key: value for key, value in zoo.padded(entry).items() if key != "use_cache"}
    outputs = run_eagerly(model, inputs)
    maps = zoo.attentions(entry, outputs, stack)
    tokens = with_signs(entry)
    queries, keys = tokens.of(sites[0])
    found = []
    for i in range(len(maps[0])):
        q, k = unpadded(queries, i), unpadded(keys, i)
        values = []
        for site in sites:
            weight = zoo.projection(model, site).weight.detach().double()
            calls = kept[site.module]
            own = calls[site.layer if site.shared else 0][i, : len(k)].double().view(len(k), site.n_heads, -1)
            parts = weight.view(len(weight), site.n_heads, -1)
            values.append(torch.einsum("khd,ohd->hko", own, parts).numpy())
        weights = np.stack([m[i, :, : len(q), : len(k)].numpy() for m in maps])
        found.append(Sample(stack, q, k, weights, values=np.stack(values)))
    return found


class Outputs(Observer):
    """Norms of every head's projected output by layer, (batch, query, heads), as metrics see them."""

    needs_projection = True

    def __init__(self) -> None:
        self.norms: dict[str, torch.Tensor] = {}

    def observe(self, call: AttentionCall) -> None:
        assert call.gram is not None
        squares = torch.einsum("bqhd,hde,bqhe->bqh", call.output, call.gram, call.output)
        self.norms[str(call.site)] = squares.clamp(min=0).sqrt()

    def commit(self) -> None:
        """Keeps what was seen."""


@pytest.mark.parametrize(
    "name",
    [
        *("bert", "distilbert", "modernbert", "gpt2", "opt", "llama", "mistral", "qwen2", "qwen3", "phi", "gemma2"),
        *("gpt-oss", "t5", "bart", "m2m100"),
    ],
)
def test_what_is_projected_is_what_the_output_projection_gets(name: str) -> None:
    """Every head alone through the layer that follows it in the model itself."""
    entry = zoo.ZOO[name]
    model, seen, observer = entry.build().eval(), dict[str, torch.Tensor](), Outputs()
    for site in find_sites(model):

        def look(layer: torch.nn.Module, args: Any, site: Any = site) -> None:
            x = args[0].detach()
            parts = x.unflatten(-1, (site.n_heads, -1))
            alone = torch.stack([_only(parts, h) for h in range(site.n_heads)], -2)
            bias = layer.bias if getattr(layer, "bias", None) is not None else 0
            seen[str(site)] = (layer.forward(alone) - bias).norm(dim=-1)

        zoo.projection(model, site).register_forward_pre_hook(look)
    with AttentionSession(model, observers=[observer], kernel="eager"):
        run(model, zoo.padded(entry))
    assert observer.norms.keys() == seen.keys()
    for place, norms in observer.norms.items():
        torch.testing.assert_close(norms, seen[place], rtol=1e-4, atol=1e-5)


def _only(parts: torch.Tensor, head: int) -> torch.Tensor:
    alone = torch.zeros_like(parts)
    alone[..., head, :] = parts[..., head, :]
    return alone.flatten(-2)


def test_quantised_projections_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class Packed(torch.nn.Linear):
        """Keeps its weights in another way."""

    model = zoo.ZOO["llama"].build()
    (site, *_) = find_sites(model)
    monkeypatch.setattr(model.get_submodule(site.module), "o_proj", Packed(32, 32))
    with pytest.raises(UnsupportedModelError, match="is a Packed, whose weights"):
        output_weight(model, site.module)


def test_a_model_whose_projection_is_not_known_has_no_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_heads, "_after_heads", lambda _forward: None)
    entry = zoo.ZOO["gpt2"]
    model = entry.build()
    statistics = Statistics([Norms()], find_sites(model))
    with AttentionSession(model, observers=[statistics]) as session, session.batch(zoo.batch_tokens(entry)):
        run(model, zoo.padded(entry))
    assert statistics.tables() == {}


def test_norms_are_those_of_the_projected_vectors_in_float64() -> None:
    """Also of what an ill-conditioned projection nearly loses, and of zeros."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2, 8, 40, generator=generator, dtype=torch.float64)  # (heads, d, features)
    weight[1] *= torch.logspace(0, -1, 8, dtype=torch.float64)[:, None]
    vectors = torch.randn(3, 2, 5, 8, generator=generator)
    vectors[0, 0, 0] = 0
    expected = torch.matmul(vectors.double(), weight).norm(dim=-1)
    norms = projected_norms(vectors, torch.matmul(weight, weight.transpose(1, 2)).float())
    assert norms is not None
    torch.testing.assert_close(norms.double(), expected, rtol=1e-6, atol=0)
