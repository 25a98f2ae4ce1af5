"""Where norms stand in known families, and matrices with their gains against norms that are written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from tiers import rest_slow
from torch import Tensor

from headlens.attention.sites import find_sites
from headlens.weights.folded_norms import NormPlaces, find_norms
from headlens.weights.head_matrices import head_matrices

TOKENS = (5, 6, 7, 8)
OLMO2 = zoo.Entry("Olmo2ForCausalLM", "Olmo2Config", "decoder", zoo.ROTARY)
CASES = {
    # Names of the norms of queries, keys, outputs of the last site, and of the last norm.
    "bert": (None, None, None, None),
    "albert": (None, None, None, None),
    "albert-inner": (None, None, None, None),
    "bert-cross-decoder": (None, None, None, None),
    "marian": (None, None, None, None),
    "modernbert": ("layers.2.attn_norm", "layers.2.attn_norm", None, "final_norm"),
    "gpt2": ("transformer.h.2.ln_1", "transformer.h.2.ln_1", None, "transformer.ln_f"),
    "llama": ("model.layers.2.input_layernorm", "model.layers.2.input_layernorm", None, "model.norm"),
    "gemma2": (
        *["model.layers.2.input_layernorm"] * 2,
        "model.layers.2.post_attention_layernorm",
        "model.norm",
    ),
    "olmo2": (None, None, "model.layers.2.post_attention_layernorm", "model.norm"),
    "mbart": ("decoder.layers.1.encoder_attn_layer_norm", "encoder.layer_norm", None, "decoder.layer_norm"),
}


def built(name: str) -> Any:
    return (OLMO2 if name == "olmo2" else zoo.ZOO[name]).build()


def places(model: Any) -> NormPlaces:
    return find_norms(model, {site.module: site.layer_list for site in find_sites(model)}, TOKENS)


@pytest.mark.parametrize("name", rest_slow(CASES, ["bert", "albert-inner", "marian", "modernbert", "olmo2", "mbart"]))
def test_norms_stand_where_the_code_of_the_model_has_them(name: str) -> None:
    model = built(name)
    site, found = find_sites(model)[-1], places(model)
    names = {id(module): path for path, module in model.named_modules()}
    norms = *(of.get(site.module) for of in (found.queries, found.keys, found.outputs)), found.last
    assert tuple(None if norm is None else names[id(norm)] for norm in norms) == CASES[name]
    assert found.beside == (name in ("modernbert", "gpt2", "llama", "gemma2", "olmo2", "mbart"))
    if name == "modernbert":  # the first of its layers has none
        assert find_sites(model)[0].module not in found.queries


def rms(x: Tensor) -> Tensor:
    return x / x.pow(2).mean(dim=-1, keepdim=True).sqrt()


def standard(x: Tensor) -> Tensor:
    return (x - x.mean(dim=-1, keepdim=True)) / x.std(dim=-1, keepdim=True, correction=0)


def test_a_gain_before_the_matrix_is_part_of_it() -> None:
    x = torch.randn(5, zoo.HIDDEN, generator=torch.Generator().manual_seed(1))
    for name, scaled, gain in (("gpt2", standard, "weight"), ("llama", rms, "weight"), ("gemma2", rms, "1 + weight")):
        model = built(name)
        site = find_sites(model)[1]
        plain, module = head_matrices(model, site.module, site.n_heads), model.get_submodule(site.module)
        found = places(model)
        folded = found.folded(site.module, module, plain)
        norm = found.queries[site.module]
        weight = norm.weight.detach() + (gain != "weight")
        scale = (
            standard(x)[:, :1] / (x - x.mean(dim=-1, keepdim=True))[:, :1]
            if name == "gpt2"
            else rms(x)[:, :1] / x[:, :1]
        )
        for part in ("query", "key", "value"):
            expected = (scaled(x) * weight) @ getattr(plain, part)
            assert torch.allclose((x * scale) @ getattr(folded, part), expected, rtol=1e-4, atol=1e-4), (name, part)
        after = found.outputs.get(site.module)
        expected = plain.output if after is None else plain.output * (1 + after.weight.detach())
        assert torch.allclose(folded.output, expected, rtol=1e-4, atol=1e-5)
        head = model.lm_head.weight.detach()
        last = model.transformer.ln_f if name == "gpt2" else model.model.norm
        expected = (scaled(x) * (last.weight.detach() + (gain != "weight"))) @ head.T
        assert torch.allclose((x * scale) @ found.unembedding(head).T, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "olmo2"])
def test_gains_of_queries_and_keys_are_part_of_theirs(name: str) -> None:
    """Qwen 3 has one for the features of every head, OLMo 2 one for those of all heads."""
    model = built(name)
    site = find_sites(model)[0]
    plain, module, found = (
        head_matrices(model, site.module, site.n_heads),
        model.get_submodule(site.module),
        places(model),
    )
    found = NormPlaces(outputs=found.outputs)  # without those before them
    folded = found.folded(site.module, module, plain)
    shape = (1, 8) if name == "qwen3" else (-1, 8)
    gains = [norm.weight.detach().view(shape) for norm in (module.q_norm, module.k_norm)]
    heads = [gain.repeat_interleave(4 // len(gain), dim=0)[:, None] for gain in gains]
    assert torch.allclose(folded.query, plain.query * heads[0], rtol=1e-4, atol=1e-5)
    assert torch.allclose(folded.key, plain.key * heads[1], rtol=1e-4, atol=1e-5)
    assert torch.equal(folded.value, plain.value)
