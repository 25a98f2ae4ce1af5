"""Gates that are trained together with a model, or alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from headlens.heads import Head
from headlens.interventions.stochastic_gates import GatedModel, PenaltyKind, StochasticGates
from headlens.training.objectives import Inputs, Objective

# How the names of gates begin in a `GatedModel`.
GATES = "gates."


@dataclass(frozen=True)
class L0Objective:
    """L = L_task + λ · (expected number of open gates), Voita et al. 2019, equation 7.

    The penalty is one number for an update, whatever its batches: it is added as often as there are units, and the
    update divides by them.

    Args:
        objective: of the task.
        gates: of the model that is trained.
        strength: λ.
        kind: "mean" over layers, as the authors' code has it, or "sum".
    """

    objective: Objective
    gates: StochasticGates
    strength: float
    kind: PenaltyKind = "mean"

    def units(self, inputs: Inputs) -> int:
        """Returns the number of units of a batch, as the objective of the task counts them."""
        return self.objective.units(inputs)

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Computes the task's loss, summed over the units of a batch, plus the penalty for open gates, a scalar.

        The penalty, λ times the expected number of open gates, is multiplied by the number of units.
        """
        penalty = self.gates.penalty(self.kind) * (self.strength * self.units(inputs))
        return self.objective.loss(model, inputs) + penalty


def gate_log_columns(model: nn.Module) -> dict[str, float]:
    """The log α of every head of a gated model, by the head's name: columns of a training's log."""
    assert isinstance(model, GatedModel)
    return {str(head): value for head, value in model.gates.log_alphas().items()}


def logged(row: dict[str, float]) -> dict[Head, float]:
    """Returns the log α of every gated head in a row of a training log, as a mapping from head to number.

    Columns of heads are those with a dot in their name; all other columns are left out.
    """
    return {Head.parse(name): value for name, value in row.items() if "." in name}
