"""Updates of a training, and what is trained and measured on: what the plans of commands that train share."""

from __future__ import annotations

from dataclasses import dataclass

from headlens.analyses.planning.data_sizes import DataSize, updates
from headlens.analyses.planning.plan import Planner, Work
from headlens.attention.model_normalizer import SOFTMAX
from headlens.attention.normalizers import parse_normalizer
from headlens.training.hyperparameters import LoopOptions


@dataclass(frozen=True)
class TrainingSteps:
    """Updates of a training and the tokens of each; None where the size of the data is not known."""

    steps: float | None
    batch: int
    length: int
    options: LoopOptions

    @classmethod
    def of(cls, options: LoopOptions, data: DataSize, length: int | None = None) -> TrainingSteps:
        """Returns the updates of a training on data whose texts have `length` tokens, by default those of the data."""
        batch = options.batch_tokens * options.accumulate
        steps: float | None = options.steps
        if steps is None and data.tokens is not None:
            steps = updates(data.tokens, options.epochs, batch)
        return cls(steps, batch, length or data.length, options)

    def work(self, text: str, *, model: int = 0, each: float = 1.0, times: int = 1) -> Work:
        """Returns the work of all updates of a training that is run `times` times."""
        steps = None if self.steps is None else self.steps * times
        size_text = "updates not known" if steps is None else f"{steps:,.0f} updates of {self.batch:,} tokens"
        tokens = None if steps is None else steps * self.batch
        size = self.options.batch_tokens
        return Work(f"{text}: {size_text}", model, "backward", tokens, each, steps or 0.0, size, self.length)


def plan_attention(planner: Planner, attention: str | None) -> None:
    """Plans for a model that `--attention` switches to another normaliser."""
    if attention is not None and attention != SOFTMAX:
        planner.attention = parse_normalizer(attention)


def plan_evaluations(planner: Planner, every: int, loop: TrainingSteps, held_out: DataSize) -> None:
    """Plans the evaluations on held-out data, every so many updates; 0 for every epoch."""
    times = 1.0
    if every and loop.steps is not None:
        times = max(1.0, loop.steps // every)
    elif loop.options.steps is None:
        times = max(1.0, loop.options.epochs)
    text = f"evaluate {times:.0f} times"
    planner.add(
        Work(text, tokens=held_out.tokens, each=times, batch_tokens=loop.options.batch_tokens, length=loop.length)
    )
