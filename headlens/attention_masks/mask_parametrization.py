"""Masks made of fewer values: one for every pair of positions, every offset, or every degree of some kinds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from headlens.attention_masks.patterns import random_ranks


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

    def matrix(self, values: Tensor, length: int, lengths: Tensor | None = None) -> Tensor:
        """Symmetric matrices of the first positions, (..., length, length), of values (..., size)."""
        del lengths
        full = values.new_zeros(*values.shape[:-1], self.n, self.n)
        rows, columns = torch.triu_indices(self.n, self.n, device=values.device)
        full[..., rows, columns] = values
        upper = full[..., :length, :length]
        # What is above the diagonal is mirrored below it; the diagonal is there once.
        return upper + upper.triu(1).mT

    def counts(self, within: int, device: torch.device | None = None, *, diagonal: bool = True) -> Tensor:
        """Number of positions of a text of `within` tokens that each value fills, (size,); also without a diagonal."""
        rows, columns = torch.triu_indices(self.n, self.n, device=device)
        return torch.where(rows == columns, float(diagonal), 2.0).masked_fill(columns >= within, 0.0)

    def offsets(self, device: torch.device | None = None) -> Tensor:
        """Returns the offset |i - j| of the pair of positions that each value stands for: integers of shape (size,)."""
        rows, columns = torch.triu_indices(self.n, self.n, device=device)
        return torch.sub(columns, rows)


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

    def matrix(self, values: Tensor, length: int, lengths: Tensor | None = None) -> Tensor:
        """Toeplitz matrices, (..., length, length), of values (..., size)."""
        del lengths
        near = values[..., :length]
        # (..., 2 length - 1), by the offset j - i from the lowest to the highest
        both = torch.cat([near.flip(-1), near[..., 1:]], dim=-1)
        # Window k has the offsets of the row length - 1 - k.
        return both.unfold(-1, length, 1).flip(-2)

    def counts(self, within: int, device: torch.device | None = None, *, diagonal: bool = True) -> Tensor:
        """Number of positions of a text of `within` tokens that each value fills, (size,); also without a diagonal.

        The first and the last row and column are always active, and no value's.
        """
        inner = (within - 2 - self.offsets(device)).clamp(min=0)
        return torch.where(self.offsets(device) == 0, inner * diagonal, 2 * inner).float()

    def offsets(self, device: torch.device | None = None) -> Tensor:
        """Returns the offset |i - j| that each value stands for, 0 to n - 1: integers of shape (size,)."""
        return torch.arange(self.n, device=device)


@dataclass(frozen=True)
class Connections:
    """Values for the kinds of connections of BigBird: neighbours, global tokens, random keys (Zaheer et al. 2020).

    Of each kind, value k from 1 on opens what a degree of k has and one of k - 1 has not: keys at the distance k, the
    k-th token as a global one, or the k-th key that is drawn for a query, as `Random` draws it for the length of the
    text. Value 0 of neighbours is that of the diagonal; that of the other kinds opens nothing. A position is open as
    far as any kind opens it, 1 - Π (1 - M), and the diagonal, where neighbours have no values, always. So values that
    are 1 up to degrees w, g and r, and 0 beyond, make the pattern `window:w|global:g|random:r`.

    Args:
        n: number of positions.
        kinds: of `CONNECTIONS`, each once.
        seed: of the random keys.
    """

    n: int
    kinds: tuple[str, ...]
    seed: int = 0

    @property
    def size(self) -> int:
        """Number of values that make a mask, n of every kind."""
        return self.n * len(self.kinds)

    def matrix(self, values: Tensor, length: int, lengths: Tensor | None = None) -> Tensor:
        """Matrices (..., 1 or batch, length, length) of values (..., 1, size).

        Args:
            values: the values.
            length: of the batch, padding included.
            lengths: tokens of every sentence, (batch,), on which random keys depend; None for `length`.
        """
        closed = torch.ones((), device=values.device, dtype=values.dtype)
        for kind, part in zip(self.kinds, values.chunk(len(self.kinds), dim=-1), strict=True):
            # One more value, of what no degree opens.
            by_place = nn.functional.pad(part, (0, 1))[..., 0, :]  # (..., n + 1)
            closed = closed * (1.0 - by_place[..., self._places(kind, length, lengths).to(values.device)])
        if "neighbour" not in self.kinds:
            closed = closed.masked_fill(torch.eye(length, dtype=torch.bool, device=closed.device), 0.0)
        return 1.0 - closed

    def counts(self, within: int, device: torch.device | None = None, *, diagonal: bool = True) -> Tensor:
        """Number of positions of a text of `within` tokens that each value fills, (size,); also without a diagonal.

        A position that several kinds open counts for each of them. The first and the last row and column are no
        value's where tokens have no global degree: they are always active.
        """
        counted = torch.ones(within, within, dtype=torch.bool)
        if "global" not in self.kinds:
            counted &= ~at_ends(torch.tensor([within]), within)[0]
        if not diagonal:
            counted.fill_diagonal_(fill_value=False)
        places = [self._places(kind, within, None)[0][counted] for kind in self.kinds]
        return torch.cat([p.bincount(minlength=self.n + 1)[: self.n] for p in places]).float().to(device)

    def _places(self, kind: str, length: int, lengths: Tensor | None) -> Tensor:
        """The value that opens each position, n where none does: (1 or batch, length, length)."""
        place = torch.arange(length)
        if kind == "neighbour":
            return (place[:, None] - place).abs()[None]
        if kind == "global":
            return (torch.minimum(place[:, None], place) + 1).clamp(max=self.n)[None]
        sentences = [length] if lengths is None else lengths.tolist()
        places = torch.full((len(sentences), length, length), self.n)
        for row, tokens in enumerate(sentences):
            places[row, :tokens, :tokens] = _random_places(tokens, self.seed).clamp(max=self.n)
        return places


@lru_cache(maxsize=256)
def _random_places(n: int, seed: int) -> Tensor:
    """The random degree from which on a query looks at a key: (query, key); for the query itself none is enough."""
    return (torch.from_numpy(random_ranks(n, seed)) + 1).fill_diagonal_(torch.iinfo(torch.int64).max)


Shape = PositionPairs | Offsets | Connections


def at_ends(lengths: Tensor, longest: int) -> Tensor:
    """Where a query or a key is the first or last of its sentence: (batch, longest, longest), also in its padding.

    Args:
        lengths: tokens of every sentence, padded at the end: (batch,).
        longest: length of the batch, padding included.
    """
    places = torch.arange(longest, device=lengths.device)
    ends = (places == 0) | (places == lengths[:, None] - 1)
    return ends[:, :, None] | ends[:, None, :]
