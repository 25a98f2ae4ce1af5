"""Gates and masks that are trained together with a model, or alone: the penalty that closes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headlens.heads import Head
from headlens.interventions.learned_mask import LearnedAttentionMask
from headlens.interventions.learned_mask_model import MaskedModel
from headlens.interventions.stochastic_gates import GatedModel, PenaltyKind, StochasticGates
from headlens.training.objectives import Inputs, Objective

# How the names of gates begin in a `GatedModel`.
GATES = "gates."
# How the names of the mask's parameters begin in a `MaskedModel`.
MASK = "mask."


@dataclass(frozen=True)
class PenalizedObjective:
    """L = L_task + λ · the penalty of what is trained beside the model: its gates, or its attention mask.

    Of gates that is the expected number of open ones (Voita et al. 2019, equation 7); of a mask ‖M‖₁ of the M that the
    forward pass drew, see `SoftMask.penalty` (Shi et al. 2021, section 4).

    Args:
        objective: of the task.
        penalized: gates or mask of the model that is trained.
        strength: λ.
        kind: "mean" over layers (of a mask over all positions), or "sum".
    """

    objective: Objective
    penalized: StochasticGates | LearnedAttentionMask
    strength: float
    kind: PenaltyKind

    def units(self, inputs: Inputs) -> int:
        """Returns the number of units of a batch, as the objective of the task counts them."""
        return self.objective.units(inputs)

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Computes the task's loss, summed over the units of a batch, plus the penalty, a scalar.

        The penalty is one number, whatever the batch: it is added as often as there are units, by which the update
        divides. What differs between batches is so weighted by their units.
        """
        # First the forward pass: it draws the M whose size the penalty of a mask is.
        loss = self.objective.loss(model, inputs)
        return loss + self.penalized.penalty(self.kind) * (self.strength * self.units(inputs))


def gate_log_columns(model: nn.Module) -> dict[str, float]:
    """The log α of every head of a gated model, by the head's name: columns of a training's log."""
    assert isinstance(model, GatedModel)
    return {str(head): value for head, value in model.gates.log_alphas().items()}


def logged(row: dict[str, float]) -> dict[Head, float]:
    """Returns the log α of every gated head in a row of a training log, as a mapping from head to number.

    Columns of heads are those with a dot in their name; all other columns are left out.
    """
    return {Head.parse(name): value for name, value in row.items() if "." in name}


def mask_log_columns(model: nn.Module) -> dict[str, float]:
    """What a training's log says of the mask: its sparsity, how sure it is, and the temperature of its noise.

    `mask_sparsity` is the share of all n x n positions of all heads that are masked in the end, in the layers that are;
    `undecided` the share of numbers with a P between 0.1 and 0.9, of which draws still go both ways.
    """
    assert isinstance(model, MaskedModel)
    mask = model.mask
    with torch.no_grad():
        open_share = mask.law.probabilities(mask.alpha)
        undecided = ((open_share > 0.1) & (open_share < 0.9)).float().mean()
        kept = mask.kept() if mask.layers is None else mask.kept()[list(mask.layers)]
    values = (mask_sparsity(kept), float(undecided), float(mask.temperature))
    return dict(zip(("sparsity", "undecided", "temperature"), values, strict=True))


def mask_sparsity(kept: Tensor) -> float:
    """Share of masked positions of masks (..., n, n), first and last row and column included as the paper counts."""
    return 1.0 - float(kept.double().mean())
