"""The options of `headlens train-dam`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from headlens.errors import OptionError
from headlens.learning.hyperparameters import LoopOptions
from headlens.learning.training_options import BLOCK, TrainingSetOptions
from headlens.models.model_options import ModelOptions
from headlens.option_values import numbers
from headlens.options import DEMO, OUTPUT, TRAINING, Checked, CommandOptions, option
from headlens.shared_options import FIGURES, FREEZE, MARGIN, TRAINED_ENCODER, VOCABULARY, OutputOptions

if TYPE_CHECKING:
    from headlens.learning.mask_learning import MaskLearningOptions

_PANEL = "Mask"
_LAW: dict[str, Any] = {"panel": _PANEL, "group": "law"}


@dataclass(frozen=True)
class DamOptions:
    """What the mask is like, how it is drawn, and how it is learned.

    Raises:
        OptionError: if a number or a name cannot be.
    """

    structured: bool = option(
        True,
        "One parameter per offset, or one per pair of positions (structured=false); structured masks leave the first "
        "and last token open.",
        **_LAW,
        replaces={"structured": "--law structured=true", "unstructured": "--law structured=false"},
    )
    per_layer: bool = option(
        False,
        "Whether every layer has masks of its own or all layers share them.",
        **_LAW,
        flags=("shared",),
    )
    layers: str | None = option(
        None, "Layers to mask: 6-11, 0,2,4-6, first:3, last:3.", _PANEL, metavar="LAYERS", shown="all"
    )
    form: Literal["additive", "multiplicative", "renormalised"] = option(
        "additive",
        "Additive: -c (1 - M) is added to the scores; multiplicative: weights are multiplied by M; renormalised: "
        "the same, rescaled to sum to 1, which needs a λ about 1000 times smaller.",
        **_LAW,
    )
    strength: float = option(1e4, "Constant c of the additive form.", **_LAW, metavar="NUMBER")
    diagonal: bool = option(
        True,
        "Whether a token may attend to itself.",
        **_LAW,
        replaces={"no-diagonal": "--law diagonal=false"},
    )
    controls: bool = option(
        False,
        "Also learn each mask without the diagonal, and compare the two.",
        _PANEL,
        flags=("--controls/--no-controls",),
    )
    noise: Literal["training", "always", "never"] = option(
        "training",
        "When M is sampled; never, with straight-through=false, gives deterministic soft importance.",
        **_LAW,
    )
    temperature: float = option(1.0, "Temperature τ of the Gumbel-sigmoid.", **_LAW, metavar="NUMBER")
    final_temperature: float | None = option(
        None, "Temperature τ at the end of training.", **_LAW, metavar="NUMBER", shown="constant"
    )
    straight_through: bool = option(
        True,
        "Whether M is exactly 0 or 1, or any value in between.",
        **_LAW,
    )
    penalty: Literal["sum", "mean"] = option(
        "sum", "Whether λ multiplies the sum of M over heads and positions, or its mean.", **_LAW
    )
    mask_learning_rate: float | None = option(
        None, "Peak learning rate of α.", **_LAW, metavar="NUMBER", shown="24 / updates, at most 0.5"
    )
    freeze: tuple[str, ...] | None = option(None, replace(FREEZE, panel=_PANEL))
    longest: int | None = option(
        None,
        "Size n of the mask, and length limit of texts, in tokens.",
        TRAINING,
        metavar="N",
        shown="128, or the model's limit if that is lower",
        group="data-args",
    )

    def learning(self) -> MaskLearningOptions:
        """Returns the mask, its distribution and its training, as `learn_mask` takes them."""
        from headlens.attention_masks.learned_mask import LearnedMaskOptions
        from headlens.attention_masks.mask_distributions import GumbelSigmoid
        from headlens.learning.mask_learning import MaskLearningOptions

        longest = BLOCK if self.longest is None else self.longest
        shape = (longest, self.structured, self.per_layer, self.form, self.strength, self.diagonal, self.noise)
        law = GumbelSigmoid(self.temperature, self.final_temperature, self.straight_through)
        settings = (self.penalty, self.mask_learning_rate, self.freeze, self.layers)
        return MaskLearningOptions(LearnedMaskOptions(*shape), law, *settings)


@dataclass(frozen=True)
class DamRequest(Checked):
    """What `headlens train-dam` is asked for.

    A new model learns its vocabulary from the corpus. Where nothing is said of freezing, the bundled task freezes all
    weights, for its examples are too few to train them.

    Raises:
        OptionError: if a number is out of range.
    """

    model: str = option(DEMO, TRAINED_ENCODER)
    lambdas: tuple[float, ...] = option(
        (1e-3, 1e-2, 1e-1),
        "Strengths λ of the penalty; one run for each.",
        _PANEL,
        metavar="NUMBERS",
        parse=numbers,
        at_least=0,
    )
    # Before the training set: its texts are as long as the mask.
    dam: DamOptions = field(default_factory=DamOptions)
    training_set: TrainingSetOptions = field(default_factory=TrainingSetOptions)
    training: LoopOptions = field(default_factory=lambda: LoopOptions(batch_tokens=512))
    vocabulary: int = option(8000, VOCABULARY)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    margin: float | None = option(None, MARGIN)
    window: int = option(
        1, "Largest offset that counts as neighbourhood in tables.", OUTPUT, metavar="N", command_line=False, at_least=1
    )
    figures: bool = option(True, FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        from headlens.learning.new_models import is_new

        self.dam.learning()
        if self.dam.controls and not self.dam.diagonal:
            raise OptionError(
                "--controls learns masks both with and without the diagonal.", "Leave --law diagonal=false out."
            )
        if not self.lambdas:
            raise OptionError("No penalty was given.", "Name some with --lambdas.")
        if is_new(self.model) and self.training_set.data.task != "mlm":
            raise OptionError(
                f"{self.model}: a new model can only be trained on masked tokens.", "Give --task mlm, or a checkpoint."
            )

    @property
    def learning(self) -> MaskLearningOptions:
        """The mask and its training, with what is frozen: by default all for the bundled task, none for others."""
        usual = ("all",) if self.training_set.embedded else ()
        frozen = usual if self.dam.freeze is None else self.dam.freeze
        return replace(self.dam.learning(), window=self.window, freeze=frozen)


COMMAND = CommandOptions(
    "train-dam",
    (DamRequest,),
    "run_dam",
    first=(
        *("task", "data", "text", "label", "dev_data", "corpus", "lambdas"),
        *("epochs", "learning_rate"),
    ),
)
