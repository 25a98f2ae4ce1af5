"""Which examples go into which update: fixed by seed and epoch, so that a resumed run meets the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headlens.corpora.batches import cut_batches, one_row
from headlens.learning.hyperparameters import LoopOptions

Indices = tuple[int, ...]
# Sentences are sorted by length within so many batches: little padding, and still another company in every epoch.
_POOL = 50


def epoch_batches(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[Indices]:
    """All examples in random batches of similar length.

    Args:
        lengths: tokens of every example.
        batch_tokens: most tokens of a batch, padding included; a longer example is a batch of its own.
        seed: of the order.
        epoch: another order in every one.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    mean = max(1.0, float(np.mean(lengths)) if len(lengths) else 1.0)
    pool = max(1, int(_POOL * batch_tokens / mean))
    batches: list[Indices] = []
    for first in range(0, len(order), pool):
        near = sorted(order[first : first + pool].tolist(), key=lengths.__getitem__)
        batches += map(tuple, cut_batches(near, batch_tokens, lengths.__getitem__, one_row))
    return [batches[i] for i in generator.permutation(len(batches))]


@dataclass(frozen=True)
class BatchSampler:
    """The batches of every update, for one of several processes.

    Args:
        lengths: tokens of every example.
        batch_tokens: most tokens of a batch.
        accumulate: batches of each process in one update.
        seed: of the order.
        rank: this process.
        processes: how many there are.
    """

    lengths: tuple[int, ...]
    batch_tokens: int
    accumulate: int = 1
    seed: int = 0
    rank: int = 0
    processes: int = 1

    @classmethod
    def of_training(cls, lengths: Sequence[int], options: LoopOptions, rank: int, processes: int) -> BatchSampler:
        """Returns the batches of a training on examples of these lengths."""
        return cls(tuple(lengths), options.batch_tokens, options.accumulate, options.seed, rank, processes)

    def per_epoch(self, epoch: int) -> int:
        """Updates of an epoch; its last one may be smaller."""
        return -(-len(self._batches(epoch)) // (self.accumulate * self.processes))

    def of(self, epoch: int, number: int) -> list[Indices]:
        """This process's batches of an update; every process has as many."""
        batches, size = self._batches(epoch), self.accumulate * self.processes
        shard = batches[number * size : (number + 1) * size]
        # Gradients are averaged over processes, so that all have to take part: the first batches help out again.
        shard += [batches[i % len(batches)] for i in range(-len(shard) % self.processes)]
        return shard[self.rank :: self.processes]

    def _batches(self, epoch: int) -> list[Indices]:
        return _remembered(self.lengths, self.batch_tokens, self.seed, epoch)


_remembered = lru_cache(maxsize=2)(epoch_batches)
