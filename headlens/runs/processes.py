"""Several processes that share one corpus, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import TypeVar

import torch
from torch import distributed

from headlens.corpora.sentence import Corpus, Example
from headlens.corpora.sources import CorpusView
from headlens.runs.signals import default_signals

T = TypeVar("T")
# A parser or a slow shard may take long; when a process dies, torchrun ends the others, whatever this says.
_PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class Shard(CorpusView):
    """Every `of`-th example of a corpus, from the `number`-th on: shards differ by one example at most.

    Args:
        corpus: the whole corpus.
        number: which shard, from 0.
        of: how many shards there are.
    """

    number: int
    of: int

    def __iter__(self) -> Iterator[Example]:
        """Reads the whole corpus and yields every `of`-th example."""
        return islice(iter(self.corpus), self.number, None, self.of)


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
        """Whether this is the process that writes the run folder and talks to the user."""
        return self.rank == 0

    def shard(self, corpus: Corpus) -> Shard:
        """Returns the part of a corpus that this process reads."""
        return Shard(corpus, self.rank, self.count)

    def shard_size(self, examples: int) -> int:
        """Returns how many of a corpus's examples fall to this process."""
        return len(range(self.rank, examples, self.count))

    def share(self, value: T) -> T:
        """Sends the value of the first process to all others; every process gets it back."""
        if self.count == 1:
            return value
        box = [value]
        with default_signals():
            distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Collects the values of all processes in every one of them, ordered by rank."""
        if self.count == 1:
            return [value]
        values = [value] * self.count
        with default_signals():
            distributed.all_gather_object(values, value)
        return values


ALONE = Processes()


@contextmanager
def process_group() -> Iterator[Processes]:
    """Joins the processes that torchrun started together with this one; without torchrun, yields `ALONE`.

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
