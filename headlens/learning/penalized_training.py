"""Training a model together with gates of its heads or a mask of its attention, which a penalty makes smaller."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.interventions.edited_model import EDIT, EditedModel, LearnedEdit
from headlens.learning.hyperparameters import TrainingOptions, check_strength
from headlens.learning.loop import Row, Trainer
from headlens.learning.objectives import Inputs, Objective, moved
from headlens.learning.training_set import TrainingCallbacks, TrainingSet, freeze_unused
from headlens.models.freezing import freeze
from headlens.models.loading import LoadedModel
from headlens.options import PenaltyKind


@dataclass(frozen=True)
class PenalizedObjective:
    """L = L_task + λ · the penalty of what is trained beside the model: its gates, or its attention mask.

    Of gates that is the expected number of open ones (Voita et al. 2019, equation 7); of a mask ‖M‖₁ of the M that the
    forward pass drew, see `LearnedAttentionMask.penalty` (Shi et al. 2021, section 4).

    Args:
        objective: of the task.
        penalized: gates or mask of the model that is trained.
        strength: λ.
        kind: "mean" over layers (of a mask over all positions), or "sum".

    Raises:
        OptionError: if λ is negative or not finite.
    """

    objective: Objective
    penalized: LearnedEdit
    strength: float
    kind: PenaltyKind

    def __post_init__(self) -> None:
        check_strength(self.strength)

    def units(self, inputs: Inputs) -> int | Tensor:
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


def frozen_copy(loaded: LoadedModel, parts: Sequence[str] | None) -> PreTrainedModel:
    """A copy of a model to be trained, some parts of which stay as they are, see `headlens.models.freezing.freeze`."""
    model = copy.deepcopy(loaded.model)
    freeze(model, parts or ())
    return model


def thaw(model: PreTrainedModel, loaded: LoadedModel) -> None:
    """Unfreezes the parameters of a copy that are not frozen in the original."""
    for parameter, before in zip(model.parameters(), loaded.model.parameters(), strict=True):
        parameter.requires_grad_(before.requires_grad)


def train_penalized(
    network: PreTrainedModel,
    training_set: TrainingSet,
    objective: PenalizedObjective,
    rate: float,
    training: TrainingOptions,
    callbacks: TrainingCallbacks,
    **options: Any,
) -> list[Row]:
    """Trains a model, as far as it is not frozen, and gates of its heads or a mask of its attention, both in place.

    The last state of the training counts. Processes that train together average the gradients of the edit, of which
    each drew its own noise.

    Args:
        network: the part of the model that the task runs.
        training_set: what it is trained on.
        objective: has the edit, made for this part, and its penalty.
        rate: the highest learning rate of the edit; it follows the schedule of the training.
        training: length, step size, rhythm.
        callbacks: progress, and what is kept for going on after an interruption.
        options: further options of `Trainer`, such as what the log says.

    Returns:
        The log, a row for every logged update.

    Raises:
        OptionError: if the edit does not fit the model.
    """
    edited = EditedModel(network, objective.penalized)
    scales = {EDIT: rate / training.learning_rate}
    # Processes that train together wait for all gradients: what gets none is found before, and frozen.
    with edited.eval().opened():
        freeze_unused(edited, objective, moved(training_set.data.batch((0,), 0), network.device))
        trainer = Trainer(
            training, objective, checkpoint=callbacks.checkpoint, progress=callbacks.progress, scales=scales, **options
        )
        return trainer.fit(edited, training_set.data).log
