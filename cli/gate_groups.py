"""Options of `prune` that belong together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from . import gate_options as g
from . import options as o
from . import role_options as r
from . import task_options as t
from . import training_options as tr
from .groups import LoopGroup, OptionGroup, TaskGroup

if TYPE_CHECKING:
    from headlens.analyses.prune.gate_training import GateOptions
    from headlens.analyses.prune.recipe import RoleOptions, SweepTraining
    from headlens.analyses.prune.sweep import PenaltySweepOptions
    from headlens.analyses.training.training_set_options import TrainingSetOptions


@dataclass(frozen=True)
class LessonGroup(TaskGroup):
    """What a trained model is trained on further, and measured on."""

    dev_data: t.DevDataOption = None
    corpus: o.CorpusOption = "demo"
    column: o.ColumnOption = None
    target_column: o.TargetColumnOption = None
    split: o.SplitOption = "train"
    dev: t.DevOption = None
    dev_target: t.DevTargetOption = None
    dev_share: g.HeldShareOption = None
    longest: tr.LongestOption = None
    mask_share: tr.GuessedShareOption = 0.15
    label_smoothing: tr.SmoothingOption = 0.1
    next_sentence: tr.NextSentenceOption = False

    def lesson(self, task: str) -> TrainingSetOptions:
        """Returns the options as the `TrainingSetOptions` of a task, which say what is trained on and measured on."""
        from headlens.analyses.training.training_set_options import TrainingSetOptions

        examples = {f.name for f in fields(TaskGroup)}
        return TrainingSetOptions(self.of(task), **{k: v for k, v in vars(self).items() if k not in examples})


@dataclass(frozen=True)
class GateGroup(OptionGroup):
    """Which heads have gates, and how strongly these are to close."""

    lambdas: g.LambdasOption = None
    target_heads: g.TargetHeadsOption = None
    most_runs: g.MostRunsOption = 8
    gates: g.GatesOption = None
    freeze: g.FreezeOption = None
    penalty: g.PenaltyOption = "mean"
    gate_start: g.GateStartOption = 2.5
    gate_learning_rate: g.GateRateOption = None
    from_scratch: g.FromScratchOption = False
    save: g.SaveOption = "compacted"

    def options(self) -> GateOptions:
        """Of every run, as the package wants them."""
        from headlens.analyses.prune.gate_training import GateOptions

        stacks: Any = g.split_list(self.gates) or ()
        rate, frozen = self.gate_learning_rate, g.split_list(self.freeze)
        return GateOptions(stacks, frozen, self.penalty, self.gate_start, rate, self.save)

    def sweep(self) -> PenaltySweepOptions:
        """Returns the `PenaltySweepOptions`: penalties λ, target heads, limit of runs, training from scratch."""
        from headlens.analyses.prune.sweep import PenaltySweepOptions

        strengths = None if self.lambdas is None else g.split_numbers("--lambdas", self.lambdas)
        return PenaltySweepOptions(strengths, self.target_heads, self.most_runs, self.from_scratch)


@dataclass(frozen=True)
class SweepTrainingGroup(LoopGroup):
    """Length, step size and rhythm of the trainings of a sweep."""

    batch_tokens: o.BatchTokensOption = 512
    scratch_steps: g.ScratchStepsOption = None
    scratch_learning_rate: g.ScratchRateOption = 5e-4

    def options(self) -> SweepTraining:
        """Returns the options as the `SweepTraining` of the recipe of `headlens prune`."""
        from headlens.analyses.prune.recipe import SweepTraining

        return SweepTraining(**vars(self))


@dataclass(frozen=True)
class RolesGroup(OptionGroup):
    """Where the roles of heads are looked at."""

    roles_corpus: g.RolesCorpusOption = None
    roles_target: g.RolesTargetOption = None
    frequency: r.FrequencyOption = "wordfreq:en"

    def options(self) -> RoleOptions:
        """Returns the options as the `RoleOptions` of the recipe of `headlens prune`."""
        from headlens.analyses.prune.recipe import RoleOptions

        return RoleOptions(**vars(self))
