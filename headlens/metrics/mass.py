"""Where the attention of a head goes on average (Clark et al. 2019, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from headlens.metrics.base import Metric, Sums
from headlens.metrics.totals import Array
from headlens.metrics.view import CallView

KINDS = ("cls", "sep", "bos", "eos", "punct")
NEIGHBOURS = {"self": 0, "prev": -1, "next": 1}


@dataclass(frozen=True)
class Mass(Metric):
    """Mean attention mass per query token to kinds of keys, and the mean distance of attention in tokens.

    `to_first` is the first token whatever it is; a kind that never occurs in the corpus has an empty cell.
    `to_self`, `to_prev`, `to_next` and `distance` compare positions, so cross-attention has none.
    """

    name: ClassVar[str] = "mass"

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Sums of masses over real queries."""
        real = view.queries.real
        weights = view.weights.masked_fill(~real[:, None, :, None], 0)
        received = weights.sum(2, dtype=view.sums_dtype)  # (batch, heads, key)
        sums = {"n": real.sum(), "first": received[:, :, 0].sum(0)}
        for kind in KINDS:
            flag = getattr(view.keys, kind)
            sums[kind] = (received * flag[:, None]).sum((0, 2))
            sums[f"{kind}.keys"] = flag.sum()
        if not view.crosses:
            sums |= _by_position(weights, view.sums_dtype)
        return sums

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Mean masses and distance."""
        n = sums["n"]
        columns = {"to_first": sums["first"] / n}
        columns |= {f"to_{k}": sums[k] / n if sums[f"{k}.keys"] else np.full_like(sums[k], np.nan) for k in KINDS}
        empty = np.full_like(sums["first"], np.nan)
        columns |= {f"to_{name}": sums[name] / n if name in sums else empty for name in NEIGHBOURS}
        columns["distance"] = sums["distance"] / n if "distance" in sums else empty
        return columns


def _by_position(weights: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    sums = {
        name: weights.diagonal(offset, dim1=2, dim2=3).sum((0, 2), dtype=dtype) for name, offset in NEIGHBOURS.items()
    }
    position = torch.arange(weights.shape[2], device=weights.device, dtype=weights.dtype)
    away = (position[:, None] - position[None]).abs()  # (query, key)
    sums["distance"] = (weights * away).sum((2, 3), dtype=dtype).sum(0)
    return sums
