"""What a learned mask is like, in tables: how sparse it is, and which positions it holds on to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from headlens.analyses.dam.results_table import CLASSES
from headlens.interventions.attention_mask import AttentionMask
from headlens.interventions.learned_mask import LearnedAttentionMask
from headlens.training.objectives import mask_sparsity

SPARSITY_COLUMNS = ["mask", "layer", "head", "diagonal", "n", "sparsity"]
POSITION_COLUMNS = ["mask", "layer", "head", "class", "offset", "positions", "p", "kept", "diagonal"]
OFFSET = "offset"
_WHOLE = pd.Int64Dtype()


@dataclass(frozen=True, eq=False)
class LearnedMask:
    """A mask after its training, as tensors on the processor.

    Args:
        name: what tables call it.
        probabilities: P of every position, (layers or 1, heads, n, n); 1 where a position is always active.
        kept: the positions that stay, bool, of the same shape.
        diagonal: whether a token may look at itself.
        structured: whether the first and last row and column of every sentence are active.
        layers: those that are masked, by number; None for all. Nothing of the others is told.
    """

    name: str
    probabilities: Tensor
    kept: Tensor
    diagonal: bool
    structured: bool
    layers: tuple[int, ...] | None = None

    @classmethod
    def of(cls, name: str, mask: LearnedAttentionMask) -> LearnedMask:
        """Copies the current probabilities and kept positions of a mask module to the CPU."""
        rules = mask.options.diagonal, mask.options.ends
        return cls(name, mask.probabilities().cpu(), mask.kept().cpu(), *rules, mask.layers)

    @property
    def file(self) -> AttentionMask:
        """What `--mask` takes: the positions that stay, and the rules for shorter sentences."""
        about = {"n": str(self.n)}
        return AttentionMask(self.kept, self.structured, self.diagonal, self.name, "encoder", about, self.layers)

    @property
    def n(self) -> int:
        """Number n of query and key positions that the mask covers."""
        return self.kept.shape[-1]

    @property
    def sparsity(self) -> float:
        """Share of masked positions of all heads, of the layers that are masked."""
        return mask_sparsity(self.masked_part(self.kept))

    def masked_part(self, values: Tensor) -> Tensor:
        """Of what is told by layer, the layers that are masked."""
        return values if self.layers is None else values[list(self.layers)]

    def sparsity_of(self, lengths: Mapping[int, int]) -> float:
        """The share of masked positions of texts, the mean over texts.

        Args:
            lengths: how many texts there are of each number of tokens.
        """
        shares = {n: mask_sparsity(self.masked_part(self.file.block(n))) for n in lengths}
        return sum(shares[n] * count for n, count in lengths.items()) / sum(lengths.values())

    def sparsities(self) -> pd.DataFrame:
        """The share of masked positions of every head, and in the last row, without layer and head, of all.

        All n x n positions count, the first and last row and column among them, as in the paper's table; masks that are
        shared by the layers have no layer.
        """
        rows = [{**key, "sparsity": mask_sparsity(kept)} for key, kept in self._heads(self.kept)]
        rows.append({"layer": None, "head": None, "sparsity": self.sparsity})
        return self._frame(rows, SPARSITY_COLUMNS)

    def positions(self, window: int = 1) -> pd.DataFrame:
        """The mean P and the share that is kept, by class and by offset, of every head.

        Every position is of one class, the first that fits: `special` are the first and last row and column, `diagonal`
        is i = j, `neighbourhood` |i - j| up to the window, `rest` all others. Rows of the class `offset` have those
        with one |i - j| that are not special.

        Args:
            window: w of the neighbourhood.
        """
        groups = [*_classes(self.n, window), *_offsets(self.n)]
        # By position and group, (n * n, groups): a product with it sums over the positions of each group.
        members = _members(groups)
        counts = members.sum(dim=0)
        # (layers or 1, heads, P or what stays, groups)
        means = torch.stack([t.double().flatten(2) @ members / counts for t in (self.probabilities, self.kept)], dim=2)
        rows = []
        for key, (p_means, kept) in self._heads(means):
            columns = zip(groups, counts.tolist(), p_means.tolist(), kept.tolist(), strict=True)
            rows += [{**key, **names, "positions": int(n), "p": p, "kept": k} for (names, _), n, p, k in columns if n]
        return self._frame(rows, POSITION_COLUMNS)

    def _heads(self, values: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """Layer and head, and what belongs to them, of (layers or 1, heads, ...)."""
        shared = len(values) == 1
        for layer in range(len(values)) if self.layers is None else self.layers:
            for head, matrix in enumerate(values[layer]):
                yield {"layer": None if shared else layer, "head": head}, matrix

    def _frame(self, rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
        common = {"mask": self.name, "diagonal": self.diagonal, "n": self.n}
        frame = pd.DataFrame([{**common, **row} for row in rows])[columns]
        return frame.astype({name: _WHOLE for name in ("layer", "head", OFFSET) if name in columns})


@dataclass(frozen=True)
class PositionClasses:
    """The classes of positions, see `LearnedMask.positions`, for following P over a training.

    Args:
        n: number of query positions, and of key positions.
        window: w of the neighbourhood.
    """

    n: int
    window: int

    @torch.no_grad()
    def importance(self, mask: LearnedAttentionMask) -> dict[str, float]:
        """Computes the mean of P by class, over all heads and positions, in the layers that are masked.

        Classes without any position, as that of all others in a mask of three tokens, are left out.
        """
        p = mask.probabilities()
        p = p if mask.layers is None else p[list(mask.layers)]  # (layers or 1, heads or 1, n, n)
        members = self._members.to(p.device)
        sums, counts = p.double().mean(dim=(0, 1)).flatten() @ members, members.sum(dim=0)
        means = zip(CLASSES, sums.tolist(), counts.tolist(), strict=True)
        return {name: total / count for name, total, count in means if count}

    @cached_property
    def _members(self) -> Tensor:
        return _members(list(_classes(self.n, self.window)))


_Group = tuple[dict[str, Any], Tensor]


def _members(groups: Sequence[_Group]) -> Tensor:
    """1 where a position belongs to a group, else 0: (n * n, groups)."""
    return torch.stack([positions.flatten() for _, positions in groups], dim=1).double()


def _places(n: int) -> tuple[Tensor, Tensor]:
    """The offset |i - j| of every position, and whether it is in the first or last row or column: (n, n)."""
    places = torch.arange(n)
    end = (places == 0) | (places == n - 1)
    return (places[:, None] - places).abs(), end[:, None] | end


def _classes(n: int, window: int) -> Iterator[_Group]:
    """Classes, and which positions are theirs: bool, (n, n)."""
    apart, special = _places(n)
    left = ~special
    inner = (apart == 0, apart <= window, torch.ones_like(special))
    yield {"class": CLASSES[0], OFFSET: None}, special
    for name, fits in zip(CLASSES[1:], inner, strict=True):
        yield {"class": name, OFFSET: None}, left & fits
        left = left & ~fits


def _offsets(n: int) -> Iterator[_Group]:
    """Offsets, and which positions are theirs: bool, (n, n)."""
    apart, special = _places(n)
    for offset in range(n - 2):
        yield {"class": OFFSET, OFFSET: offset}, (apart == offset) & ~special
