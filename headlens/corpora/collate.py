"""Token ids of different length as one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IGNORED = -100  # transformers' label of positions that do not count
Ids: TypeAlias = npt.NDArray[np.int64]


def padded(rows: Sequence[Sequence[int] | Ids], fill: int) -> Tensor:
    """(rows, longest), filled on the right."""
    found = np.full((len(rows), max(map(len, rows))), fill, dtype=np.int64)
    for place, row in enumerate(rows):
        found[place, : len(row)] = row
    return torch.from_numpy(found)


def attention_mask(rows: Sequence[Sequence[int] | Ids]) -> Tensor:
    """1 for tokens, 0 for padding; (rows, longest)."""
    lengths = torch.tensor([len(row) for row in rows])
    return (torch.arange(int(lengths.max())) < lengths[:, None]).long()
