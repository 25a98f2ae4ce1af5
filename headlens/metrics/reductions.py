"""Reductions over keys that are slow in torch on processors: numpy does them on the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# From how many keys on numpy's argmax is faster than torch's.
_LONG = 32


def largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """The largest number along the last axis and the place of the first one that is so large."""
    if values.device.type != "cpu" or values.shape[-1] < _LONG:
        found = values.max(dim=-1)
        return found.values, found.indices
    index = torch.from_numpy(values.numpy().argmax(-1))
    return values.gather(-1, index[..., None])[..., 0], index


def dot(first: Tensor, second: Tensor) -> Tensor:
    """Sum of products along the last axis; axes in front of it are broadcast."""
    if first.device.type != "cpu":
        return (first * second).sum(-1)
    products: npt.NDArray[np.floating[Any]] = np.einsum("...k,...k->...", first.numpy(), second.numpy())
    return torch.from_numpy(products)


def entropy(weights: Tensor) -> Tensor:
    """Entropy in nats along the last axis."""
    if weights.device.type != "cpu":
        terms: Tensor = torch.special.entr(weights)
        return terms.sum(-1)
    # Zeros: 0 times the logarithm of the smallest number is 0.
    logarithm = weights.clamp(min=torch.finfo(weights.dtype).tiny).log_()
    return dot(weights, logarithm).neg_()


def count(slots: Tensor, size: int) -> Tensor:
    """How often every number below `size` occurs; (size,)."""
    flat = slots.reshape(-1)
    if flat.device.type == "cpu":
        return torch.bincount(flat, minlength=size)
    # Unlike a bincount this does not wait for the device to tell the largest number.
    return torch.zeros(size, dtype=torch.int64, device=flat.device).scatter_add_(0, flat, torch.ones_like(flat))
