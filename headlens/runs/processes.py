"""Several processes that share one corpus, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

from headlens.corpora.sentence import Corpus
from headlens.runs.shards import Shard
from headlens.runs.signals import default_signals

T = TypeVar("T")
# A parser or a slow shard may take long; when a process dies, torchrun ends the others, whatever this says.
_PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class Processes:
    """This process among those that share the work.

    Args:
        rank: its number; the first one, 0, writes the run folder and talks to the user.
        count: how many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes and talks."""
        return self.rank == 0

    def shard(self, corpus: Corpus) -> Shard:
        """This process's part of a corpus."""
        return Shard(corpus, self.rank, self.count)

    def share(self, value: T) -> T:
        """The first process's value, in all of them."""
        if self.count == 1:
            return value
        box = [value]
        with default_signals():
            distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in all of them, by rank."""
        if self.count == 1:
            return [value]
        found: list[T | None] = [None] * self.count
        with default_signals():
            distributed.all_gather_object(found, value)
        return [v for v in found if v is not None]


ALONE = Processes()


@contextmanager
def process_group() -> Iterator[Processes]:
    """Join the other processes when torchrun started this one; alone otherwise.

    Sums travel through gloo, on any device. Each process computes on the GPU of its local rank.
    """
    if not distributed.is_available() or not distributed.is_torchelastic_launched():
        yield ALONE
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    distributed.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield Processes(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()
