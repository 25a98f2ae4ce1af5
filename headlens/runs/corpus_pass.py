"""One pass of a corpus through a model: progress, out of memory, interruption and shards, once for all recipes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headlens.corpora.annotations import AnnotationCounts
from headlens.corpora.batches import Batch
from headlens.corpora.encoded_corpus import add_counts
from headlens.corpora.encoding import EncodedExample
from headlens.corpora.sentence import Corpus
from headlens.memory import SplitWhenOutOfMemory
from headlens.runs.checkpoint import Checkpoint
from headlens.runs.corpus_reader import CorpusReader
from headlens.runs.pass_progress import PassProgress
from headlens.runs.pass_state import PassState
from headlens.runs.processes import ALONE, Processes
from headlens.runs.progress import Advance
from headlens.runs.signals import DeferredSignals

# Runs a batch through the model; what it measures is pending until the model has returned.
Step = Callable[[Batch], AnnotationCounts]


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


@dataclass(frozen=True)
class CorpusPass:
    """How a corpus goes through a model.

    Args:
        progress: called after every batch with the number of the corpus's sentences that are done with it, at last all.
        warn: called with what the user should know at once.
        keeper: where the sums are kept, so that an interrupted pass can go on; None keeps nothing.
        processes: with whom the corpus is shared.
    """

    progress: Advance = lambda _: None
    warn: Callable[[str], None] = _warn
    keeper: Checkpoint | None = None
    processes: Processes = ALONE

    def run(self, feed: CorpusReader, corpus: Corpus, step: Step, tally: PassState, batch_tokens: int = 2048) -> None:
        """Add a whole corpus up: this process's shard, then the shards of all.

        The batches, and with them the sums to the last bit, do not depend on interruptions. A signal to stop takes
        effect after the batch at hand. A batch that does not fit into memory is run in halves.

        Args:
            feed: the model.
            corpus: all of it, whatever the number of processes.
            step: runs one batch.
            tally: its totals are those that `step` adds to; afterwards it holds the sums of all processes.
            batch_tokens: tokens of a batch, padding included.

        Raises:
            ModelError: if a single sentence does not fit into the memory of the device.
            OutputError: if what was kept belongs to something else, or cannot be written.
        """
        if self.keeper is not None:
            self.keeper.restore(tally)
        if not tally.complete:
            self._add_up(feed, corpus, step, tally, batch_tokens)
        if self.processes.count > 1:
            tally.fill(self.processes.gather(tally.dump()))

    def _add_up(self, feed: CorpusReader, corpus: Corpus, step: Step, tally: PassState, batch_tokens: int) -> None:
        reached = PassProgress(self.progress, tally.encoding)
        rows = feed.rows(reached.reading(self.processes.shard(corpus)), batch_tokens, tally.encoding)
        # What failed has been forgotten by all observers, so nothing counts twice.
        run = SplitWhenOutOfMemory(
            feed.model.device, lambda rows: step(feed.collate(rows)), _joined, _tokens, self.warn, row="sentence"
        )
        with DeferredSignals() as signals:
            for number, batch in enumerate(rows):
                if number >= tally.batches:
                    counts = run(batch)
                    add_counts(tally.annotation, counts)
                    tally.batches += 1
                reached.ran(len(batch))
                self._keep(tally, signals)
            tally.complete = True
            self._keep(tally, signals, always=True)

    def _keep(self, tally: PassState, signals: DeferredSignals, *, always: bool = False) -> None:
        if self.keeper is not None and tally.batches and (always or signals.noted is not None or self.keeper.due):
            self.keeper.save(tally)
        signals.obey()


def _joined(first: AnnotationCounts, second: AnnotationCounts) -> AnnotationCounts:
    add_counts(first, second)
    return first


def _tokens(rows: Sequence[EncodedExample]) -> int:
    return len(rows) * max(row.length for row in rows)
