"""How a model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from headlens.errors import OptionError

Schedule = Literal["linear", "constant", "inverse-sqrt"]
Precision = Literal["no", "bf16", "fp16"]


@dataclass(frozen=True)
class LoopOptions:
    """Length and step size of a training.

    Args:
        epochs: passes over the data; a part of one is allowed.
        steps: updates; given, it overrules `epochs`.
        batch_tokens: tokens of a batch in one process, padding included.
        accumulate: batches of each process in one update.
        learning_rate: the highest.
        warmup: updates until it is reached; below 1 the share of all updates.
        schedule: what follows: down to 0 in a line, the same throughout, or by the root of the update's number (Vaswani
            et al. 2017, without the factor of the model's size).
        weight_decay: of AdamW, on matrices; never on biases and norms.
        clip: largest norm of the gradient; 0 leaves it as it is.
        precision: type of the forward pass; parameters stay as they were loaded.
        seed: of the order of the data and of dropout.
        log_every: updates between rows of the log.

    Raises:
        OptionError: if a number is out of range.
    """

    epochs: float = 3.0
    steps: int | None = None
    batch_tokens: int = 2048
    accumulate: int = 1
    learning_rate: float = 5e-5
    warmup: float = 0.06
    schedule: Schedule = "linear"
    weight_decay: float = 0.01
    clip: float = 1.0
    precision: Precision = "no"
    seed: int = 0
    log_every: int = 10

    def __post_init__(self) -> None:
        self._check_positive("epochs", "steps", "batch_tokens", "accumulate", "learning_rate", "log_every")
        self._check_from_0("warmup", "weight_decay", "clip")

    def of_loop(self) -> TrainingOptions:
        """A training that evaluates nothing before its end."""
        return TrainingOptions(**{f.name: getattr(self, f.name) for f in fields(LoopOptions)})

    def _check_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise OptionError(f"--{name.replace('_', '-')} {value} is not a positive number.", "Give one above 0.")

    def _check_from_0(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise OptionError(f"--{name.replace('_', '-')} {value} is not 0 or more.", "Give 0 or more.")


@dataclass(frozen=True)
class TrainingOptions(LoopOptions):
    """Length, step size and rhythm of a training run, see `LoopOptions`.

    Args:
        evaluate_every: updates between evaluations; 0 for one at the end of every epoch.
        patience: evaluations without a better one until training stops; 0 never stops early.

    Raises:
        OptionError: if a number is out of range.
    """

    evaluate_every: int = 0
    patience: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_from_0("evaluate_every", "patience")


def learning_rate(options: TrainingOptions, step: int, total: int) -> float:
    """The learning rate of an update.

    Args:
        options: highest rate, warm-up and schedule.
        step: number of the update, from 0.
        total: updates in all.
    """
    warm = math.ceil(options.warmup if options.warmup >= 1 else options.warmup * total)
    if step + 1 <= warm:
        return options.learning_rate * (step + 1) / warm
    if options.schedule == "inverse-sqrt":
        return options.learning_rate * math.sqrt(max(warm, 1) / (step + 1))
    if options.schedule == "linear":
        return options.learning_rate * (total - step) / max(total - warm, 1)
    return options.learning_rate
