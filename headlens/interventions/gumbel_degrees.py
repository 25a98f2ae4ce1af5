"""Degrees of neighbours that are drawn: how far to each side a query looks (after Brahma et al. 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headlens.errors import OptionError
from headlens.interventions.gumbel_sigmoid import rounded
from headlens.interventions.mask_distributions import MaskDistribution

_FIRST = 0.9  # probability of the largest degree before training


@dataclass(frozen=True)
class GumbelDegrees(MaskDistribution):
    """A degree D from 0, 1, …, w with P(D = d) = softmax(α)_d; a query looks at keys with |i - j| ≤ D.

    One draw of D decides about all offsets: M_k = Σ_{d ≥ k} y_d, with y = softmax((α + G) / τ), G = -log(-log u), the
    Gumbel-softmax (Jang et al. 2017), in which P(y_d is the largest) = softmax(α)_d. So M falls from M_0 = 1, and where
    draws are rounded (straight through, the default) its expectation is P_k = P(D ≥ k), the mass of degrees ≥ k; soft
    draws are nearer to the middle than that. The paper gives no code and leaves the relaxation open.

    Args:
        largest: w.

    Raises:
        OptionError: if the largest degree is below 1.
    """

    largest: int = 16

    by_offset: ClassVar[bool] = True
    expected: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.largest < 1:
            raise OptionError(f"--largest-degree {self.largest} leaves nothing to learn.", "Give 1 or more.")

    def size(self, values: int) -> int:
        """An α for every degree.

        Raises:
            OptionError: if degrees are larger than the text.
        """
        if self.largest >= values:
            raise OptionError(
                f"--largest-degree {self.largest} is more than texts of {values} tokens have.",
                f"Give at most {values - 1}.",
            )
        return self.largest + 1

    def start(self, near_zero: Tensor) -> Tensor:
        """Degrees begin at the largest, with probability 0.9.

        From degrees that are all alike a task that needs far keys is rarely seen solved, and what is never seen is
        never learned: the penalty closes what the task had no time to ask for.
        """
        lifted = near_zero.clone()
        lifted[..., -1] += math.log(_FIRST / (1 - _FIRST) * self.largest)
        return lifted

    def noise(self, alpha: Tensor) -> Tensor:
        """Draws standard Gumbel noise G = -log(-log u) of the shape of `alpha`, u uniform on (0, 1)."""
        uniform = torch.rand_like(alpha).clamp(min=2.0**-24, max=1 - 2.0**-24)
        return -torch.log(-torch.log(uniform))

    def sample(self, alpha: Tensor, noise: Tensor | float, temperature: Tensor | float = 1.0) -> Tensor:
        """M of every offset from 0 to w: (..., w + 1).

        Args:
            alpha: α, (..., w + 1).
            noise: G, of the same shape.
            temperature: τ.
        """
        soft = torch.softmax((alpha + noise) / temperature, dim=-1)
        if not self.straight_through:
            return at_least(soft)
        hard = torch.nn.functional.one_hot(soft.argmax(dim=-1), soft.shape[-1])
        return at_least(rounded(hard, soft))

    def settled(self, alpha: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
        """The mass of degrees ≥ k of softmax(α / τ), where draws are rounded that of the median of softmax(α)."""
        soft = at_least(torch.softmax(alpha / temperature, dim=-1))
        return rounded(self.kept(alpha), soft) if self.straight_through else soft

    def probabilities(self, alpha: Tensor) -> Tensor:
        """Computes P_k = P(D ≥ k), the probability that the degree is at least k, for every offset k.

        Args:
            alpha: α, (..., w + 1).

        Returns:
            Probabilities of shape (..., w + 1); P_0 is 1.
        """
        return at_least(torch.softmax(alpha, dim=-1))

    def kept(self, alpha: Tensor) -> Tensor:
        """P_k > 1/2: offsets up to the median of the degree, the smaller one of two."""
        found = self.probabilities(alpha) > 0.5
        found[..., 0] = True
        return found

    def distribution(self, alpha: Tensor) -> Tensor:
        """Computes the probability P(D = d) = softmax(α)_d of every degree d from 0 to w: (..., w + 1)."""
        return torch.softmax(alpha, dim=-1)


def at_least(mass: Tensor) -> Tensor:
    """Σ_{d ≥ k} of what belongs to degrees d: (..., degrees)."""
    return mass.flip(-1).cumsum(-1).flip(-1)
