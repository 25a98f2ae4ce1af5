"""The options of `headlens prune`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from headlens.analyses.classify.options import Thresholds
from headlens.analyses.training.options import TrainingSetOptions
from headlens.errors import OptionError
from headlens.models.model_options import ModelOptions
from headlens.option_values import names_or_none, numbers
from headlens.options import DEMO, OUTPUT, ROLES, CommandOptions, StackName, option
from headlens.runs.output_options import OutputOptions
from headlens.shared_options import BATCH_TOKENS, FIGURES, FREEZE, FREQUENCY, MARGIN, MODEL_NAME
from headlens.tasks.task_options import check_margin
from headlens.training.hyperparameters import LoopOptions, TrainingOptions, check_strength

_GATES, _SCRATCH = "Gates", "From scratch"
# log α of a gate that is 1 at evaluation.
START = 2.5
# Log α has to move by 5 to close a gate: with the rates of fine-tuning it hardly moves at all. With this much for all
# updates together, gates can move so far and back again, however many updates there are.
WAY = 24.0
_FASTEST = 0.5
LAMBDAS = (0.03, 0.1, 0.3)


@dataclass(frozen=True)
class PenaltySweepOptions:
    """Strengths of the penalty, a run each, or a search for the one that leaves `target_heads` heads with gates.

    Raises:
        OptionError: if a number is out of range, or both kinds of runs are asked for.
    """

    lambdas: tuple[float, ...] | None = option(
        None,
        "Strengths λ of the penalty; one run for each.",
        _GATES,
        metavar="NUMBERS",
        parse=numbers,
        shown="0.03,0.1,0.3",
    )
    target_heads: int | None = option(
        None,
        "Instead of --lambdas, search for the λ that leaves this many of the gated heads.",
        _GATES,
        metavar="N",
        shown="",
    )
    most_runs: int = option(8, "Maximum number of runs in the search of --target-heads.", _GATES, metavar="N")
    # --margin is that of roles
    loss_margin: float | None = option(None, MARGIN)
    from_scratch: bool = option(False, "Also train models of the same architectures from random weights.", _SCRATCH)

    def __post_init__(self) -> None:
        for strength in self.strengths:
            check_strength(strength)
        if self.lambdas == ():
            raise OptionError("No penalty was given.", "Name some with --lambdas, or give --target-heads.")
        if self.target_heads is not None and self.lambdas is not None:
            raise OptionError(
                "--target-heads searches for λ, but --lambdas also gives values.", "Give only one of them."
            )
        if self.target_heads is not None and self.target_heads < 1:
            raise OptionError(f"--target-heads {self.target_heads} leaves no head.", "Give 1 or more.")
        if self.most_runs < 1:
            raise OptionError(f"--most-runs {self.most_runs} is not a positive number.", "8 is usually enough.")
        check_margin(self.loss_margin, "--loss-margin")

    @property
    def strengths(self) -> tuple[float, ...]:
        """The penalties of the runs, each once; without `lambdas` `LAMBDAS`, and none where they are searched for."""
        if self.target_heads is not None:
            return ()
        return LAMBDAS if self.lambdas is None else tuple(dict.fromkeys(self.lambdas))


@dataclass(frozen=True)
class GateOptions:
    """Which heads get gates, and how these are trained.

    The learning rate of log α follows the schedule of the training. `save` says whether the pruned model is without the
    heads that are gone, or has zeros in their place so that plain from_pretrained reads it; see `with_folded_gates`.

    Raises:
        OptionError: if a number or a name cannot be.
    """

    gates: tuple[StackName, ...] = option(
        (),
        "Stacks whose heads have gates, comma-separated: encoder, decoder, cross.",
        _GATES,
        metavar="STACKS",
        parse=names_or_none,
        shown="all of the model",
    )
    freeze: tuple[str, ...] | None = option(None, replace(FREEZE, panel=_GATES))
    penalty: Literal["mean", "sum"] = option(
        "mean", "Whether λ multiplies the number of open gates averaged over attention modules, or summed.", _GATES
    )
    gate_start: float = option(START, "Initial log α; from 2.4 upwards a gate is 1.", _GATES, metavar="NUMBER")
    gate_learning_rate: float | None = option(
        None, "Peak learning rate of log α.", _GATES, metavar="NUMBER", shown="24 / updates, at most 0.5"
    )
    save: Literal["compacted", "folded"] = option(
        "compacted", "Cut heads out, or write zeros instead, so that plain from_pretrained can load the models.", OUTPUT
    )

    def __post_init__(self) -> None:
        if unknown := [s for s in self.gates if s not in get_args(StackName)]:
            known = ", ".join(get_args(StackName))
            raise OptionError(f"--gates {unknown[0]}: there is no such stack.", f"Stacks: {known}.")
        for name, choices in (("save", ("compacted", "folded")), ("penalty", ("mean", "sum"))):
            if (value := getattr(self, name)) not in choices:
                raise OptionError(f"--{name} {value} is unknown.", f"Choose {' or '.join(choices)}.")
        rate = self.gate_learning_rate
        if rate is not None and not 0 < rate < float("inf"):
            raise OptionError(f"--gate-learning-rate {rate} is not a positive number.", "Try 0.1.")
        if not abs(self.gate_start) < float("inf"):
            raise OptionError(f"--gate-start {self.gate_start} is not a finite number.", f"Try {START}.")
        if self.gate_start != START:
            from headlens.interventions.hard_concrete import HardConcrete

            if self.gate_start <= HardConcrete().closed_below:
                raise OptionError(f"--gate-start {self.gate_start} closes all gates before training.", f"Try {START}.")

    def rate(self, updates: int) -> float:
        """The highest learning rate of gates in a training of so many updates."""
        return self.gate_learning_rate or min(_FASTEST, WAY / updates)


@dataclass(frozen=True)
class SweepTraining(LoopOptions):
    """Length and step size of the trainings of a sweep, and of models from random weights, see `LoopOptions`."""

    batch_tokens: int = option(512, BATCH_TOKENS)
    scratch_steps: int | None = option(
        None,
        "Number of updates for models trained from scratch.",
        _SCRATCH,
        metavar="N",
        shown="as many as the pruned models",
    )
    scratch_learning_rate: float = option(5e-4, "Peak learning rate for models trained from scratch.", _SCRATCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("scratch_steps", "scratch_learning_rate")

    def scratch(self) -> TrainingOptions:
        """The options of models from random weights."""
        steps = self.scratch_steps or self.steps
        return replace(self.of_loop(), steps=steps, learning_rate=self.scratch_learning_rate)


@dataclass(frozen=True)
class RoleOptions:
    """The sentences, with trees for syntactic roles, on which the roles of heads are named."""

    roles_corpus: str | None = option(
        None,
        "Sentences on which `classify` determines the roles of heads before and after pruning.",
        ROLES,
        metavar="SOURCE",
        shown="no roles",
    )
    roles_target: str | None = option(None, "Translations of --roles-corpus.", ROLES, metavar="FILE", shown="")
    frequency: str = option("wordfreq:en", FREQUENCY)

    def __post_init__(self) -> None:
        if self.roles_target is not None and self.roles_corpus is None:
            raise OptionError("--roles-target names translations of --roles-corpus, which is not given.", "Give both.")


@dataclass(frozen=True)
class PruneRequest:
    """What `headlens prune` is asked for.

    Where nothing is said of freezing, the bundled task freezes all weights, for its examples are too few to train
    them.
    """

    model: str = option(DEMO, MODEL_NAME)
    lesson: TrainingSetOptions = field(default_factory=TrainingSetOptions)
    sweep: PenaltySweepOptions = field(default_factory=PenaltySweepOptions)
    gates: GateOptions = field(default_factory=GateOptions)
    training: SweepTraining = field(default_factory=SweepTraining)
    roles: RoleOptions = field(default_factory=RoleOptions)
    thresholds: Thresholds = field(default_factory=Thresholds)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    figures: bool = option(True, FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    @property
    def resolved_gates(self) -> GateOptions:
        """Options of the gates with frozen parts filled in: by default all of the bundled task, none of others."""
        if self.gates.freeze is not None:
            return self.gates
        return replace(self.gates, freeze=("all",) if self.lesson.embedded else ())


COMMAND = CommandOptions(
    "prune",
    (PruneRequest,),
    "run_prune",
    first=(
        *("task", "data", "text", "label", "dev_data", "lambdas", "target_heads"),
        *("epochs", "learning_rate", "roles_corpus"),
    ),
)
