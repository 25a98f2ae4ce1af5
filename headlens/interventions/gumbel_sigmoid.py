"""The Gumbel-sigmoid: a sigmoid with logistic noise, nearly 0 or 1 (Shi et al. 2021, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headlens.errors import OptionError


@dataclass(frozen=True)
class GumbelSigmoid:
    """M = sigmoid((α + G₁ - G₂) / τ), G = -log(-log u): the difference of two Gumbel variables is logistic.

    P(M > 1/2) = sigmoid(α) = P whatever τ is; without noise M = sigmoid(α / τ).

    Args:
        temperature: τ; the smaller, the nearer M is to 0 or 1.
        final_temperature: what τ has fallen to at the end of the training, in a geometric series; None keeps it.
        straight_through: M is 0 or 1, and its derivative that of the number that was rounded.

    Raises:
        OptionError: if a temperature is not positive.
    """

    temperature: float = 1.0
    final_temperature: float | None = None
    straight_through: bool = True

    def __post_init__(self) -> None:
        for name in ("temperature", "final_temperature"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise OptionError(f"--{name.replace('_', '-')} {value} is not a positive number.", "Try 1.")

    def temperature_at(self, share: Tensor) -> Tensor:
        """τ after a share of the training, from 0 to 1: a scalar."""
        last = self.temperature if self.final_temperature is None else self.final_temperature
        return self.temperature * (last / self.temperature) ** share

    def noise(self, alpha: Tensor) -> Tensor:
        """Logistic noise of the shape of α, from torch's generator of its device."""
        # As far from 0 and 1 as single precision can tell.
        uniform = torch.rand_like(alpha).clamp(min=2.0**-24, max=1 - 2.0**-24)
        return torch.logit(uniform)

    def sample(self, alpha: Tensor, noise: Tensor | float, temperature: Tensor | float = 1.0) -> Tensor:
        """M, of the shape of α; differentiable by α.

        Args:
            alpha: α.
            noise: G₁ - G₂, of the same shape; 0 for none.
            temperature: τ.
        """
        soft = torch.sigmoid((alpha + noise) / temperature)
        if not self.straight_through:
            return soft
        hard = (soft > 0.5).to(soft)
        # In this order the sum is 0 or 1 to the last digit.
        return hard + (soft - soft.detach())
