"""Gates that differ from each other."""

from __future__ import annotations

import torch

from headlens.learning.gate_training import StochasticGates


def spread(gates: StochasticGates) -> StochasticGates:
    """Some closed, some whole, most in between; in place."""
    with torch.no_grad():
        for number, log_alpha in enumerate(gates.log_alpha.values()):
            log_alpha.copy_(torch.linspace(-3.0, 1.0, len(log_alpha)).roll(number))
    return gates
