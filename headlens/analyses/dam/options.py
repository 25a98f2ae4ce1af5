"""The options of `headlens train-dam`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from headlens.analyses.training.options import BLOCK, TrainingSetOptions
from headlens.errors import OptionError
from headlens.models.model_options import ModelOptions
from headlens.option_values import numbers
from headlens.options import DEMO, OUTPUT, TRAINING, CommandOptions, option
from headlens.runs.output_options import OutputOptions
from headlens.shared_options import FIGURES, FREEZE, TRAINED_MODEL, VOCABULARY
from headlens.training.hyperparameters import LoopOptions, TrainingOptions, check_strength

if TYPE_CHECKING:
    from headlens.analyses.dam.learning import MaskLearningOptions

_PANEL = "Mask"


@dataclass(frozen=True)
class DamOptions:
    """What the mask is like, how it is drawn, and how it is learned.

    Raises:
        OptionError: if a number or a name cannot be.
    """

    structured: bool = option(
        True,
        "A number for each offset, first and last token always active; or for each pair of positions.",
        _PANEL,
        flags=("--structured/--unstructured",),
    )
    per_layer: bool = option(
        False, "Masks for every layer, or shared by layers.", _PANEL, flags=("--per-layer/--shared",)
    )
    layers: str | None = option(
        None, "Layers that are masked: 6-11, 0,2,4-6, first:3, last:3.", _PANEL, metavar="LAYERS", shown="all"
    )
    form: Literal["additive", "multiplicative", "renormalised"] = option(
        "additive",
        "Add -c (1 - M) to scores, or multiply weights by M, also with sums of 1 again, with a λ 1000 times smaller.",
        _PANEL,
    )
    strength: float = option(1e4, "c of the additive form.", _PANEL, metavar="NUMBER")
    diagonal: bool = option(True, "Whether a token may look at itself.", _PANEL, flags=("--diagonal/--no-diagonal",))
    controls: bool = option(
        False,
        "Learn each mask without the diagonal, too, and compare the two.",
        _PANEL,
        flags=("--controls/--no-controls",),
    )
    noise: Literal["training", "always", "never"] = option(
        "training", "When M is drawn; never with --soft is soft importance.", _PANEL
    )
    temperature: float = option(1.0, "τ of the Gumbel-sigmoid.", _PANEL, metavar="NUMBER")
    final_temperature: float | None = option(
        None, "τ at the end.", _PANEL, metavar="NUMBER", shown="the same throughout"
    )
    straight_through: bool = option(
        True, "M is 0 or 1, or anything between.", _PANEL, flags=("--straight-through/--soft",)
    )
    penalty: Literal["sum", "mean"] = option(
        "sum", "λ times the sum of M over heads and positions, or their mean.", _PANEL
    )
    mask_learning_rate: float | None = option(
        None, "Highest learning rate of α.", _PANEL, metavar="NUMBER", shown="24 / updates, at most 0.5"
    )
    freeze: tuple[str, ...] | None = option(None, replace(FREEZE, panel=_PANEL))
    longest: int | None = option(
        None,
        "Tokens of the mask and of the longest text.",
        TRAINING,
        metavar="N",
        shown="128, or what the model reads if fewer",
    )

    def learning(self) -> MaskLearningOptions:
        """Returns the mask, its distribution and its training, as `learn_mask` takes them."""
        from headlens.analyses.dam.learning import MaskLearningOptions
        from headlens.interventions.learned_mask import LearnedMaskOptions
        from headlens.interventions.mask_distributions import GumbelSigmoid

        longest = BLOCK if self.longest is None else self.longest
        shape = (longest, self.structured, self.per_layer, self.form, self.strength, self.diagonal, self.noise)
        distribution = GumbelSigmoid(self.temperature, self.final_temperature, self.straight_through)
        rate = self.mask_learning_rate
        return MaskLearningOptions(
            LearnedMaskOptions(*shape), distribution, self.penalty, rate, self.freeze, self.layers
        )


@dataclass(frozen=True)
class DamRequest:
    """What `headlens train-dam` is asked for.

    A new model learns its vocabulary from the corpus. Where nothing is said of freezing, the embedded task freezes all
    weights, for its examples are too few to train them.

    Raises:
        OptionError: if a number is out of range.
    """

    model: str = option(DEMO, TRAINED_MODEL)
    lambdas: tuple[float, ...] = option(
        (1e-3, 1e-2, 1e-1), "Strengths λ of the penalty, a run each.", _PANEL, metavar="NUMBERS", parse=numbers
    )
    # Before the training set: its texts are as long as the mask.
    dam: DamOptions = field(default_factory=DamOptions)
    lesson: TrainingSetOptions = field(default_factory=TrainingSetOptions)
    training: LoopOptions = field(default_factory=lambda: LoopOptions(batch_tokens=512))
    vocabulary: int = option(8000, VOCABULARY)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    window: int = option(1, "Offsets that count as neighbourhood in tables.", OUTPUT, metavar="N")
    figures: bool = option(True, FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        from headlens.training.new_models import is_new

        self.dam.learning()
        if self.dam.controls and not self.dam.diagonal:
            raise OptionError("--controls learns masks with the diagonal, too.", "Leave --no-diagonal out.")
        if not self.lambdas:
            raise OptionError("No penalty is given.", "Name some with --lambdas.")
        for strength in self.lambdas:
            check_strength(strength)
        if self.window < 1:
            raise OptionError(f"--window {self.window} is no neighbourhood.", "Give 1 or more.")
        if is_new(self.model) and self.lesson.data.task != "mlm":
            raise OptionError(f"{self.model} learns masked tokens.", "Give --task mlm, or a checkpoint.")

    @property
    def options(self) -> TrainingOptions:
        """Of every training; nothing is evaluated before its end."""
        return self.training.of_loop()

    @property
    def learning(self) -> MaskLearningOptions:
        """The mask and its training, with what is frozen: by default all for the embedded task, none for others."""
        learning = replace(self.dam.learning(), window=self.window)
        if learning.freeze is not None:
            return learning
        return replace(learning, freeze=("all",) if self.lesson.embedded else ())


COMMAND = CommandOptions(
    "train-dam",
    (DamRequest,),
    "run_dam",
    first=(
        *("task", "data", "text", "label", "dev_data", "corpus", "lambdas"),
        *("structured", "epochs", "learning_rate"),
    ),
)
