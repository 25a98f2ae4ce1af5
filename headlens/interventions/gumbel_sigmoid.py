"""The Gumbel-sigmoid: a sigmoid with logistic noise, nearly 0 or 1 (Shi et al. 2021, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headlens.interventions.mask_distributions import MaskDistribution


@dataclass(frozen=True)
class GumbelSigmoid(MaskDistribution):
    """M = sigmoid((α + G₁ - G₂) / τ), G = -log(-log u): the difference of two Gumbel variables is logistic.

    P(M > 1/2) = sigmoid(α) = P whatever τ is; without noise M = sigmoid(α / τ).
    """

    def size(self, values: int) -> int:
        """Returns `values`: there is one parameter α for every number M of the mask."""
        return values

    def noise(self, alpha: Tensor) -> Tensor:
        """Draws standard logistic noise log u - log(1 - u) of the shape of `alpha`, u uniform on (0, 1)."""
        # As far from 0 and 1 as single precision can tell.
        uniform = torch.rand_like(alpha).clamp(min=2.0**-24, max=1 - 2.0**-24)
        return torch.logit(uniform)

    def sample(self, alpha: Tensor, noise: Tensor | float, temperature: Tensor | float = 1.0) -> Tensor:
        """M, of the shape of α.

        Args:
            alpha: α.
            noise: G₁ - G₂, of the same shape; 0 for none.
            temperature: τ.
        """
        soft = torch.sigmoid((alpha + noise) / temperature)
        return rounded(soft > 0.5, soft) if self.straight_through else soft

    def settled(self, alpha: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
        """sigmoid(α / τ), rounded where draws are."""
        return self.sample(alpha, 0.0, temperature)

    def probabilities(self, alpha: Tensor) -> Tensor:
        """Computes P(M > 1/2) = sigmoid(α), of the shape of `alpha` and differentiable by it."""
        return torch.sigmoid(alpha)

    def kept(self, alpha: Tensor) -> Tensor:
        """Returns a boolean mask of the shape of `alpha`, True where α > 0, that is where P(M > 1/2) > 1/2."""
        return alpha > 0


def rounded(hard: Tensor, soft: Tensor) -> Tensor:
    """The numbers 0 and 1 with the derivative of others: straight-through."""
    # In this order the sum is 0 or 1 to the last digit.
    return hard.to(soft) + (soft - soft.detach())
