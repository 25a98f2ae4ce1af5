"""The options of `headlens train`, and of the training sets of every command that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from headlens import shared_options
from headlens.attention_masks.mask_options import MaskOptions
from headlens.corpora.corpus_options import CorpusOptions
from headlens.errors import OptionError
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.training_options import (
    _DEV_SHARE,
    _OF_EXAMPLES,
    TEXT,
    TextOptions,
    named_by_task,
    refuse_others,
)
from headlens.models.model_options import ModelOptions
from headlens.options import (
    DEMO,
    TRAINING,
    Checked,
    CommandOptions,
    DeclaredOption,
    Option,
    build,
    declared_options,
    option,
)
from headlens.shared_options import OutputOptions
from headlens.tasks.task_options import TaskData

_OF_EXAMPLE = declared_options(TaskData)["task"]
_TASK = replace(
    _OF_EXAMPLE,
    hint=str | None,
    default=None,
    option=replace(_OF_EXAMPLE.option, shown="mlm, or what a new model is made for"),
)
# What new models of a family learn where no task is named.
_OF_NEW = {"new:gpt2-": "causal-lm", "new:llama-": "causal-lm", "new:marian-": "translation"}
_ON_TEXT = (*TEXT, "translation-loss")
_NORMALIZER = Option(
    "Function that turns scores into attention weights: softmax, entmax15, sparsemax or entmax:ALPHA, or "
    "entmax:learned; all but softmax give exact zeros. With entmax:learned every head learns its alpha between 1 and "
    "2. The function is saved with the checkpoint.",
    TRAINING,
    metavar="NAME",
    shown="the model's own",
)


@dataclass(frozen=True)
class FineTuneRequest(Checked):
    """What `headlens train --task` is asked for.

    Examples that are longer than `longest` tokens, or than the model reads, are left out.

    Raises:
        OptionError: if the task is one of running text, or the share is out of range.
    """

    data: TaskData
    model: str = option(DEMO, shared_options.TRAINED_MODEL)
    dev_data: str | None = option(None, shared_options.HELD_OUT_EXAMPLES)
    dev_share: float = option(0.05, _DEV_SHARE)
    also_on: tuple[str, ...] = option((), shared_options.ALSO_ON)
    predict: tuple[str, ...] = option((), shared_options.PREDICTED)
    longest: int | None = option(None, shared_options.LONGEST)
    vocabulary: int = option(8000, shared_options.VOCABULARY)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    mask: MaskOptions = field(default_factory=MaskOptions)
    attention: str | None = option(None, _NORMALIZER)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    figures: bool = option(True, shared_options.FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        from headlens.attention.normalizers import parse_normalizer

        if self.data.task in _ON_TEXT:
            raise OptionError(
                f"--task {self.data.task} is not trained on examples, but on text.",
                "Train it with --task mlm, causal-lm or translation, and --corpus.",
            )
        if self.attention is not None:
            parse_normalizer(self.attention)


@dataclass(frozen=True)
class TrainRequest(Checked):
    """What `headlens train` is asked for, on text; `bleu` pairs are translated at the end, for BLEU and chrF."""

    # The command trains masked tokens where no task is named; the examples of others are options of it, too.
    OVERRIDES: ClassVar[tuple[DeclaredOption, ...]] = (
        _TASK,
        DeclaredOption("longest", int | None, None, shared_options.LONGEST),
    )

    model: str = option(DEMO, shared_options.TRAINED_MODEL)
    corpus: str = option(DEMO, shared_options.CORPUS_SOURCE)
    corpus_options: CorpusOptions = field(default_factory=lambda: CorpusOptions(split="train"))
    dev: str | None = option(None, shared_options.HELD_OUT_TEXT)
    dev_target: str | None = option(None, shared_options.HELD_OUT_TARGET)
    text: TextOptions = field(default_factory=TextOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    bleu: int = option(
        0,
        "Number of held-out pairs to translate at the end, for BLEU and chrF.",
        TRAINING,
        metavar="N",
        at_least=0,
        group="training-args",
    )
    mask: MaskOptions = field(default_factory=MaskOptions)
    attention: str | None = option(None, _NORMALIZER)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    figures: bool = option(True, shared_options.FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bleu and self.text.task != "translation":
            raise OptionError(f"--training-args bleu is not for --task {self.text.task}.", "It scores translations.")
        if self.text.bleu_tokenizer and not self.bleu:
            raise OptionError(
                "--data-args bleu-tokenizer is given, but nothing is translated.",
                "It goes with --training-args bleu=N.",
            )


def train_request(values: Mapping[str, Any]) -> TrainRequest | FineTuneRequest:
    """Returns the request of `headlens train`: on text for `mlm` and `translation`, else on examples.

    Raises:
        OptionError: for options that the task would not look at.
    """
    model = str(values.get("model", ""))
    task = values.get("task") or next((name for kind, name in _OF_NEW.items() if model.startswith(kind)), "mlm")
    if values.get("task") or not _is_table(values):
        values = named_by_task(task, values)
    given = {name: value for name, value in values.items() if value not in (None, (), [], False, 0)}
    declared = declared_options(TrainRequest, FineTuneRequest)
    if task in TEXT:
        refuse_others(task, given, (*_OF_EXAMPLES, "also_on", "predict"), "--corpus", declared)
        return build(TrainRequest, {**values, "task": task})
    usual = {"corpus": DEMO, "label_smoothing": 0.1, "mask_share": 0.15}
    given = {name: value for name, value in given.items() if usual.get(name) != value}
    others = ("corpus", "target", "bleu", "column", "target_column", "dev", "dev_target", *usual, "next_sentence")
    refuse_others(task, given, others, "--data", declared)
    return build(FineTuneRequest, values, data=build(TaskData, values))


def _is_table(values: Mapping[str, Any]) -> bool:
    """Whether data may be a table of examples: text is one that has no columns, or whose column of text is named."""
    from headlens.corpora.sources import is_text

    data = values.get("data") or ()
    named = [*([data] if isinstance(data, str) else data), *filter(None, [values.get("dev_data")])]
    return not values.get("text") and not all(is_text(str(source)) for source in named)


COMMAND = CommandOptions(
    "train",
    (TrainRequest, FineTuneRequest),
    "run_training",
    train_request,
    first=("task", "data", "text", "label", "dev_data", "corpus", "target", "epochs", "learning_rate", "attention"),
)
