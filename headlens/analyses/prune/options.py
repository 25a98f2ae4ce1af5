"""The options of `headlens prune`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headlens.errors import OptionError
from headlens.learning.gate_options import GATES_PANEL, GateOptions
from headlens.learning.hyperparameters import LoopOptions, TrainingOptions
from headlens.learning.training_options import TrainingSetOptions
from headlens.models.model_options import ModelOptions
from headlens.option_values import numbers
from headlens.options import DEMO, ROLES, Checked, CommandOptions, option
from headlens.roles.role_options import Thresholds
from headlens.shared_options import BATCH_TOKENS, FIGURES, FREQUENCY, MARGIN, MODEL_NAME, OutputOptions

_SCRATCH = "From scratch"
LAMBDAS = (0.03, 0.1, 0.3)


@dataclass(frozen=True)
class PenaltySweepOptions(Checked):
    """Strengths of the penalty, a run each, or a search for the one that leaves `target_heads` heads with gates.

    Raises:
        OptionError: if a number is out of range, or both kinds of runs are asked for.
    """

    lambdas: tuple[float, ...] | None = option(
        None,
        "Strengths λ of the penalty; one run for each.",
        GATES_PANEL,
        metavar="NUMBERS",
        parse=numbers,
        shown="0.03,0.1,0.3",
        at_least=0,
    )
    target_heads: int | None = option(
        None,
        "Instead of --lambdas, search for the λ that leaves this many of the gated heads.",
        GATES_PANEL,
        metavar="N",
        shown="",
        at_least=1,
        excludes="lambdas",
    )
    most_runs: int = option(
        8, "Maximum number of runs in the search of --target-heads.", GATES_PANEL, metavar="N", group="law", at_least=1
    )
    # `margin` is that of roles
    loss_margin: float | None = option(None, MARGIN)
    from_scratch: bool = option(False, "Also train models of the same architectures from random weights.", _SCRATCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lambdas == ():
            raise OptionError("No penalty was given.", "Name some with --lambdas, or give --target-heads.")

    @property
    def strengths(self) -> tuple[float, ...]:
        """The penalties of the runs, each once; without `lambdas` `LAMBDAS`, and none where they are searched for."""
        if self.target_heads is not None:
            return ()
        return LAMBDAS if self.lambdas is None else tuple(dict.fromkeys(self.lambdas))


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
        group="training-args",
        at_least=1,
    )
    scratch_learning_rate: float = option(
        5e-4, "Peak learning rate for models trained from scratch.", _SCRATCH, group="training-args", above=0
    )

    def scratch(self) -> TrainingOptions:
        """The options of models from random weights."""
        steps = self.scratch_steps or self.steps
        return replace(self.of_loop(), steps=steps, learning_rate=self.scratch_learning_rate)


@dataclass(frozen=True)
class RoleOptions(Checked):
    """The sentences, with trees for syntactic roles, on which the roles of heads are named."""

    roles_corpus: str | None = option(
        None,
        "Sentences on which `classify` determines the roles of heads before and after pruning.",
        ROLES,
        metavar="SOURCE",
        shown="no roles",
    )
    roles_target: str | None = option(
        None,
        "Translations of --roles-corpus.",
        ROLES,
        metavar="FILE",
        shown="",
        group="data-args",
        needs="roles_corpus",
    )
    frequency: str = option("wordfreq:en", FREQUENCY)


@dataclass(frozen=True)
class PruneRequest:
    """What `headlens prune` is asked for.

    Where nothing is said of freezing, the bundled task freezes all weights, for its examples are too few to train
    them.
    """

    model: str = option(DEMO, MODEL_NAME)
    training_set: TrainingSetOptions = field(default_factory=TrainingSetOptions)
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
        return replace(self.gates, freeze=("all",) if self.training_set.embedded else ())


COMMAND = CommandOptions(
    "prune",
    (PruneRequest,),
    "run_prune",
    first=(
        *("task", "data", "text", "label", "dev_data", "lambdas", "target_heads"),
        *("epochs", "learning_rate", "roles_corpus"),
    ),
)
