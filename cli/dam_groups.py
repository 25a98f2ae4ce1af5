"""Options of `train-dam` that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import dam_options as d
from . import options as o
from .gate_groups import LessonGroup
from .gate_options import split_list
from .groups import LoopGroup, OptionGroup

if TYPE_CHECKING:
    from headlens.analyses.dam.learning import DamOptions
    from headlens.training.hyperparameters import LoopOptions


@dataclass(frozen=True)
class MaskLessonGroup(LessonGroup):
    """What a model is trained on with its mask; texts are as long as the mask."""

    longest: d.MaskLongestOption = 128


@dataclass(frozen=True)
class MaskTrainingGroup(LoopGroup):
    """Length, step size and rhythm."""

    batch_tokens: o.BatchTokensOption = 512

    def options(self) -> LoopOptions:
        """Returns the options as the `LoopOptions` of the training loop."""
        from headlens.training.hyperparameters import LoopOptions

        return LoopOptions(**vars(self))


@dataclass(frozen=True)
class LearnedMaskGroup(OptionGroup):
    """What the mask is like, and how it is learned."""

    structured: d.StructuredOption = True
    per_layer: d.PerLayerOption = False
    layers: d.MaskedLayersOption = None
    form: d.FormOption = "additive"
    strength: d.StrengthOption = 1e4
    diagonal: d.MaskDiagonalOption = True
    noise: d.NoiseOption = "training"
    temperature: d.TemperatureOption = 1.0
    final_temperature: d.FinalTemperatureOption = None
    straight_through: d.StraightOption = True
    penalty: d.MaskPenaltyOption = "sum"
    mask_learning_rate: d.MaskRateOption = None
    freeze: d.MaskFreezeOption = None

    def options(self, longest: int) -> DamOptions:
        """Returns the options as the `DamOptions` of a mask for up to `longest` tokens."""
        from headlens.analyses.dam.learning import DamOptions
        from headlens.interventions.gumbel_sigmoid import GumbelSigmoid
        from headlens.interventions.learned_mask import LearnedMaskOptions

        shape = (longest, self.structured, self.per_layer, self.form, self.strength, self.diagonal, self.noise)
        law = GumbelSigmoid(self.temperature, self.final_temperature, self.straight_through)
        rate, frozen = self.mask_learning_rate, split_list(self.freeze)
        return DamOptions(LearnedMaskOptions(*shape), law, self.penalty, rate, frozen, self.layers)
