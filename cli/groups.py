"""Options that belong together, declared once and used by many commands.

A command takes a group as one parameter, `load: LoadGroup`; on the command line its fields are options of the command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

from . import head_options as h
from . import mask_options as m
from . import options as o
from . import role_options as r
from . import task_options as t
from . import training_options as tr
from .process_rank import rank

if TYPE_CHECKING:
    from headlens.analyses.ablate.pruning_options import PruneOptions
    from headlens.analyses.ablate.single_heads import AblationOptions
    from headlens.analyses.classify.roles import Thresholds
    from headlens.analyses.relevance.analysis import RelevanceOptions
    from headlens.analyses.training.text_training import TextOptions, TextTask
    from headlens.models.loading import ModelOptions
    from headlens.runs.mask_option import MaskOptions
    from headlens.runs.output_options import OutputOptions
    from headlens.tasks.data_option import TaskData
    from headlens.training.hyperparameters import TrainingOptions

    from .screen import Screen


@dataclass(frozen=True)
class OptionGroup:
    """A dataclass whose fields are options."""


@dataclass(frozen=True)
class LoadGroup(OptionGroup):
    """Options of model loading: device, dtype, revision, network access, and which files and code are trusted."""

    device: o.DeviceOption = o.Device.auto
    dtype: o.DTypeOption = o.DType.auto
    revision: o.RevisionOption = None
    offline: o.OfflineOption = False
    allow_pickle: o.PickleOption = False
    trust_remote_code: o.RemoteCodeOption = False

    def options(self) -> ModelOptions:
        """Returns the options as `ModelOptions`, which the model loader takes."""
        from headlens.models.loading import ModelOptions

        return ModelOptions(
            self.device.value,
            self.dtype.value,
            self.revision,
            offline=self.offline,
            allow_pickle=self.allow_pickle,
            trust_remote_code=self.trust_remote_code,
        )


@dataclass(frozen=True)
class MaskGroup(OptionGroup):
    """Options of the attention mask: which keys each query may attend to, and in which layers."""

    mask: m.MaskOption = None
    layers: m.MaskLayersOption = None
    no_diagonal: m.NoDiagonalOption = False
    drop_random: m.DropRandomOption = False
    mask_seed: m.MaskSeedOption = 0

    def options(self) -> MaskOptions:
        """Returns the options as `MaskOptions`, which attention masks are made from."""
        from headlens.runs.mask_option import MaskOptions

        return MaskOptions(**vars(self))


@dataclass(frozen=True)
class ThresholdsGroup(OptionGroup):
    """When a head gets a role."""

    positional: r.PositionalOption = 0.90
    diagonal: r.DiagonalOption = 0.90
    margin: r.MarginOption = 0.10
    margin_kind: r.MarginKindOption = "absolute"
    min_instances: r.MinInstancesOption = 30
    rare: r.RareOption = 0.50
    separator: r.SeparatorOption = 0.50
    broad: r.BroadOption = 0.90

    def options(self) -> Thresholds:
        """Returns the options as the `Thresholds` by which heads are classified."""
        from headlens.analyses.classify.roles import Thresholds

        return Thresholds(**vars(self))


@dataclass(frozen=True)
class RelevanceGroup(OptionGroup):
    """Options of relevance propagation: the rule, the target it starts from, and the bootstrap samples."""

    rule: r.RuleOption = "epsilon"
    relevance_target: r.RelevanceTargetOption = "auto"
    mask_share: r.MaskShareOption = 0.15
    replicates: r.ReplicatesOption = 1000

    def options(self) -> RelevanceOptions:
        """Returns the options as the `RelevanceOptions` of the relevance analysis."""
        from headlens.analyses.relevance.analysis import RelevanceOptions

        return RelevanceOptions(**vars(self))


@dataclass(frozen=True)
class TaskGroup(OptionGroup):
    """The examples of a task; which task is an option of the command's own, `t.TaskOption`."""

    data: t.DataOption = None
    columns: t.ColumnsOption = None
    data_split: t.DataSplitOption = None
    target: o.TargetOption = None
    limit: o.LimitOption = None
    min_words: o.MinWordsOption = 0

    def of(self, task: str) -> TaskData:
        """Returns the options as the `TaskData` of a task, which name its examples and their columns."""
        from headlens.tasks.data_option import TaskData

        data, columns = tuple(self.data or ()), tuple(self.columns or ())
        return TaskData(task, data, columns, self.data_split, self.target, self.limit, self.min_words)


@dataclass(frozen=True)
class AblationGroup(OptionGroup):
    """How heads are taken out, and how a task is measured then."""

    mode: h.ModeOption = "zero"
    keep_only: h.KeepOnlyOption = False
    metric: t.MetricOption = None
    replicates: t.BootstrapOption = 10_000
    seed: o.SeedOption = 0
    batch_tokens: o.SweepTokensOption = None

    def options(self) -> AblationOptions:
        """Returns the options as the `AblationOptions` of a sweep over single heads."""
        from headlens.analyses.ablate.single_heads import AblationOptions

        return AblationOptions(**vars(self))


@dataclass(frozen=True)
class PruningGroup(OptionGroup):
    """How many heads go at once, and which."""

    prune: h.PruneOption = None
    strategies: h.StrategiesOption = "ranked,importance,random"
    beam: h.BeamOption = 3
    orders: h.OrdersOption = 5
    rank_split: h.RankSplitOption = 0.5

    def options(self) -> PruneOptions:
        """Returns the options as `PruneOptions`, with strategies and numbers of heads parsed from their text."""
        from headlens.analyses.ablate.pruning_options import STRATEGIES, PruneOptions

        chosen: Any = STRATEGIES if self.strategies.strip() == "all" else o.names(self.strategies)
        return PruneOptions(o.whole_numbers("--prune", self.prune), chosen, self.beam, self.orders, self.rank_split)


@dataclass(frozen=True)
class TextGroup(OptionGroup):
    """Options of training on text: vocabulary, sequence length, masked tokens, label smoothing and held-out share."""

    vocabulary: tr.VocabularyOption = 8000
    longest: tr.LongestOption = None
    mask_share: tr.GuessedShareOption = 0.15
    label_smoothing: tr.SmoothingOption = 0.1
    dev_share: tr.DevShareOption = 0.05
    next_sentence: tr.NextSentenceOption = False

    def options(self, task: TextTask) -> TextOptions:
        """Returns the options as the `TextOptions` of a task; sequences have at most 128 tokens by default."""
        from headlens.analyses.training.text_training import TextOptions

        return TextOptions(task, **vars(self) | {"longest": self.longest or 128})


@dataclass(frozen=True)
class LoopGroup(OptionGroup):
    """Length and step size of a training."""

    epochs: tr.EpochsOption = 3.0
    steps: tr.StepsOption = None
    batch_tokens: o.BatchTokensOption = 2048
    accumulate: tr.AccumulateOption = 1
    learning_rate: tr.LearningRateOption = 5e-5
    warmup: tr.WarmupOption = 0.06
    schedule: tr.ScheduleOption = "linear"
    weight_decay: tr.WeightDecayOption = 0.01
    clip: tr.ClipOption = 1.0
    precision: tr.PrecisionOption = "no"
    seed: o.SeedOption = 0
    log_every: tr.LogEveryOption = 10


@dataclass(frozen=True)
class TrainingGroup(LoopGroup):
    """Length, step size and rhythm of training."""

    evaluate_every: tr.EvaluateEveryOption = 0
    patience: tr.PatienceOption = 0

    def options(self) -> TrainingOptions:
        """Returns the options as the `TrainingOptions` of a training run."""
        from headlens.training.hyperparameters import TrainingOptions

        return TrainingOptions(**vars(self))


@dataclass(frozen=True)
class OutputGroup(OptionGroup):
    """Where a run goes, and what is printed."""

    out: o.OutOption = None
    overwrite: o.OverwriteOption = False
    resume: o.ResumeOption = None
    config: o.ConfigOption = None
    json: o.JsonOption = False
    quiet: o.QuietOption = False
    debug: o.DebugOption = False

    def place(self) -> OutputOptions:
        """Returns the output folder of the run, and whether it is overwritten or resumed.

        Raises:
            OptionError: if `--resume` is given with another folder or with `--overwrite`.
        """
        from headlens.errors import OptionError
        from headlens.runs.output_options import OutputOptions

        if self.resume is not None and (self.out not in (None, self.resume) or self.overwrite):
            raise OptionError(
                "--resume goes on with a run in its own folder.",
                "Leave --out and --overwrite out, or leave --resume out.",
            )
        return OutputOptions(self.resume or self.out, self.overwrite, resume=self.resume is not None)

    def screen(self) -> Screen:
        """The terminal; of several processes only the first uses it."""
        from .screen import Screen

        return Screen(json=self.json and not rank(), quiet=self.quiet or rank() > 0)


@dataclass(frozen=True)
class RunGroup(OutputGroup):
    """The same of a command that runs a model, and can tell before what that takes."""

    dry_run: o.DryRunOption = False

    def planned(self, request: Any) -> bool:
        """With --dry-run, show what a request would do; whether that is all that is wanted."""
        if self.dry_run:
            from .plan import show_plan

            show_plan(request, self.screen(), self.resume)
        return self.dry_run


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for every field of its groups."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, OptionGroup)}
    own = [p for p in inspect.signature(command).parameters.values() if p.name not in groups]
    parameters = [p.replace(annotation=hints[p.name]) for p in own] + [
        option for kind in groups.values() for option in _options(kind)
    ]

    @wraps(command)
    def flat(**values: Any) -> None:
        built = {name: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**values, **built)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    return flat


def _options(kind: type[OptionGroup]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(kind)
        if f.default is not MISSING
    ]
