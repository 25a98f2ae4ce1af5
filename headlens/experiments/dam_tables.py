"""What a learned mask is like, in tables: how sparse it is, and which positions it holds on to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from headlens.interventions.attention_mask import AttentionMask
from headlens.interventions.soft_masks import SoftMask
from headlens.training.masks import sparsity

SPARSITY_COLUMNS = ["mask", "layer", "head", "diagonal", "n", "sparsity"]
POSITION_COLUMNS = ["mask", "layer", "head", "class", "offset", "positions", "p", "kept"]
CLASSES = ("special", "diagonal", "neighbourhood", "rest")
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
    """

    name: str
    probabilities: Tensor
    kept: Tensor
    diagonal: bool
    structured: bool

    @classmethod
    def of(cls, name: str, mask: SoftMask) -> LearnedMask:
        """What a mask holds now."""
        options = mask.options
        return cls(name, mask.probabilities().cpu(), mask.kept().cpu(), options.diagonal, options.structured)

    @property
    def file(self) -> AttentionMask:
        """What `--mask` takes: the positions that stay, and the rules for shorter sentences."""
        return AttentionMask(self.kept, self.structured, self.diagonal, self.name, "encoder", {"n": str(self.n)})

    @property
    def n(self) -> int:
        """Positions."""
        return self.kept.shape[-1]

    @property
    def sparsity(self) -> float:
        """Share of masked positions of all heads."""
        return sparsity(self.kept)

    def sparsities(self) -> pd.DataFrame:
        """The share of masked positions of every head, and in the last row, without layer and head, of all.

        All n x n positions count, the first and last row and column among them, as in the paper's table; masks that are
        shared by the layers have no layer.
        """
        rows = [{**key, "sparsity": sparsity(own)} for key, own in self._heads(self.kept)]
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
        groups = list(_groups(self.n, window))
        # by position and group: (n * n, groups)
        members = torch.stack([own.flatten() for _, own in groups], dim=1).double()
        counts = members.sum(dim=0)
        kept = dict(self._heads(self.kept.double().flatten(2) @ members / counts, as_key=True))
        rows = []
        for key, means in self._heads(self.probabilities.double().flatten(2) @ members / counts):
            own = zip(groups, counts.tolist(), means.tolist(), kept[tuple(key.values())].tolist(), strict=True)
            rows += [{**key, **names, "positions": int(n), "p": p, "kept": k} for (names, _), n, p, k in own if n]
        return self._frame(rows, POSITION_COLUMNS)

    def _heads(self, values: Tensor, *, as_key: bool = False) -> Iterator[tuple[Any, Tensor]]:
        """Layer and head, and what belongs to them, of (layers or 1, heads, ...)."""
        shared = len(values) == 1
        for layer, of_layer in enumerate(values):
            for head, own in enumerate(of_layer):
                key = {"layer": None if shared else layer, "head": head}
                yield (tuple(key.values()) if as_key else key), own

    def _frame(self, rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
        common = {"mask": self.name, "diagonal": self.diagonal, "n": self.n}
        frame = pd.DataFrame([{**common, **row} for row in rows])[columns]
        return frame.astype({name: _WHOLE for name in ("layer", "head", OFFSET) if name in columns})


def _groups(n: int, window: int) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Classes and offsets, and which positions are theirs: bool, (n, n)."""
    places = torch.arange(n)
    apart = (places[:, None] - places).abs()
    end = (places == 0) | (places == n - 1)
    special = end[:, None] | end
    left = ~special
    inner = (apart == 0, apart <= window, torch.ones_like(special))
    yield {"class": CLASSES[0], OFFSET: None}, special
    for name, fits in zip(CLASSES[1:], inner, strict=True):
        yield {"class": name, OFFSET: None}, left & fits
        left = left & ~fits
    for offset in range(n - 2):
        yield {"class": OFFSET, OFFSET: offset}, (apart == offset) & ~special
