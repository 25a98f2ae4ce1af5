"""Distributions of the numbers M of a learned mask: the Gumbel-sigmoid (Shi et al. 2021), degrees, adaptive spans."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headlens.attention_masks.named_masks import P_AT_START
from headlens.errors import OptionError


@dataclass(frozen=True)
class MaskDistribution(ABC):
    """Base of distributions of numbers M from 0 to 1, nearly 0 or 1, that are drawn with learned probabilities.

    Args:
        temperature: τ; the smaller, the nearer M is to 0 or 1.
        final_temperature: τ at the end of the training, to which it falls in a geometric series; None keeps it.
        straight_through: whether M is rounded to 0 or 1, with the derivative of the number before rounding.

    Raises:
        OptionError: if a temperature is not positive.
    """

    temperature: float = 1.0
    final_temperature: float | None = None
    straight_through: bool = True

    # Whether masks need a structure by offset, and whether the penalty is on probabilities instead of the draw.
    by_offset: ClassVar[bool] = False
    expected: ClassVar[bool] = False
    # Kinds of connections whose numbers follow each other.
    kinds = 1

    def __post_init__(self) -> None:
        for name in ("temperature", "final_temperature"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise OptionError(f"--law {name.replace('_', '-')}={value} is not a positive number.", "Try 1.")

    def by_kind(self, values: Tensor) -> Tensor:
        """Views values of several kinds that follow each other by kind: (..., kinds, values of a kind)."""
        return values.view(*values.shape[:-1], self.kinds, -1)

    def temperature_at(self, share: Tensor) -> Tensor:
        """Temperature τ, a scalar, after a share of the training from 0 to 1."""
        final = self.temperature if self.final_temperature is None else self.final_temperature
        return self.temperature * (final / self.temperature) ** share

    def size(self, values: int) -> int:
        """Number of parameters α that are learned for a mask of `values` numbers M: one for each, by default."""
        return values

    def start(self, near_zero: Tensor) -> Tensor:
        """Parameters α before training, of small random numbers of the same shape."""
        return near_zero

    def noise(self, alpha: Tensor) -> Tensor:
        """Noise of a draw, of the shape of `alpha`, from torch's generator of its device; zeros where none is drawn."""
        return torch.zeros_like(alpha)

    @abstractmethod
    def sample(self, alpha: Tensor, noise: Tensor | float, temperature: Tensor | float = 1.0) -> Tensor:
        """The numbers M of a draw, differentiable by α.

        Args:
            alpha: α, (..., numbers).
            noise: result of `noise`.
            temperature: τ.
        """

    def settled(self, alpha: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
        """The numbers M without noise, differentiable by α; rounded ones are 1 where `kept` is True."""
        return self.sample(alpha, 0.0, temperature)

    @abstractmethod
    def probabilities(self, alpha: Tensor) -> Tensor:
        """Computes the probability that a rounded draw of M is 1, P(M > 1/2), which does not depend on τ.

        Args:
            alpha: α, (..., numbers); the probabilities are differentiable by α.
        """

    @abstractmethod
    def kept(self, alpha: Tensor) -> Tensor:
        """True for the M that stay after training, those with P > 1/2.

        The authors draw masks to the end and publish no rule; this is the more frequent result of a draw.
        """


@dataclass(frozen=True)
class GumbelSigmoid(MaskDistribution):
    """M = sigmoid((α + G₁ - G₂) / τ), G = -log(-log u): the difference of two Gumbel variables is logistic.

    P(M > 1/2) = sigmoid(α) = P whatever τ is; without noise M = sigmoid(α / τ).
    """

    def noise(self, alpha: Tensor) -> Tensor:
        """Draws standard logistic noise log u - log(1 - u) of the shape of `alpha`, u uniform on (0, 1)."""
        return torch.logit(_uniform(alpha))

    def sample(self, alpha: Tensor, noise: Tensor | float, temperature: Tensor | float = 1.0) -> Tensor:
        """The numbers M of a draw, of the shape of α.

        Args:
            alpha: α.
            noise: G₁ - G₂, of the same shape; 0 for none.
            temperature: τ.
        """
        soft = torch.sigmoid((alpha + noise) / temperature)
        return rounded(soft > 0.5, soft) if self.straight_through else soft

    def probabilities(self, alpha: Tensor) -> Tensor:
        """Computes P(M > 1/2) = sigmoid(α), of the shape of `alpha` and differentiable by it."""
        return torch.sigmoid(alpha)

    def kept(self, alpha: Tensor) -> Tensor:
        """Returns a boolean mask of the shape of `alpha`, True where α > 0, that is where P(M > 1/2) > 1/2."""
        return alpha > 0


def rounded(hard: Tensor, soft: Tensor) -> Tensor:
    """Rounded numbers with the gradient of the soft ones: the straight-through estimator (Bengio et al. 2013)."""
    # soft - soft is exactly 0, so that the sum is 0 or 1 to the last digit; added the other way it would be rounded.
    return hard.to(soft) + (soft - soft.detach())


@dataclass(frozen=True)
class GumbelDegrees(MaskDistribution):
    """A degree D from 0, 1, …, w with P(D = d) = softmax(α)_d; a query looks at keys with |i - j| ≤ D.

    One draw of D decides about all offsets: M_k = Σ_{d ≥ k} y_d, with y = softmax((α + G) / τ), G = -log(-log u), the
    Gumbel-softmax (Jang et al. 2017), in which P(y_d is the largest) = softmax(α)_d. So M falls from M_0 = 1, and where
    draws are rounded (straight through, the default) its expectation is P_k = P(D ≥ k), the mass of degrees ≥ k; soft
    draws are nearer to the middle than that. The paper gives no code and leaves the relaxation open.

    Of several kinds of connections each has a degree of its own: α are those of the first kind, then those of the next,
    and so are the numbers M.

    Args:
        largest: w.
        kinds: how many kinds of connections have a degree.

    Raises:
        OptionError: if the largest degree is below 1.
    """

    largest: int = 16
    kinds: int = 1

    by_offset: ClassVar[bool] = True
    expected: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.largest < 1:
            raise OptionError(f"--law largest-degree {self.largest} leaves nothing to learn.", "Give 1 or more.")

    def size(self, values: int) -> int:
        """One α for every degree from 0 to w of every kind.

        Raises:
            OptionError: if degrees are larger than the text.
        """
        if self.largest >= (tokens := values // self.kinds):
            raise OptionError(
                f"--law largest-degree {self.largest} is too large for texts of {tokens} tokens.",
                f"Give at most {tokens - 1}.",
            )
        return self.kinds * (self.largest + 1)

    def start(self, near_zero: Tensor) -> Tensor:
        """Parameters α with which the largest degree has probability 0.9.

        From degrees that are all alike a task that needs far keys is rarely seen solved, and what is never seen is
        never learned: the penalty closes what the task had no time to ask for.
        """
        # softmax gives the last of w + 1 the share p if its α is log(p / (1 - p) w) above the others.
        alpha = near_zero.clone()
        self.by_kind(alpha)[..., -1] += math.log(P_AT_START / (1 - P_AT_START) * self.largest)
        return alpha

    def noise(self, alpha: Tensor) -> Tensor:
        """Draws standard Gumbel noise G = -log(-log u) of the shape of `alpha`, u uniform on (0, 1)."""
        return -torch.log(-torch.log(_uniform(alpha)))

    def sample(self, alpha: Tensor, noise: Tensor | float, temperature: Tensor | float = 1.0) -> Tensor:
        """The numbers M of every offset from 0 to w: (..., kinds x (w + 1)).

        Args:
            alpha: α, (..., kinds x (w + 1)).
            noise: G, of the same shape.
            temperature: τ.
        """
        chosen = torch.softmax(self.by_kind((alpha + noise) / temperature), dim=-1)
        if self.straight_through:
            chosen = rounded(torch.nn.functional.one_hot(chosen.argmax(dim=-1), chosen.shape[-1]), chosen)
        return at_least(chosen).flatten(-2)

    def settled(self, alpha: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
        """The mass of degrees ≥ k of softmax(α / τ), or of the median of softmax(α) where draws are rounded."""
        soft = at_least(torch.softmax(self.by_kind(alpha / temperature), dim=-1)).flatten(-2)
        return rounded(self.kept(alpha), soft) if self.straight_through else soft

    def probabilities(self, alpha: Tensor) -> Tensor:
        """Computes P_k = P(D ≥ k), the probability that the degree is at least k, for every offset k.

        Args:
            alpha: α, (..., kinds x (w + 1)).

        Returns:
            Probabilities of the same shape; P_0 is 1.
        """
        return at_least(self.by_kind(self.distribution(alpha))).flatten(-2)

    def kept(self, alpha: Tensor) -> Tensor:
        """True where P_k > 1/2: offsets up to the median of the degree, the smaller one of two."""
        kept = self.probabilities(alpha) > 0.5
        self.by_kind(kept)[..., 0] = True  # P_0 = 1, whatever rounding makes of it
        return kept

    def distribution(self, alpha: Tensor) -> Tensor:
        """Computes the probability P(D = d) = softmax(α)_d of every degree d from 0 to w: (..., kinds x (w + 1))."""
        return torch.softmax(self.by_kind(alpha), dim=-1).flatten(-2)


@dataclass(frozen=True)
class AdaptiveSpan(MaskDistribution):
    """The adaptive attention span (Sukhbaatar et al. 2019, equations 4 and 5), one number α for each mask.

    M_k = min(max((R + z - k) / R, 0), 1) at the distance k = |i - j|, with the span z = S sigmoid(α) from 0 to S, where
    the authors clamp z after every update. Nothing is drawn: M is the same in training and afterwards, and falls from 1
    at z to 0 at z + R. The penalty is on z / S, as theirs is on z.

    Args:
        largest: S, tokens.
        ramp: R, tokens over which M falls; the authors have 32 for texts of thousands.

    Raises:
        OptionError: if the ramp is below 1.
    """

    largest: int = 127
    ramp: int = 4

    by_offset: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ramp < 1:
            raise OptionError(f"--law span-ramp {self.ramp}: a span has no end.", "Give 1 or more tokens.")

    def size(self, values: int) -> int:
        """Returns 1: a mask of any number of `values` has one span."""
        del values
        return 1

    def start(self, near_zero: Tensor) -> Tensor:
        """Parameters α with which spans are 0.9 of the largest, for a trained model looks anywhere."""
        return near_zero + math.log(P_AT_START / (1 - P_AT_START))

    def spans(self, alpha: Tensor) -> Tensor:
        """Computes z = S sigmoid(α), in tokens, of the shape of `alpha`."""
        return self.largest * torch.sigmoid(alpha)

    def sample(self, alpha: Tensor, noise: Tensor | float = 0.0, temperature: Tensor | float = 1.0) -> Tensor:
        """Computes M_k of every distance from 0 to S, (..., S + 1), of α (..., 1); without noise or temperature."""
        del noise, temperature
        distances = torch.arange(self.largest + 1, device=alpha.device)
        return ((self.ramp + self.spans(alpha) - distances) / self.ramp).clamp(0.0, 1.0)

    def probabilities(self, alpha: Tensor) -> Tensor:
        """Computes M_k, as `sample`: the factor on the weight of a key, for the probability that it counts."""
        return self.sample(alpha)

    def kept(self, alpha: Tensor) -> Tensor:
        """True where M_k > 0, at the distances below z + R."""
        return self.sample(alpha) > 0


def at_least(mass: Tensor) -> Tensor:
    """Computes the sums Σ_{d ≥ k} of the masses of degrees d for every k: (..., degrees)."""
    return mass.flip(-1).cumsum(-1).flip(-1)


def _uniform(alpha: Tensor) -> Tensor:
    # As far from 0 and 1 as single precision can tell: log 0 would be infinite.
    return torch.rand_like(alpha).clamp(min=2.0**-24, max=1 - 2.0**-24)
