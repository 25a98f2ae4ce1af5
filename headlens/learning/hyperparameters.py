"""How a model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from headlens.errors import OptionError
from headlens.options import TRAINING, Checked, option
from headlens.shared_options import BATCH_TOKENS, SEED

Schedule = Literal["linear", "constant", "inverse-sqrt"]
Precision = Literal["no", "bf16", "fp16"]
_ARGS: dict[str, Any] = {"panel": TRAINING, "group": "training-args"}
_WAY, _FASTEST = 24.0, 0.5


@dataclass(frozen=True)
class LoopOptions(Checked):
    """Length and step size of a training.

    A schedule falls to 0 in a line, stays the same, or falls by the root of the update's number (Vaswani et al. 2017,
    without the factor of the model's size). Weight decay is never on biases and norms.

    Raises:
        OptionError: if a number is out of range.
    """

    epochs: float = option(3.0, "Passes over the training data.", TRAINING, above=0)
    steps: int | None = option(None, "Number of updates, instead of --epochs.", TRAINING, metavar="N", at_least=1)
    batch_tokens: int = option(2048, BATCH_TOKENS)
    accumulate: int = option(1, "Batches per update (gradient accumulation).", **_ARGS, metavar="N", at_least=1)
    learning_rate: float = option(5e-5, "Peak learning rate.", TRAINING, above=0)
    warmup: float = option(0.06, "Warm-up updates; below 1 a fraction of all updates.", **_ARGS, at_least=0)
    schedule: Schedule = option("linear", "Learning-rate schedule after the warm-up.", **_ARGS)
    weight_decay: float = option(0.01, "Weight decay of AdamW, on matrices only.", **_ARGS, at_least=0)
    clip: float = option(1.0, "Gradients are clipped to this norm; 0: no clipping.", **_ARGS, at_least=0)
    precision: Precision = option("no", "Floating-point precision of the forward pass.", **_ARGS)
    seed: int = option(0, SEED)
    log_every: int = option(10, "Write a row of log.csv every N updates.", **_ARGS, metavar="N", at_least=1)

    def of_loop(self) -> TrainingOptions:
        """A training that evaluates nothing before its end."""
        return TrainingOptions(**{f.name: getattr(self, f.name) for f in fields(LoopOptions)})


@dataclass(frozen=True)
class TrainingOptions(LoopOptions):
    """Length, step size and rhythm of a training run, see `LoopOptions`.

    Raises:
        OptionError: if a number is out of range.
    """

    evaluate_every: int = option(0, "Evaluate every N updates; 0: after every epoch.", **_ARGS, metavar="N", at_least=0)
    patience: int = option(
        0,
        "Stop after N evaluations without improvement; 0: never.",
        **_ARGS,
        metavar="N",
        at_least=0,
    )
    save_every: int = option(
        0,
        "Save model and tokenizer before the first, after every N and after the last update, in checkpoints/ of the "
        "run folder, for classify and ablate over training; 0: never.",
        **_ARGS,
        metavar="N",
        at_least=0,
    )


def learning_rate(options: TrainingOptions, step: int, total: int) -> float:
    """The learning rate of an update.

    Args:
        options: highest rate, warm-up and schedule.
        step: number of the update, from 0.
        total: updates in all.
    """
    if step + 1 <= (warm := math.ceil(options.warmup if options.warmup >= 1 else options.warmup * total)):
        return options.learning_rate * (step + 1) / warm
    if options.schedule == "inverse-sqrt":
        return options.learning_rate * math.sqrt(max(warm, 1) / (step + 1))
    if options.schedule == "linear":
        return options.learning_rate * (total - step) / max(total - warm, 1)
    return options.learning_rate


def check_strength(strength: float) -> None:
    """Raise OptionError unless λ, the weight of a penalty, is a finite number of at least 0."""
    if not 0 <= strength < float("inf"):
        raise OptionError(f"--lambdas {strength} is not a finite number of 0 or more.", "Try 0.1.")


def penalized_rate(given: float | None, updates: int) -> float:
    """The highest learning rate of gates or of a mask in a training of so many updates, unless it is given.

    Log α of a gate has to move by 5 to close it, and α of a mask to about ±4 until draws are nearly always the same:
    with the rates of fine-tuning they hardly move at all. With `_WAY` for all updates together they can move so far and
    back again, however many updates there are.
    """
    return given or min(_FASTEST, _WAY / updates)
