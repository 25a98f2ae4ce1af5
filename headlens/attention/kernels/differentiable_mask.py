"""Softmax attention with an additive mask that is learned: memory-frugal on the processor, where sdpa is not.

Given a mask that asks for gradients, sdpa on the processor leaves its fast kernel and writes all scores, weights and
their gradients of a layer to memory. Here the forward pass keeps one number a row, and both passes work on blocks that
stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headlens.attention.edits_and_observers import CallContext
from headlens.attention.interface import is_plain_sdpa

# Scores of a block: with their gradients they fit into the cache of one core.
BLOCK = 2**18


def supports_differentiable_mask(
    module: nn.Module, context: CallContext, mask: Tensor, kwargs: Mapping[str, Any]
) -> bool:
    """Whether a call of sdpa attention can be computed here: gradients of the mask wanted, nothing but a softmax."""
    if not mask.requires_grad or not torch.is_grad_enabled() or mask.device.type != "cpu":
        return False
    return mask.dtype == context.query.dtype and is_plain_sdpa(module, context, kwargs)


def differentiable_mask_attention(context: CallContext, mask: Tensor, scaling: float | None) -> Tensor:
    """Scaled dot-product attention with an additive mask that has gradients.

    Args:
        context: the call.
        mask: additive, (1 or batch, 1 or heads, query, key).
        scaling: factor of the scores; by default the root of 1 / d.

    Returns:
        Head outputs (batch, query, heads, d).
    """
    factor = context.query.shape[-1] ** -0.5 if scaling is None else scaling
    output: Tensor = MaskedAttention.apply(context.query, context.key, context.value, mask, factor)  # type: ignore[no-untyped-call]
    return output.transpose(1, 2)


class MaskedAttention(torch.autograd.Function):
    """softmax(c Q Kᵀ + M) V, once differentiable by Q, K, V and M.

    Scores are computed again in the backward pass: with the logarithm of each row's sum they give the weights without
    another softmax (Dao et al. 2022, appendix B).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, factor: float) -> Tensor:
        """Head outputs (batch, heads, query, d) of query, key, value (batch, heads, ..., d) and mask.

        See `differentiable_mask_attention`.
        """
        calls = _Calls.of(query, key, value, mask, factor)
        output = torch.empty_like(calls.query)
        # of every row: (batch * heads, query, 1)
        log_sums = output.new_empty(*output.shape[:2], 1)
        for block in calls.blocks():
            scores = calls.scores(block)  # (heads of the block, query, key)
            largest = scores.amax(dim=-1, keepdim=True)
            weights = _exponentials(scores, largest)
            sums = weights.sum(dim=-1, keepdim=True)
            # Divided last: an output is smaller than its weights.
            torch.bmm(weights, calls.value[block], out=output[block]).div_(sums)
            torch.add(largest, sums.log_(), out=log_sums[block])
        ctx.save_for_backward(query, key, value, mask, output, log_sums)
        ctx.factor = factor
        return output.view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of query, key, value and mask."""
        query, key, value, mask, output, log_sums = ctx.saved_tensors
        calls = _Calls.of(query, key, value, mask, ctx.factor)
        outer = outer.reshape(output.shape)
        by_query, by_key, by_value = (torch.empty_like(t) for t in (calls.query, calls.key, calls.value))
        # A mask of every sentence and head gets its gradients as they are, any other their sum.
        is_expanded = mask.shape[:2] == query.shape[:2]
        by_mask, put = (torch.empty_like(mask), Tensor.copy_) if is_expanded else (torch.zeros_like(mask), Tensor.add_)
        room = torch.empty_like(calls.room)
        # (batch * heads, query, 1): each row's Σ w ∂L/∂w, which is the output times its gradient (Dao et al. 2022)
        sums = (outer * output).sum(dim=-1, keepdim=True)
        for block in calls.blocks():
            weights = _exponentials(calls.scores(block), log_sums[block])
            torch.bmm(weights.transpose(1, 2), outer[block], out=by_value[block])
            by_scores = torch.bmm(outer[block], calls.value[block].transpose(1, 2), out=room[: len(weights)])
            # gradient of a softmax: w (∂L/∂w - Σ w ∂L/∂w)
            by_scores.sub_(sums[block]).mul_(weights)
            part = calls.part(by_mask, block)
            put(part, calls.by_sentence(by_scores).sum_to_size(part.shape))
            torch.bmm(by_scores, calls.key[block], out=by_query[block])
            torch.bmm(by_scores.transpose(1, 2), calls.query[block], out=by_key[block])
        return (
            by_query.mul_(ctx.factor).view(query.shape),
            by_key.view(key.shape),
            by_value.view(value.shape),
            by_mask,
            None,
        )


def floored(mask: Tensor, lowest: float) -> Tensor:
    """Clamps a mask from below; gradients pass unchanged, since they are 0 where the clamp acts."""
    # On a CPU a look is cheaper than another copy; on a GPU it would wait for the queue.
    if mask.device.type == "cpu" and (not mask.numel() or float(mask.detach().amin()) >= lowest):
        return mask
    raised: Tensor = _Floored.apply(mask, lowest)  # type: ignore[no-untyped-call]
    return raised


class _Floored(torch.autograd.Function):
    """Clamp whose backward pass hands the gradient on, without comparing the mask once more."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor, lowest: float) -> Tensor:
        del ctx
        return mask.clamp(min=lowest)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradient, None


def _exponentials(scores: Tensor, shift: Tensor) -> Tensor:
    """exp(scores - shift), in place; what is masked gets 1e-26."""
    # Results that underflow, of which a mask makes many, take thirty times as long.
    return scores.sub_(shift).clamp_(min=-60.0).exp_()


@dataclass(frozen=True)
class _Calls:
    """Scaled queries, keys and values of the heads of all sentences one after the other: (batch * heads, ..., d).

    `room` is memory for the scores of a block, (heads of a block, query, key).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor
    n_heads: int
    room: Tensor

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, factor: float) -> _Calls:
        queries, keys, values = (t.reshape(-1, *t.shape[2:]) for t in (query * factor, key, value))
        n_heads, each = query.shape[1], query.shape[2] * key.shape[2]
        size = min(_block_size(n_heads, BLOCK // max(1, each)), len(queries))
        return cls(queries, keys, values, mask, n_heads, query.new_empty(size, query.shape[2], key.shape[2]))

    def blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.query), max(1, len(self.room))):
            yield slice(start, min(start + len(self.room), len(self.query)))

    def scores(self, block: slice) -> Tensor:
        """Scores of a block with the mask added, in memory that the next block uses again."""
        scores = self.room[: block.stop - block.start]
        self.by_sentence(scores).copy_(self.part(self.mask, block))
        return scores.baddbmm_(self.query[block], self.key[block].transpose(1, 2))

    def by_sentence(self, scores: Tensor) -> Tensor:
        """(sentences, heads, query, key) of the (sentences * heads, query, key) of a block."""
        return scores.view(-1, min(len(scores), self.n_heads), *scores.shape[1:])

    def part(self, mask: Tensor, block: slice) -> Tensor:
        """The part of a mask that belongs to a block: (1 or sentences, 1 or heads, query, key)."""
        count, first = block.stop - block.start, block.start // self.n_heads
        head = block.start % self.n_heads
        # An axis of size 1 is shared by all; a block is of whole sentences, or of some heads of one.
        rows = slice(None) if len(mask) == 1 else slice(first, first + -(-count // self.n_heads))
        heads = slice(None) if mask.shape[1] == 1 else slice(head, head + min(count, self.n_heads))
        return mask[rows, heads]


def _block_size(n_heads: int, most: int) -> int:
    """Number of heads of a block, about `most`: all of some sentences, or a divisor of those of one sentence."""
    if most >= n_heads:
        return most // n_heads * n_heads
    return max(size for size in range(1, n_heads + 1) if n_heads % size == 0 and size <= max(1, most))
