"""Softmax attention that leaves out blocks of 128 x 128 positions which a mask closes: FlexAttention, on GPUs.

What a fixed mask saves depends on how its open positions lie together, not on how many there are: a block with one of
them is computed whole.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
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
# The compiler's kernels for any shape are several times slower than those for one, which take seconds to compile. So
# that there are few shapes, texts are padded to a multiple of so many blocks, and batches cut into powers of two.
_LENGTHS = 4
_SHAPES = 64  # that are compiled before the compiler gives up


@dataclass(frozen=True, eq=False)
class BlockMap:
    """The blocks of positions that a mask opens.

    Args:
        part: the key blocks of every query block that are open in part, see `_key_blocks`.
        full: those that are open throughout.
        padded: True where a query may look, padded to whole blocks: (batch or 1, heads or 1, query, key).
        size: tokens of a block.
        share: share of all blocks that are computed.
    """

    part: tuple[Tensor, Tensor]
    full: tuple[Tensor, Tensor]
    padded: Tensor
    size: int
    share: float

    def mask(self, start: int = 0, stop: int | None = None) -> BlockMask:
        """Returns the blocks of some rows of the batch for FlexAttention."""
        rows = (start, stop) if len(self.padded) > 1 else (0, None)
        if rows not in self._masks:
            self._masks[rows] = self._mask(slice(*rows))
        return self._masks[rows]

    @cached_property
    def _masks(self) -> dict[tuple[int, int | None], BlockMask]:
        return {}

    def _mask(self, rows: slice) -> BlockMask:
        from torch.nn.attention.flex_attention import BlockMask  # noqa: PLC0415 - slow to import

        padded = self.padded[rows]
        one_row, one_head = padded.shape[0] == 1, padded.shape[1] == 1

        def opened(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return padded[batch * 0 if one_row else batch, head * 0 if one_head else head, query, key]

        (part_counts, part_order), (full_counts, full_order) = (
            (counts[rows], order[rows]) for counts, order in (self.part, self.full)
        )
        return BlockMask.from_kv_blocks(
            part_counts,
            part_order,
            full_counts,
            full_order,
            BLOCK_SIZE=self.size,
            mask_mod=opened,
            seq_lengths=(padded.shape[2], padded.shape[3]),
        )


def blocks_of(allowed: Tensor, size: int = SIZE) -> BlockMap:
    """Maps the blocks that a mask opens, completely or in part.

    Args:
        allowed: True where a query may look, (batch or 1, heads or 1, query, key).
        size: tokens of a block; 128 on a GPU.
    """
    lengths, multiples = allowed.shape[2:], size * _LENGTHS
    # Kernels look at whole blocks, also past the end.
    padded = functional.pad(allowed, (0, -lengths[1] % multiples, 0, -lengths[0] % multiples))
    rows, heads, queries, keys = padded.shape
    # open positions of every block: (batch or 1, heads or 1, query blocks, key blocks)
    counts = padded.view(rows, heads, queries // size, size, keys // size, size).sum(dim=(3, 5))
    full = counts == size * size
    part = (counts > 0) & ~full
    of_text = rows * heads * math.prod(-(-length // size) for length in lengths)
    share = float((counts > 0).sum()) / of_text
    return BlockMap(_key_blocks(part), _key_blocks(full), padded, size, share)


def _key_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Number of key blocks of each query block, and their indices, which come first in the last axis."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1).int(), order.int()


def block_sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, blocks: BlockMap, scaling: float | None = None
) -> Tensor:
    """Softmax attention within the positions that a mask opens: (batch, heads, query, d); 0 for queries without keys.

    Args:
        query: (batch, heads, query, d).
        key: (batch, heads, key, d).
        value: (batch, heads, key, d).
        blocks: see `blocks_of`.
        scaling: factor of the scores; by default the root of 1 / d.
    """
    queries, keys = blocks.padded.shape[2:]
    query_, key_, value_ = (
        functional.pad(t, (0, 0, 0, length - t.shape[2]))
        for t, length in ((query, queries), (key, keys), (value, keys))
    )
    parts = []
    for rows in _powers_of_two(len(query)):
        mask = blocks.mask(rows.start, rows.stop)
        parts.append(flex_attention(query_[rows], key_[rows], value_[rows], mask, scaling))
    output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output[:, :, : query.shape[2]]


def _powers_of_two(number: int) -> Iterator[slice]:
    """Parts of a batch, the largest first: 13 rows are 8, 4 and 1."""
    start = 0
    while start < number:
        size = 1 << (number - start).bit_length() - 1
        yield slice(start, start + size)
        start += size


def flex_attention(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scaling: float | None = None) -> Tensor:
    """FlexAttention, on a GPU compiled for the shapes that it is given.

    Args:
        query: (batch, heads, query, d).
        key: (batch, heads, key, d).
        value: (batch, heads, key, d).
        mask: of whole blocks.
        scaling: factor of the scores; by default the root of 1 / d.
    """
    output: Tensor = _kernel(on_gpu=query.is_cuda)(query, key, value, block_mask=mask, scale=scaling)
    return output


@cache
def _kernel(*, on_gpu: bool) -> Callable[..., Any]:
    from torch.nn.attention import flex_attention  # noqa: PLC0415 - slow to import

    # Without a compiler all positions are computed, which is correct, but useful in tests only.
    uncompiled: Any = flex_attention.flex_attention
    if not on_gpu:
        kernel: Callable[..., Any] = uncompiled
        return kernel
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _SHAPES)
    return torch.compile(uncompiled, dynamic=False)


class BlockSparseKernel:
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
            output = block_sparse_attention(query, key, value, blocks, kwargs.get("scaling"))
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
