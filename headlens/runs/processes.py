"""Several processes that share one corpus, as torchrun starts them, and signals that ask a process to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from types import FrameType
from typing import Any, Self, TypeVar

import torch
from torch import distributed

from headlens.corpora.sentence import Corpus, Example
from headlens.corpora.sources import CorpusView

# Ctrl-C, the polite kill of schedulers, and the end of the terminal.
SIGNALS = tuple(s for name in ("SIGINT", "SIGTERM", "SIGHUP") if (s := getattr(signal, name, None)) is not None)


@contextmanager
def _handled(handler: Any) -> Iterator[None]:
    """Inside `with`, signals have this handler; outside of the main thread, where Python allows none, no other."""
    is_main = threading.current_thread() is threading.main_thread()
    # One that Python did not set cannot be put back; to ignore a signal is the wish of nohup.
    ours = [s for s in SIGNALS if is_main and signal.getsignal(s) not in (None, signal.SIG_IGN)]
    before = {s: signal.signal(s, handler) for s in ours}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def default_signals() -> AbstractContextManager[None]:
    """Inside `with`, signals end the process as the system does it: for waits in which Python's handlers never run."""
    return _handled(signal.SIG_DFL)


class DeferredSignals(ExitStack):
    """Inside `with`, a signal to stop is noted; `obey` acts on it where that does no harm.

    A second signal acts at once. Outside of the main thread, where Python allows no handlers, nothing changes.
    """

    noted: int | None = None

    def __enter__(self) -> Self:
        self.enter_context(_handled(self._note))
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        if problem[0] is None:
            self.obey()

    def obey(self) -> None:
        """Raises the noted signal again, if there is one, for the handler of before this block."""
        if self.noted is not None:
            number, self.noted = self.noted, None
            self.close()
            signal.raise_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        again, self.noted = self.noted is not None, number
        if again:
            self.obey()


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
