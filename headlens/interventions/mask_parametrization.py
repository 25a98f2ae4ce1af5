"""Parametrizations of symmetric masks: a value for every pair of positions, or one for every offset."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PositionPairs:
    """A value for every pair of positions: the upper triangle, row by row.

    Args:
        n: number of positions.
    """

    n: int

    @property
    def size(self) -> int:
        """Number of values that make a mask, n (n + 1) / 2: one for every pair of positions i ≤ j."""
        return self.n * (self.n + 1) // 2

    def matrix(self, values: Tensor, length: int) -> Tensor:
        """Symmetric matrices of the first positions, (..., length, length), of values (..., size)."""
        full = values.new_zeros(*values.shape[:-1], self.n, self.n)
        rows, columns = torch.triu_indices(self.n, self.n, device=values.device)
        full[..., rows, columns] = values
        upper = full[..., :length, :length]
        return upper + upper.triu(1).mT

    def counts(self, within: int, device: torch.device | None = None) -> Tensor:
        """Number of positions of a text of `within` tokens that each value fills: (size,)."""
        rows, columns = torch.triu_indices(self.n, self.n, device=device)
        return torch.where(rows == columns, 1.0, 2.0).masked_fill(columns >= within, 0.0)

    def offsets(self, device: torch.device | None = None) -> Tensor:
        """Returns the offset |i - j| of the pair of positions that each value stands for: integers of shape (size,)."""
        rows, columns = torch.triu_indices(self.n, self.n, device=device)
        offsets: Tensor = columns - rows
        return offsets


@dataclass(frozen=True)
class Offsets:
    """A value for every offset |i - j|: Toeplitz matrices, whose first and last row and column are always active.

    Args:
        n: number of positions.
    """

    n: int

    @property
    def size(self) -> int:
        """Number of values that make a mask, n: one for every offset |i - j| from 0 to n - 1."""
        return self.n

    def matrix(self, values: Tensor, length: int) -> Tensor:
        """Toeplitz matrices, (..., length, length), of values (..., size)."""
        near = values[..., :length]
        # (..., 2 length - 1), by the offset j - i from the lowest to the highest
        both = torch.cat([near.flip(-1), near[..., 1:]], dim=-1)
        # Window k has the offsets of the row length - 1 - k.
        return both.unfold(-1, length, 1).flip(-2)

    def counts(self, within: int, device: torch.device | None = None) -> Tensor:
        """Number of positions of a text of `within` tokens that each value fills: (size,).

        The first and the last row and column are always active, and no value's.
        """
        inner = (within - 2 - self.offsets(device)).clamp(min=0)
        return torch.where(self.offsets(device) == 0, inner, 2 * inner).float()

    def offsets(self, device: torch.device | None = None) -> Tensor:
        """Returns the offset |i - j| that each value stands for, 0 to n - 1: integers of shape (size,)."""
        return torch.arange(self.n, device=device)


Shape = PositionPairs | Offsets


def at_ends(lengths: Tensor, longest: int) -> Tensor:
    """Where a query or a key is the first or last of its sentence: (batch, longest, longest), also in its padding.

    Args:
        lengths: tokens of every sentence, padded at the end: (batch,).
        longest: length of the batch, padding included.
    """
    places = torch.arange(longest, device=lengths.device)
    ends = (places == 0) | (places == lengths[:, None] - 1)
    return ends[:, :, None] | ends[:, None, :]
