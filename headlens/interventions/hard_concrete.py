"""The Hard Concrete distribution: numbers from 0 to 1 that are often exactly 0 or 1 (Louizos et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HardConcrete:
    """A sigmoid of logistic noise, stretched beyond 0 and 1 and cut off there.

    s = sigmoid((log u - log(1 - u) + log α) / β), u uniform on (ε, 1 - ε); g = min(1, max(0, s (ζ - γ) + γ)). The
    defaults are the constants of Voita et al.'s code.

    Args:
        temperature: β; the smaller, the nearer s is to 0 or 1.
        low, high: γ and ζ, to which s is stretched; below 0 and above 1.
        epsilon: ε, how far noise stays away from 0 and 1.

    Raises:
        ValueError: if the stretch does not reach beyond 0 and 1.
    """

    temperature: float = 0.33
    low: float = -0.1
    high: float = 1.1
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        reaches_beyond = self.low < 0 and self.high > 1
        if not reaches_beyond or self.temperature <= 0 or not 0 <= self.epsilon < 0.5:
            raise ValueError(f"{self} is not a Hard Concrete distribution")

    @property
    def closed_below(self) -> float:
        """The log α up to which a gate is closed at evaluation: log(-γ / ζ), about -2.398."""
        return math.log(-self.low / self.high)

    def noise(self, log_alpha: Tensor) -> Tensor:
        """Uniform noise of the shape of log α, from torch's generator of its device."""
        return self.epsilon + (1 - 2 * self.epsilon) * torch.rand_like(log_alpha)

    def sample(self, log_alpha: Tensor, noise: Tensor) -> Tensor:
        """Gates for training: of the shape of log α and noise; differentiable by log α."""
        logits = (torch.log(noise) - torch.log1p(-noise) + log_alpha) / self.temperature
        return self._stretched(logits).clamp(0.0, 1.0)

    def gate(self, log_alpha: Tensor) -> Tensor:
        """Gates for evaluation: without noise and temperature, exactly 0 if and only if log α <= `closed_below`."""
        # Open gates stay above 0, also where rounding would close them.
        smallest = torch.finfo(log_alpha.dtype).eps
        return self._stretched(log_alpha).clamp(smallest, 1.0).masked_fill(log_alpha <= self.closed_below, 0.0)

    def open_probability(self, log_alpha: Tensor) -> Tensor:
        """Computes the probability that a gate is open, P(g ≠ 0) = sigmoid(log α - β log(-γ / ζ)).

        It is what the L0 penalty sums (Louizos et al. 2018), of the shape of `log_alpha` and differentiable by it.
        """
        return torch.sigmoid(log_alpha - self.temperature * self.closed_below)

    def _stretched(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits) * (self.high - self.low) + self.low
