"""What heads read by norm: on values set by hand, and against transformers' own values and weights."""

from __future__ import annotations

from typing import Any

import naive_metrics
import numpy as np
import pytest
import torch
import zoo
from handmade import SENTENCE, Row, call, columns, heads, measured, one_hot, uniform
from naive_samples import Sample
from transformers_attention import run_eagerly, unpadded
from watching import run

from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.metrics.metric import Statistics
from headlens.metrics.norms import Norms

N = len(SENTENCE)


def read(weights: Any, values: Any) -> dict[str, float]:
    return columns(Norms(), call([Row(weights, values=values)]))


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
    assert found["norm_to_self"] == pytest.approx(1 / N)
    assert (found["idle"], found["norm_share"]) == (0, 1)


def test_heads_share_the_norms_of_their_layer() -> None:
    values = np.ones((2, N, 2)) * np.array([3.0, 1.0])[:, None, None]
    sums = measured(Norms(), call([Row(heads(uniform(), uniform()), values=values)]))
    assert Norms().compute(sums)["norm_share"] == pytest.approx([0.75, 0.25])


def test_nothing_is_read_where_all_values_are_nothing() -> None:
    found = read(uniform(), np.zeros((1, N, 2)))
    assert np.isnan(found["norm_to_first"])
    assert found["idle"] == 0


@pytest.mark.parametrize("name", ["bert", "albert", "marian"])
def test_against_values_of_the_model_itself(name: str) -> None:
    entry = zoo.ZOO[name]
    model, tokens = entry.build().eval(), zoo.batch_tokens(entry)
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


def samples(model: Any, name: str, stack: str) -> list[Sample]:
    """Weights of transformers, and values as the value projection gives them, multiplied by W_O written out."""
    entry, kept = zoo.ZOO[name], dict[str, list[Any]]()
    sites = [site for site in find_sites(model) if site.stack == stack]
    value = "v_proj" if name == "marian" else "value"
    hooks = []
    for module in dict.fromkeys(site.module for site in sites):
        layer = model.get_submodule(f"{module}.{value}")
        hooks.append(layer.register_forward_hook(lambda _, __, out, m=module: kept.setdefault(m, []).append(out)))
    with torch.no_grad():
        run(model, zoo.padded(entry))
    for hook in hooks:
        hook.remove()
    inputs = {key: value for key, value in zoo.padded(entry).items() if key != "use_cache"}
    outputs = run_eagerly(model, inputs)
    maps = zoo.attentions(entry, outputs, stack)
    tokens = zoo.batch_tokens(entry)
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


def test_a_model_whose_projection_is_not_known_has_no_norms() -> None:
    entry = zoo.ZOO["gpt2"]
    model = entry.build()
    statistics = Statistics([Norms()], find_sites(model))
    with AttentionSession(model, observers=[statistics]) as session, session.batch(zoo.batch_tokens(entry)):
        run(model, zoo.padded(entry))
    assert statistics.tables() == {}
