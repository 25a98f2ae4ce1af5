"""How the numbers of a learned mask are drawn: what laws have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from headlens.errors import OptionError


@dataclass(frozen=True)
class MaskDistribution(ABC):
    """Numbers M from 0 to 1 that are drawn with learned probabilities, and nearly 0 or 1.

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

    # Whether masks need a structure by offset, and whether the penalty is on the probabilities, not on what was drawn.
    by_offset: ClassVar[bool] = False
    expected: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("temperature", "final_temperature"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise OptionError(f"--{name.replace('_', '-')} {value} is not a positive number.", "Try 1.")

    def temperature_at(self, share: Tensor) -> Tensor:
        """τ after a share of the training, from 0 to 1: a scalar."""
        last = self.temperature if self.final_temperature is None else self.final_temperature
        return self.temperature * (last / self.temperature) ** share

    @abstractmethod
    def size(self, values: int) -> int:
        """How many numbers α are learned for a mask of so many M."""

    def start(self, near_zero: Tensor) -> Tensor:
        """α before training, of small random numbers."""
        return near_zero

    @abstractmethod
    def noise(self, alpha: Tensor) -> Tensor:
        """What makes a draw differ from the next, of the shape of α, from torch's generator of its device."""

    @abstractmethod
    def sample(self, alpha: Tensor, noise: Tensor | float, temperature: Tensor | float = 1.0) -> Tensor:
        """M of a draw, differentiable by α.

        Args:
            alpha: α, (..., numbers).
            noise: of `noise`.
            temperature: τ.
        """

    @abstractmethod
    def settled(self, alpha: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
        """M without noise, differentiable by α; where it is rounded, it is 1 where `kept` says so."""

    @abstractmethod
    def probabilities(self, alpha: Tensor) -> Tensor:
        """Computes the probability that a rounded draw of M is 1, P(M > 1/2), which does not depend on τ.

        Args:
            alpha: α, (..., numbers); the probabilities are differentiable by α.
        """

    @abstractmethod
    def kept(self, alpha: Tensor) -> Tensor:
        """Which M stay in the end, P > 1/2: bool.

        The authors draw masks to the end and publish no rule; this is what a draw gives more often than not.
        """
