"""Attention of layers that lost all their heads, where torch's fused kernel cannot compute it."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

# On the processor scaled_dot_product_attention of torch 2.11 divides by the number of heads, which ends the process.
FIXED_IN = "2.13"


@wraps(sdpa_attention_forward)
def sdpa_or_nothing(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Transformers' sdpa attention; of no heads the empty tensor, (batch, query, 0, d)."""
    if query.shape[1] == 0:
        return value.new_empty(query.shape[0], query.shape[2], 0, value.shape[3]), None
    output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return output


def register_empty_layer_kernel() -> None:
    """Compute `sdpa` so in every model, if this torch needs it; doing it twice changes nothing."""
    if torch.__version__ < FIXED_IN:
        AttentionInterface.register("sdpa", sdpa_or_nothing)
