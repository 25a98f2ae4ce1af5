"""Attention of no heads: torch before 2.13 cannot compute it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import zoo
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headlens.attention.interface import own_attention, uses_sdpa
from headlens.attention.kernels import empty_layer as headless
from headlens.attention.sites import find_sites


def test_of_no_heads_there_is_nothing() -> None:
    query, key, value = (torch.ones(2, 0, n, d) for n, d in ((3, 8), (5, 8), (5, 6)))
    output, weights = headless.sdpa_or_nothing(nn.Module(), query, key, value, None, scaling=0.5)
    assert output.shape == (2, 3, 0, 6)
    assert weights is None


def test_of_heads_it_is_transformers_own() -> None:
    query, key, value = torch.randn(3, 2, 4, 5, 8)
    mask = torch.zeros(2, 1, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    for given in (None, mask):
        found, _ = headless.sdpa_or_nothing(nn.Module(), query, key, value, given, scaling=0.3, is_causal=False)
        expected, _ = sdpa_attention_forward(nn.Module(), query, key, value, given, scaling=0.3, is_causal=False)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.13.0+cpu"])
def test_it_is_used_where_torch_needs_it_alone(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = dict(type(ALL_ATTENTION_FUNCTIONS)._global_mapping)
    monkeypatch.setattr(type(ALL_ATTENTION_FUNCTIONS), "_global_mapping", functions | {"sdpa": sdpa_attention_forward})
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)(version))
    headless.register_empty_layer_kernel()
    model = zoo.ZOO["bert"].build("sdpa")
    module = model.get_submodule(find_sites(model)[0].module)
    own = own_attention("sdpa", module)
    assert own is (headless.sdpa_or_nothing if version < "2.13" else sdpa_attention_forward)
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
