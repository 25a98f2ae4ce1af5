"""Bytes of a decoder's cache, against closed forms and against what a generation keeps."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import zoo
from tiers import rest_slow

from headlens.analyses.compact.text_loss import cache_bytes_per_token
from headlens.attention.sites import find_sites
from headlens.heads import Head
from headlens.interventions.compacting import compact_model

INPUTS = zoo.padded(zoo.ZOO["llama"])


@pytest.mark.parametrize("name", rest_slow(["gpt2", "opt", "llama", "mistral", "gemma2", "gpt-oss"], ["gpt2", "llama"]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_of_all_layers(name: str, dtype: torch.dtype) -> None:
    model = zoo.ZOO[name].build().to(dtype)
    key_heads = getattr(model.config, "num_key_value_heads", 4)
    # 3 layers, keys and values, of 8 numbers each.
    assert cache_bytes_per_token(model, zoo.padded(zoo.ZOO[name])) == 3 * 2 * key_heads * 8 * dtype.itemsize


@pytest.mark.parametrize(("lost", "key_heads"), [((), 2), ((0, 2), 2), ((0, 1), 1)])
def test_what_a_generation_keeps(lost: tuple[int, ...], key_heads: int) -> None:
    """Of each token that was read, which is all but the last; whole groups make the cache smaller, others do not."""
    model = copy.deepcopy(zoo.ZOO["llama"].build())
    if lost:
        compact_model(model, [Head("decoder", layer, h) for layer in range(3) for h in lost])
    expected = cache_bytes_per_token(model, INPUTS)
    assert expected == 3 * 2 * key_heads * 8 * 4
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}
    done = model.generate(torch.tensor([[5, 6, 7]]), **settings)
    tensors = [t for layer in done.past_key_values.layers for t in (layer.keys, layer.values)]
    read = done.sequences.shape[1] - 1
    assert sum(t.numel() * t.element_size() for t in tensors) == expected * read


def test_layers_without_heads_keep_nothing_and_models_without_a_cache_say_so() -> None:
    model = zoo.ZOO["llama"].build()
    compact_model(model, [Head("decoder", 1, h) for h in range(4)])
    assert cache_bytes_per_token(model, INPUTS) == 2 * 2 * 2 * 8 * 4
    compact_model(model, [Head("decoder", 0, h) for h in range(4)])
    assert math.isnan(cache_bytes_per_token(model, INPUTS))
    assert math.isnan(cache_bytes_per_token(zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])))


def test_keys_of_an_encoder_do_not_grow() -> None:
    model = zoo.ZOO["marian"].build()
    decoder = [s for s in find_sites(model) if s.stack == "decoder"]
    # 2 layers of 2 heads of 16 numbers.
    assert len(decoder) == 2
    assert cache_bytes_per_token(model, zoo.padded(zoo.ZOO["marian"])) == 2 * 2 * 2 * 16 * 4
