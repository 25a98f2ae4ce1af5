"""Attention under `alpha-beta`: one function of queries, keys and values, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from headlens.analyses.relevance.lrp.alpha_beta_ops import distribute, rescale, rescale_all
from headlens.analyses.relevance.lrp.gradient_rules import run
from headlens.attention.edits_and_observers import CallContext
from headlens.errors import UnsupportedModelError


class ExplicitAttention(torch.autograd.Function):
    """Attention as one function of queries, keys and values, head by head."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, computed: Sequence[Tensor]) -> Tensor:
        """The head outputs, computed before: the one element of `computed`, with the graph behind it."""
        ctx.inputs, ctx.output = (query, key, value), computed[0]
        return computed[0].detach().clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        """Positive and negative parts apart: one row of the Jacobian at a time, for all heads at once."""
        values = _by_head(ctx.inputs).detach()
        found = torch.zeros_like(values)
        for query, neuron in relevance.ne(0).any(dim=2).any(dim=0).nonzero().tolist():
            jacobian = _by_head(_jacobian_row(ctx.output, ctx.inputs, query, neuron))
            found += distribute((jacobian * values)[:, None, :], relevance[:, query, :, neuron].reshape(-1, 1))
        outputs = relevance.transpose(1, 2).flatten(0, 1).flatten(1)
        scaled = rescale_all(rescale(found, outputs, axes=(-1,), reference_axes=(-1,)), outputs)
        parts = torch.split(scaled, [prod(t.shape[2:]) for t in ctx.inputs], dim=1)
        return *(p.reshape(t.shape) for p, t in zip(parts, ctx.inputs, strict=True)), None


def explicit_attention(context: CallContext, output: Tensor) -> Tensor:
    """The same head outputs, (batch, query, heads, d), with the backward of `alpha-beta`.

    Raises:
        UnsupportedModelError: if several heads share their keys, whose Jacobians could not be told apart.
    """
    if context.key.shape[1] != context.query.shape[1]:
        raise UnsupportedModelError(
            f"{context.site}: alpha-beta has no rule for heads that share keys.", "Use the rule epsilon."
        )
    return run(ExplicitAttention, context.query, context.key, context.value, [output])


def _jacobian_row(output: Tensor, inputs: Sequence[Tensor], query: int, neuron: int) -> tuple[Tensor, ...]:
    """How output[row, query, head, neuron] changes with the inputs of the same head, for every row and head at once."""
    chosen = torch.zeros_like(output)
    chosen[:, query, :, neuron] = 1
    rows = torch.autograd.grad(output, inputs, chosen, retain_graph=True, allow_unused=True)
    return tuple(torch.zeros_like(t) if r is None else r for r, t in zip(rows, inputs, strict=True))


def _by_head(tensors: Sequence[Tensor]) -> Tensor:
    """Queries, keys and values, each (batch, heads, tokens, d), as the inputs of heads: (batch · heads, inputs)."""
    return torch.cat([t.flatten(0, 1).flatten(1) for t in tensors], dim=1)
