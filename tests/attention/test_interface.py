from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import zoo
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, BertConfig, BertModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, eager_mask, sliding_window_causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from watching import Watch, run

from headlens.attention.interface import (
    EAGER,
    FAST,
    NAMES,
    SDPA,
    additive,
    causal_mask,
    fast_mask,
    is_causal,
    own_attention,
    register_attention,
    register_empty_layer_kernel,
    sdpa_or_nothing,
    uses_sdpa,
)
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites

LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_attention_and_a_mask_function_also_when_registered_twice(name: str) -> None:
    register_attention()
    assert name in AttentionInterface()
    assert name in AttentionMaskInterface()


@pytest.mark.parametrize(("kernel", "registered"), [("eager", EAGER), ("sdpa", SDPA)])
@pytest.mark.parametrize("name", ["bert", "albert", "llama", "marian"])
def test_attention_only_registration_loses_the_mask(
    name: str, kernel: str, registered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(kernel), zoo.padded(entry)
    expected = run(model, inputs)
    with AttentionSession(model, kernel=kernel):
        assert torch.equal(run(model, inputs), expected)
        monkeypatch.delitem(AttentionMaskInterface._global_mapping, registered)
        assert not torch.allclose(run(model, inputs), expected, atol=1e-2)


def test_masks_that_are_not_additive_become_so() -> None:
    assert additive(None, torch.float32) is None
    expected = torch.tensor([0.0, LOWEST])
    assert torch.equal(additive(torch.tensor([True, False]), torch.float32), expected)
    assert torch.equal(additive(torch.tensor([1, 0]), torch.float32), expected)
    mask = torch.tensor([0.0, -3.0])
    assert additive(mask, torch.float32) is mask
    low = additive(torch.tensor([False]), torch.bfloat16)
    assert low.dtype == torch.bfloat16
    assert torch.isfinite(low).all()


def test_the_causal_mask_is_sdpas() -> None:
    query, key = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert torch.allclose(
        attend(query, key, key, attn_mask=causal_mask(query, key)), attend(query, key, key, is_causal=True), atol=1e-6
    )
    assert torch.equal(causal_mask(query[:, :, 1:], key, 1), causal_mask(query, key)[1:])


def test_a_missing_mask_is_causal_where_sdpa_takes_it_so() -> None:
    module, query = nn.Module(), torch.randn(2, 3, 4, 5)
    assert is_causal(module, query, None, {})
    assert not is_causal(module, query, torch.zeros(1), {})
    assert not is_causal(module, query[:, :, :1], None, {})
    assert not is_causal(module, query, None, {"is_causal": False})
    module.is_causal = False
    assert not is_causal(module, query, None, {"is_causal": None})
    assert is_causal(module, query, None, {"is_causal": True})


SIZES = {"batch_size": 2, "q_length": 5, "kv_length": 5}
PADDED = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()


@pytest.mark.parametrize(
    "given",
    [
        {"attention_mask": PADDED},
        {"attention_mask": PADDED, "dtype": torch.bfloat16},
        {"mask_function": sliding_window_causal_mask_function(2), "local_size": 2},
        {"mask_function": bidirectional_mask_function, "allow_is_causal_skip": False, "attention_mask": PADDED},
        {"mask_function": bidirectional_mask_function, "allow_is_causal_skip": False},
        {"allow_is_causal_skip": False},
    ],
)
def test_masks_of_the_fast_kernel_are_those_of_eager_attention(given: dict[str, Any]) -> None:
    found, expected = fast_mask(**SIZES, **given), eager_mask(**SIZES, **given)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_where_sdpa_gets_no_mask_the_fast_kernel_gets_none() -> None:
    assert fast_mask(**SIZES) is None
    assert fast_mask(**SIZES, attention_mask=torch.ones(2, 5).bool()) is None
    assert fast_mask(**SIZES, allow_is_causal_skip=False, allow_is_bidirectional_skip=True) is None


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "marian"])
def test_a_copy_made_inside_a_session_of_the_fast_kernel_keeps_its_mask(name: str) -> None:
    entry = zoo.ZOO[name]
    model = entry.build("sdpa")
    for inputs in (zoo.padded(entry), zoo.unpadded(entry)[0]):
        expected = run(model, inputs)
        with AttentionSession(model, kernel="fast"):
            assert model.config._attn_implementation == FAST
            twin = copy.deepcopy(model)
            assert torch.allclose(run(twin, inputs), expected, atol=1e-5)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_another_model_with_the_same_config_object_is_left_alone(kernel: str) -> None:
    config = BertConfig(**zoo.TEXT, attn_implementation=kernel)
    first, second = zoo.randomized(BertModel(config), 1), zoo.randomized(BertModel(config), 2)
    assert first.config is second.config
    inputs = zoo.padded(zoo.ZOO["bert"])
    expected = run(second, inputs)
    watch = Watch(needs_weights=False)
    with AttentionSession(first, observers=[watch], kernel=kernel):
        assert torch.equal(run(second, inputs), expected)
        run(copy.deepcopy(second), inputs)
    assert watch.calls == []


def test_of_no_heads_there_is_nothing() -> None:
    query, key, value = (torch.ones(2, 0, n, d) for n, d in ((3, 8), (5, 8), (5, 6)))
    output, weights = sdpa_or_nothing(nn.Module(), query, key, value, None, scaling=0.5)
    assert output.shape == (2, 3, 0, 6)
    assert weights is None


def test_of_heads_it_is_transformers_own() -> None:
    query, key, value = torch.randn(3, 2, 4, 5, 8)
    mask = torch.zeros(2, 1, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    for given in (None, mask):
        found, _ = sdpa_or_nothing(nn.Module(), query, key, value, given, scaling=0.3, is_causal=False)
        expected, _ = sdpa_attention_forward(nn.Module(), query, key, value, given, scaling=0.3, is_causal=False)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.13.0+cpu"])
def test_it_is_used_where_torch_needs_it_alone(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = dict(type(ALL_ATTENTION_FUNCTIONS)._global_mapping)
    monkeypatch.setattr(type(ALL_ATTENTION_FUNCTIONS), "_global_mapping", functions | {"sdpa": sdpa_attention_forward})
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)(version))
    register_empty_layer_kernel()
    model = zoo.ZOO["bert"].build("sdpa")
    module = model.get_submodule(find_sites(model)[0].module)
    own = own_attention("sdpa", module)
    assert own is (sdpa_or_nothing if version < "2.13" else sdpa_attention_forward)
    assert uses_sdpa(module)


@pytest.mark.slow
def test_a_process_survives_a_layer_without_heads() -> None:
    """In a process of its own, as torch would end it."""
    program = """
import torch
from transformers import BertConfig, BertModel
from headlens.weights.head_slicing import shrink
import headlens.attention.interface
model = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)).eval()
shrink(model, "encoder.layer.0.attention.self", [])
assert model.config._attn_implementation == "sdpa"
print(tuple(model(torch.ones(2, 3, dtype=torch.long)).last_hidden_state.shape))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stdout) == (0, "(2, 3, 8)\n"), done.stderr
