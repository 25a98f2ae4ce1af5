"""Masks of any sparsity from learned importance: the positions whose P is largest, or smallest, are kept."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

import torch
from safetensors.torch import load_file
from torch import Tensor

from headlens.attention_masks.attention_mask import AttentionMask, DerivedMask
from headlens.attention_masks.mask_options import MASK_RULES
from headlens.attention_masks.mask_parametrization import Offsets, PositionPairs
from headlens.attention_masks.named_masks import PROBABILITIES, SHARE_ADVICE, ImportanceShare, KeepOrder
from headlens.errors import OptionError, read_errors


@dataclass(frozen=True, eq=False)
class ImportanceMask(DerivedMask):
    """A mask that keeps a share of the positions of every sentence and head, ranked by learned importance P.

    What is ranked is what was learned: offsets |i - j| of a structured mask, else pairs of positions {i, j}, so that
    masks stay symmetric, and structured ones Toeplitz. Of those with the same P the nearer come first, then the earlier
    ones. As many are kept, in order, as come nearest to the share of the m x m positions of a sentence of m tokens.
    What is always active counts among the kept, and stays even where it is more than the share: the first and last row
    and column of a structured mask, which are 7 of 10 positions at m = 4 and 3 of 100 at m = 128.

    Args:
        source: the mask that was learned, with its rules.
        probabilities: P of its positions, (layers or 1, heads or 1, n, n).
        keep: share of the positions that are kept, above 0 and up to 1.
        order: which positions are kept first, the `most` or the `least` important ones, or a `random` order, the same
            in every run, as the control.

    Raises:
        OptionError: if the share is out of range, there is no such order, or P is not of this mask.
    """

    source: AttentionMask
    probabilities: Tensor
    keep: float
    order: str = "most"

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise OptionError(f"{MASK_RULES} keep={self.keep:g} is not a share of the positions.", SHARE_ADVICE)
        if self.order not in get_args(KeepOrder):
            raise OptionError(
                f"{MASK_RULES} keep-order={self.order} is unknown.", f"Choose {', '.join(get_args(KeepOrder))}."
            )
        fits = self.probabilities.shape == self.source.allowed.shape
        if not fits or not bool(((self.probabilities >= 0) & (self.probabilities <= 1)).all()):
            raise OptionError(
                f"{self.source.name}: its {PROBABILITIES} does not hold the probabilities of this mask.",
                "Run train-dam again.",
            )

    @property
    def name(self) -> str:
        """Name of the learned mask, the order and the share, such as `penalty-0.1@most=0.3`."""
        return str(ImportanceShare(self.source.name, self.order, self.keep))

    @property
    def length(self) -> int:
        """Number n of positions that the learned mask covers; no sentence may be longer."""
        return self.source.length

    @property
    def layers(self) -> tuple[int, ...] | None:
        """In which layers the mask was learned; None for all."""
        return self.source.layers

    @property
    def diagonal(self) -> bool:
        """Whether the diagonal was learned; else it is masked."""
        return self.source.diagonal

    @property
    def sha256(self) -> str:
        """SHA-256 digest, in hexadecimal, of the learned mask, its probabilities, the share and the order."""
        digest = hashlib.sha256(f"{self.source.sha256} {self.keep} {self.order}".encode())
        digest.update(self.probabilities.cpu().double().contiguous().numpy().data)
        return digest.hexdigest()

    def block(self, length: int) -> Tensor:
        """Where queries of a sentence may look: (layers or 1, heads or 1, length, length).

        Raises:
            OptionError: for a sentence longer than the mask.
        """
        rules = self.source.block(length)  # refuses what is too long
        # What the rules open and close in any case: on nothing kept, and on everything kept.
        always = self._ruled(torch.zeros_like(rules), length)
        # Positions that each value fills, in the order in which they are kept: (layers, heads, values)
        counts = self._values.counts(length, diagonal=self.diagonal).double()[self._ranking]
        up_to = counts.cumsum(dim=-1)
        before = up_to - counts
        left = self.keep * length**2 - always.sum(dim=(2, 3), dtype=torch.float64)[..., None]
        # Kept with a value is nearer to the share, or as near, than kept without it.
        kept = torch.zeros_like(up_to).scatter(-1, self._ranking, (before + up_to <= 2 * left).double())
        return self._ruled(self._values.matrix(kept, length) > 0.5, length)

    def _ruled(self, kept: Tensor, length: int) -> Tensor:
        """Applies the rules of the learned mask to the kept positions; layers without a mask keep all positions."""
        if self.layers is not None:
            others = [layer for layer in range(len(kept)) if layer not in self.layers]
            kept = kept.index_fill(0, torch.tensor(others, dtype=torch.long), value=True)
        # A mask of just this length, so that its ends are those of the sentence.
        return AttentionMask(kept, self.source.ends, self.diagonal, layers=self.layers).block(length)

    @property
    def _values(self) -> Offsets | PositionPairs:
        return Offsets(self.length) if self.source.ends else PositionPairs(self.length)

    @cached_property
    def _ranking(self) -> Tensor:
        """Numbers of the values, offsets or pairs, from the one kept first: (layers or 1, heads or 1, values)."""
        p = self.probabilities.cpu().double()
        if self.order == "random":
            drawn = torch.rand(self._values.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            values = drawn.expand(*self.shape, -1)
        elif self.source.ends:
            # Offset k in the second row; the last two offsets stand in always active rows alone, and fill no position.
            values = torch.nn.functional.pad(p[:, :, 1, 1:-1], (0, 2)) if self.length > 2 else p[:, :, 0]
        else:
            rows, columns = torch.triu_indices(self.length, self.length)
            values = p[:, :, rows, columns]
        nearest = self._values.offsets().argsort(stable=True)
        by_value = values[..., nearest].argsort(dim=-1, descending=self.order != "least", stable=True)
        return nearest[by_value]

    @classmethod
    def load(cls, path: str | Path, keep: float, order: str = "most") -> ImportanceMask:
        """Reads a mask that `train-dam` learned, and the P that lies beside it.

        Args:
            path: path of the mask's file, or of its folder.
            keep: share of the positions that are kept.
            order: which positions are kept first.

        Raises:
            OptionError: if there is no such mask, or no P beside it.
        """
        learned = AttentionMask.load(path)
        file = (Path(path) if Path(path).is_dir() else Path(path).parent) / PROBABILITIES
        if not file.is_file():
            raise OptionError(
                f"{path}: there is no {PROBABILITIES} next to the mask, which keep needs to rank positions.",
                "It is for masks learned by train-dam, such as runs/dam/masks/penalty-0.01.",
            )
        with read_errors(file, "does not hold probabilities", "Run train-dam again.", OptionError):
            probabilities = load_file(file)["p"]
        return cls(learned, probabilities, keep, order)


# Masks that hold up to some length: those of files.
FiledMask = AttentionMask | ImportanceMask
