"""Learning which positions attention needs, for one strength of the penalty: the core of `headlens train-dam`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pandas as pd
import torch
from transformers import PreTrainedModel

from headlens.analyses.dam.tables import LearnedMask, PositionClasses
from headlens.analyses.training.training_set import TrainingCallbacks, TrainingSet, freeze_unused
from headlens.attention.attach_edit import attach_edit
from headlens.errors import OptionError
from headlens.interventions.attention_mask_edit import MaskEdit
from headlens.interventions.learned_mask import (
    LearnedAttentionMask,
    LearnedMaskOptions,
    PenaltyKind,
    Scope,
    masked_sites,
)
from headlens.interventions.learned_mask_model import MaskedModel
from headlens.interventions.mask_distributions import GumbelSigmoid, MaskDistribution
from headlens.models.freezing import freeze
from headlens.models.loading import LoadedModel
from headlens.runs.mask_options import read_layers
from headlens.tasks.task import Task
from headlens.training.hyperparameters import TrainingOptions, check_strength
from headlens.training.loop import Trainer
from headlens.training.objectives import MASK, PenalizedObjective, mask_log_columns, moved

# From its start near 0, α has to come to about ±4 until draws are nearly always the same.
WAY = 24.0
_FASTEST = 0.5


@dataclass(frozen=True)
class MaskLearningOptions:
    """What mask is learned, and how.

    Args:
        mask: what it is like.
        law: how it is drawn.
        penalty: whether λ multiplies the `sum` over layers, heads and n x n positions, as the authors have it, or their
            `mean`.
        mask_learning_rate: of α, the highest; it follows the schedule of the training. None for 24 / updates, at most
            0.5.
        freeze: parts of the model that stay as they are, see `headlens.models.freezing.freeze`; None for none.
        layers: in which layers the mask holds, such as `6-11` or `last:3`; None for all.
        window: offsets that count as neighbourhood where P is followed over the training.

    Raises:
        OptionError: if a number or a name cannot be.
    """

    mask: LearnedMaskOptions = field(default_factory=lambda: LearnedMaskOptions(structured=True))
    law: MaskDistribution = field(default_factory=GumbelSigmoid)
    penalty: PenaltyKind = "sum"
    mask_learning_rate: float | None = None
    freeze: tuple[str, ...] | None = None
    layers: str | None = None
    window: int = 1

    def __post_init__(self) -> None:
        read_layers(self.layers)
        if self.penalty not in ("sum", "mean"):
            raise OptionError(f"--penalty {self.penalty} is unknown.", "Choose sum or mean.")
        rate = self.mask_learning_rate
        if rate is not None and not 0 < rate < float("inf"):
            raise OptionError(f"--mask-learning-rate {rate} is not a positive number.", "Try 0.05.")

    def rate(self, updates: int) -> float:
        """The highest learning rate of α in a training of so many updates."""
        return self.mask_learning_rate or min(_FASTEST, WAY / updates)


@dataclass(frozen=True, eq=False)
class LearnedMaskResult:
    """What training with a mask gave.

    Args:
        model: trained under the mask; it does not hold it.
        task: says which part of the model is masked.
        mask: as it was learned, in evaluation mode.
        log: of the training; `loss` has the penalty in it.
        importance: mean P of all heads by class of positions before the training and at every row of the log: columns
            step, class, p.
    """

    model: PreTrainedModel
    task: Task
    mask: LearnedAttentionMask
    log: pd.DataFrame
    importance: pd.DataFrame

    @contextmanager
    def hardened(self) -> Iterator[None]:
        """Inside, the model runs under the mask in its final form: positions are masked or not, without noise.

        What was added to the scores is the mask of a file then, as every other command takes it. Where noise is drawn
        `always`, every forward pass draws a mask, in the same way each time.
        """
        if self.mask.options.noise == "always":
            device = self.mask.alpha.device
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(0)
                with MaskedModel(self.task.network(self.model), self.mask).eval().opened():
                    yield
            return
        if self.mask.options.form != "multiplicative":
            with attach_edit(self.model, MaskEdit(LearnedMask.of("learned", self.mask).file)):
                yield
            return
        with MaskedModel(self.task.network(self.model), hard(self.mask)).eval().opened():
            yield


def learn_mask(
    loaded: LoadedModel,
    lesson: TrainingSet,
    strength: float,
    options: MaskLearningOptions | None = None,
    training: TrainingOptions | None = None,
    callbacks: TrainingCallbacks | None = None,
    scope: Scope | None = None,
) -> LearnedMaskResult:
    """Train a model and a mask of its attention together (Shi et al. 2021, with degrees Brahma et al. 2022).

    The last state of the training counts. Processes that train together average the gradients of α, each of which drew
    its own noise.

    Args:
        loaded: a model; it stays as it is.
        lesson: what it is trained on; no text may be longer than the mask.
        strength: λ, of the penalty.
        options: the mask.
        training: length, step size, rhythm.
        callbacks: progress, and what is kept for going on after an interruption.
        scope: heads and positions that count; the layers are those of the options.

    Raises:
        OptionError: if λ is negative, or the model has no encoder or lacks the parts that are named.
    """
    options, training = options or MaskLearningOptions(), training or TrainingOptions()
    callbacks = callbacks or TrainingCallbacks()
    check_strength(strength)
    model = _frozen_copy(loaded, options)
    network = lesson.task.network(model)
    updates = callbacks.updates(lesson.data, training)
    torch.manual_seed(training.seed)
    mask = made_mask(network, options, scope, updates * training.accumulate)
    masked = MaskedModel(network, mask)
    objective = PenalizedObjective(lesson.objective, mask, strength, options.penalty)
    of_classes = PositionClasses(options.mask.longest, options.window)
    start = {"step": 0} | of_classes.importance(mask)
    with masked.eval().opened():
        freeze_unused(masked, objective, moved(lesson.data.batch((0,), 0), loaded.device))
        trainer = Trainer(
            training,
            objective,
            keeper=callbacks.keeper,
            progress=callbacks.progress,
            scales={MASK: options.rate(updates) / training.learning_rate},
            record=lambda model: {**mask_log_columns(model), **of_classes.importance(mask)},
            clip_apart=True,
        )
        state = trainer.fit(masked, lesson.data)
    _release(model, loaded)
    log = pd.DataFrame(state.log)
    followed = pd.concat([pd.DataFrame([start]), log], ignore_index=True)[list(start)]
    importance = followed.melt("step", var_name="class", value_name="p").sort_values("step", kind="stable")
    log = log.drop(columns=[name for name in start if name != "step"])
    return LearnedMaskResult(model.eval(), lesson.task, mask.eval(), log, importance.reset_index(drop=True))


def unmasked(
    loaded: LoadedModel,
    lesson: TrainingSet,
    options: MaskLearningOptions | None = None,
    training: TrainingOptions | None = None,
    callbacks: TrainingCallbacks | None = None,
) -> PreTrainedModel:
    """A copy of the model after the same training without a mask: what `learn_mask` is to be compared with.

    Args:
        loaded: a model; it stays as it is.
        lesson: what it is trained on.
        options: say which parts are frozen, not all of them.
        training: length, step size, rhythm.
        callbacks: progress, and what is kept for going on after an interruption.
    """
    options, training = options or MaskLearningOptions(), training or TrainingOptions()
    model = _frozen_copy(loaded, options)
    torch.manual_seed(training.seed)
    lesson.teach(model, training, callbacks)
    _release(model, loaded)
    return model


def trains_weights(loaded: LoadedModel, lesson: TrainingSet, options: MaskLearningOptions) -> bool:
    """Whether any part of the model is trained beside the mask."""
    model = _frozen_copy(loaded, options)
    lesson.freeze_unused(model)
    return any(p.requires_grad for p in model.parameters())


def _frozen_copy(loaded: LoadedModel, options: MaskLearningOptions) -> PreTrainedModel:
    """To be trained, but for the parts that are frozen."""
    model = copy.deepcopy(loaded.model)
    freeze(model, options.freeze or ())
    return model


def _release(model: PreTrainedModel, loaded: LoadedModel) -> None:
    """What was frozen for a training is so no more."""
    for parameter, before in zip(model.parameters(), loaded.model.parameters(), strict=True):
        parameter.requires_grad_(before.requires_grad)


def made_mask(
    network: PreTrainedModel, options: MaskLearningOptions, scope: Scope | None = None, draws: int = 1
) -> LearnedAttentionMask:
    """A mask for a model, before it is trained; the layers are those of the options.

    Raises:
        OptionError: if the model has no encoder, or fewer layers.
    """
    sites = masked_sites(network)
    layers = read_layers(options.layers, 1 + max(s.layer for s in sites))
    return LearnedAttentionMask(sites, options.mask, options.law, draws, replace(scope or Scope(), layers=layers))


def hard(mask: LearnedAttentionMask) -> LearnedAttentionMask:
    """A mask that keeps what the other one keeps, P > 1/2, and has neither noise nor temperature."""
    law = replace(mask.law, temperature=1.0, final_temperature=None, straight_through=True)
    hard_mask = LearnedAttentionMask(mask.sites, replace(mask.options, noise="never"), law, scope=mask.scope)
    with torch.no_grad():
        hard_mask.alpha.copy_(mask.alpha)
    return hard_mask.eval().requires_grad_(requires_grad=False)
