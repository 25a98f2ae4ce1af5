"""Reductions over keys that are slow in torch on processors: numpy does them on the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# From how many keys on numpy's argmax is faster than torch's.
_LONG = 32
# numpy's logarithm and scalar product are two to three times as fast as torch's, where it has vector instructions for
# them; elsewhere its logarithm is slower.
_NUMPY_LOG = torch.backends.cpu.get_cpu_capability().startswith("AVX")
# Numbers that are worked on at a time: on processors intermediate results stay in the cache, elsewhere in the memory.
_CHUNK = {"cpu": 2**17, "other": 2**26}


def largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """The largest number along the last axis and the place of the first one that is so large."""
    if values.device.type != "cpu" or values.shape[-1] < _LONG:
        peak = values.max(dim=-1)
        return peak.values, peak.indices
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
    smallest = torch.finfo(weights.dtype).tiny
    flat = weights.reshape(-1, weights.shape[-1])
    entropies = flat.new_empty(len(flat))
    n_rows = at_once(weights, weights.shape[-1])
    room = flat.new_empty((min(n_rows, len(flat)), weights.shape[-1]))
    for rows, out in zip(row_chunks(flat, n_rows), row_chunks(entropies, n_rows), strict=True):
        # Zeros: 0 times the logarithm of the smallest number is 0.
        logarithm = log_(torch.clamp(rows, min=smallest, out=room[: len(rows)]))
        np.vecdot(rows.numpy(), logarithm.numpy(), out=out.numpy())
    return entropies.neg_().view(weights.shape[:-1])


def log_(values: Tensor) -> Tensor:
    """Puts the natural logarithm of positive numbers in their place, and returns them."""
    if values.device.type != "cpu" or not _NUMPY_LOG:
        return values.log_()
    np.log(values.numpy(), out=values.numpy())
    return values


def at_once(weights: Tensor, size: int) -> int:
    """How many parts of a size to work on at a time."""
    return max(1, _CHUNK.get(weights.device.type, _CHUNK["other"]) // max(1, size))


def row_chunks(tensor: Tensor, size: int) -> list[Tensor]:
    """Parts of at most `size` rows; one at least."""
    return [tensor[i : i + size] for i in range(0, max(1, len(tensor)), size)]


def count(slots: Tensor, size: int) -> Tensor:
    """How often every number below `size` occurs; (size,)."""
    flat = slots.reshape(-1)
    if flat.device.type == "cpu":
        return torch.bincount(flat, minlength=size)
    # Unlike a bincount this does not wait for the device to tell the largest number.
    return torch.zeros(size, dtype=torch.int64, device=flat.device).scatter_add_(0, flat, torch.ones_like(flat))


def exact_type(tensor: Tensor) -> torch.dtype:
    """float64, or float32 on devices that have no more."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64
