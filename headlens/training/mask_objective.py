"""Masks that are trained together with a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headlens.interventions.learned_mask import LearnedAttentionMask, PenaltyKind
from headlens.interventions.learned_mask_model import MaskedModel
from headlens.training.objectives import Inputs, Objective

# How the names of the mask's parameters begin in a `MaskedModel`.
MASK = "mask."


@dataclass(frozen=True)
class MaskSparsityObjective:
    """L = L_task + λ · ‖M‖₁, see `SoftMask.penalty`: of the M that the forward pass drew (Shi et al. 2021, section 4).

    The penalty is one number for a batch; an update's is the mean over its batches, weighted by their units.

    Args:
        objective: of the task.
        mask: of the model that is trained.
        strength: λ.
        kind: the "sum" over layers, heads and n x n positions, as the authors' code has it, or the "mean".
    """

    objective: Objective
    mask: LearnedAttentionMask
    strength: float
    kind: PenaltyKind = "sum"

    def units(self, inputs: Inputs) -> int:
        """Returns the number of units of a batch, as the objective of the task counts them."""
        return self.objective.units(inputs)

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Computes the task's loss, summed over the units of a batch, plus the penalty of the mask, a scalar.

        The penalty, λ · ‖M‖₁, is multiplied by the number of units.
        """
        loss = self.objective.loss(model, inputs)
        # After the forward pass: it draws M.
        return loss + self.mask.penalty(self.kind) * (self.strength * self.units(inputs))


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
