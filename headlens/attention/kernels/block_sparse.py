"""Softmax attention that leaves out blocks of 128 x 128 positions which a mask closes: FlexAttention, on GPUs.

What a fixed mask saves depends on how its open positions lie together, not on how many there are: a block with one of
them is computed whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headlens.attention.edits_and_observers import CallContext
from headlens.attention.interface import is_plain_sdpa

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

logger = logging.getLogger(__name__)

# Tokens of a block of a GPU's kernel.
SIZE = 128
# Shorter texts have too few blocks to leave any out, and sdpa's kernel is the faster one.
SHORTEST = 512
# The kernel is slower than sdpa's for what it does compute.
LARGEST_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class BlockMap:
    """The blocks of positions that a mask opens.

    Args:
        mask: the blocks for FlexAttention.
        share: share of all blocks that are computed.
    """

    mask: BlockMask
    share: float


def blocks_of(allowed: Tensor, size: int = SIZE) -> BlockMap:
    """Maps the blocks that a mask opens, completely or in part.

    Args:
        allowed: True where a query may look, (batch or 1, heads or 1, query, key).
        size: tokens of a block; 128 on a GPU.
    """
    from torch.nn.attention.flex_attention import BlockMask  # noqa: PLC0415 - slow to import

    lengths = allowed.shape[2], allowed.shape[3]
    # Kernels look at whole blocks, also past the end.
    padded = functional.pad(allowed, (0, -lengths[1] % size, 0, -lengths[0] % size))
    rows, heads, queries, keys = padded.shape
    # open positions of every block: (batch or 1, heads or 1, query blocks, key blocks)
    counts = padded.view(rows, heads, queries // size, size, keys // size, size).sum(dim=(3, 5))
    full = counts == size * size
    part = (counts > 0) & ~full
    one_row, one_head = rows == 1, heads == 1

    def opened(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return padded[batch * 0 if one_row else batch, head * 0 if one_head else head, query, key]

    mask = BlockMask.from_kv_blocks(
        *_key_blocks(part), *_key_blocks(full), BLOCK_SIZE=size, mask_mod=opened, seq_lengths=lengths
    )
    return BlockMap(mask, float((counts > 0).float().mean()))


def _key_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Number of key blocks of each query block, and their indices, which come first in the last axis."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1).int(), order.int()


def block_sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scaling: float | None = None
) -> Tensor:
    """Softmax attention within the positions that a mask opens: (batch, heads, query, d); 0 for queries without keys.

    Args:
        query: (batch, heads, query, d).
        key: (batch, heads, key, d).
        value: (batch, heads, key, d).
        mask: see `blocks_of`.
        scaling: factor of the scores; by default the root of 1 / d.
    """
    output: Tensor = _kernel(on_gpu=query.is_cuda)(query, key, value, block_mask=mask, scale=scaling)
    return output


@cache
def _kernel(*, on_gpu: bool) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention  # noqa: PLC0415 - slow to import

    # Without a compiler all positions are computed, which is correct, but useful in tests only.
    uncompiled: Any = flex_attention
    kernel: Callable[..., Any] = torch.compile(uncompiled) if on_gpu else uncompiled
    return kernel


class BlockSparse:
    """Computes calls whose mask leaves out enough blocks; the blocks of a mask are found once for all layers."""

    def __init__(self) -> None:
        self._mask: Tensor | None = None
        self._blocks: BlockMap | None = None
        self._broken = False

    def output(self, module: nn.Module, context: CallContext, mask: Tensor, kwargs: Mapping[str, Any]) -> Tensor | None:
        """Head outputs (batch, query, heads, d); None if the call is better left to sdpa.

        FlexAttention computes the same as sdpa does for a softmax, a mask that is not learned, and no dropout.
        """
        query, key, value = context.query, context.key, context.value
        if self._broken or mask.requires_grad or not saves_time(query) or query.shape[2] != key.shape[2]:
            return None
        blocks = self._of(mask) if is_plain_sdpa(module, context, kwargs) else None
        if blocks is None or blocks.share > LARGEST_SHARE:
            return None
        try:
            output = block_sparse_attention(query, key, value, blocks.mask, kwargs.get("scaling"))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            logger.warning("FlexAttention failed, so masks save no time: %s", str(error).splitlines()[:1])
            self._broken = True
            return None
        return output.transpose(1, 2)

    def forget(self) -> None:
        """Drops the references to the last mask and its blocks, so that their memory can be freed."""
        self._mask = self._blocks = None

    def _of(self, mask: Tensor) -> BlockMap | None:
        """The blocks of an additive mask; None for one that does more than close positions."""
        if mask is not self._mask:
            closed = mask <= torch.finfo(mask.dtype).min / 2
            only_closes = not bool((mask.masked_fill(closed, 0) != 0).any())
            self._mask, self._blocks = mask, blocks_of(~closed) if only_closes else None
        return self._blocks


def saves_time(query: Tensor) -> bool:
    """Whether leaving blocks out is faster than sdpa: for long texts on a GPU."""
    return query.is_cuda and query.shape[2] >= SHORTEST
