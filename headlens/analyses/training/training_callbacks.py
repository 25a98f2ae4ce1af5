"""How one training of a sweep is followed from outside, and how strong its penalty may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headlens.training.batch_sampler import BatchSampler
from headlens.training.hyperparameters import TrainingOptions
from headlens.training.loop import TrainingCheckpoint, TrainingData, total_updates


@dataclass(frozen=True)
class TrainingCallbacks:
    """How a training is followed.

    Args:
        keeper: where its state is kept; None keeps nothing.
        progress: called with the number of updates done.
        processes: how many train together.
    """

    keeper: TrainingCheckpoint | None = None
    progress: Callable[[int], None] = lambda _: None
    processes: int = 1

    def updates(self, data: TrainingData, training: TrainingOptions) -> int:
        """Returns the number of updates that a training on this data will take, see `total_updates`."""
        order = BatchSampler(
            tuple(data.lengths), training.batch_tokens, training.accumulate, training.seed, 0, self.processes
        )
        return total_updates(training, order)
