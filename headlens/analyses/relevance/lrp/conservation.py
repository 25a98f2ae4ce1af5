"""Where relevance arrives in the end: at the inputs and, on the way, at biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# From what the backward pass brings to a tensor, and the tensor, to its relevance.
Read = Callable[[Tensor, Tensor], Tensor]


class ConservationLedger:
    """The leaves of one pass, and the relevance that biases kept.

    Args:
        read: how relevance is read off at the leaves.
    """

    def __init__(self, read: Read) -> None:
        self.leaves: list[Tensor] = []
        self._read = read
        self._kept: list[Tensor] = []

    def enter(self, tensor: Tensor) -> Tensor:
        """A tensor at which relevance arrives."""
        self.leaves.append(tensor.requires_grad_())
        return tensor

    def keep(self, output: Tensor, bias: Tensor | float) -> None:
        """A bias that was added to an output takes part in its relevance; ratios c = R / v come by in the backward."""
        on_gradient(output, lambda ratio: self._kept.append(_product(ratio, bias)))

    def collect(self, start: Tensor, gradient: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the backward pass from `start`; the relevance of all leaves and of all biases, each one number.

        Args:
            start: what relevance starts from.
            gradient: what starts at each of its elements; ones by default.
        """
        begun = torch.ones_like(start) if gradient is None else gradient
        found = torch.autograd.grad(start, self.leaves, begun, allow_unused=True)
        pairs = [(g, leaf.detach()) for g, leaf in zip(found, self.leaves, strict=True) if g is not None]
        arrived = [self._read(gradient, leaf).sum() for gradient, leaf in pairs]
        return _total(arrived), _total(self._kept)


def on_gradient(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> None:
    """Call a hook with what the backward pass brings to a tensor; what it returns, if anything, goes on instead."""
    untyped: Any = tensor
    untyped.register_hook(hook)


def _total(parts: list[Tensor]) -> Tensor:
    # On the CPU, in double precision, which not every device has.
    return torch.stack(parts).cpu().double().sum() if parts else torch.zeros((), dtype=torch.float64)


def _product(ratio: Tensor, bias: Tensor | float) -> Tensor:
    """The sum of c · b over all elements; a bias over the last axis costs one reading of c."""
    ratio = ratio.to(torch.promote_types(ratio.dtype, torch.float32))
    if not isinstance(bias, Tensor):
        return ratio.sum() * bias
    bias = bias.to(ratio.dtype)
    if bias.dim() == 1 and bias.shape[0] == ratio.shape[-1]:
        return (ratio @ bias).sum()
    return (ratio * bias).sum()
