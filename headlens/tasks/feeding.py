"""From examples to batches of about equal cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from headlens.errors import OptionError
from headlens.tasks.base import Prepared, Task
from headlens.tasks.examples import TaskExample
from headlens.tasks.reader import Reader
from headlens.tasks.sources import SourceCounts, TaskSource

POOL = 4096  # examples that are held and sorted together


def prepare_all(task: Task, source: TaskSource, reader: Reader, counts: SourceCounts) -> Iterator[Prepared]:
    """Examples as a model reads them, one at a time, numbered in order; `counts` says what became of the others."""
    for example in source.read(counts):
        prepared = _prepare(task, example, reader, counts.examples)
        if prepared is None:
            counts.too_long += 1
        else:
            counts.examples += 1
            yield prepared


def _prepare(task: Task, example: TaskExample, reader: Reader, index: int) -> Prepared | None:
    rows = task.prepare(example, reader)
    return Prepared(index, example, rows) if rows else None


def budget_batches(prepared: Iterable[Prepared], batch_tokens: int, pool: int = POOL) -> Iterator[list[Prepared]]:
    """Put examples of similar length together, so that little of a batch is padding.

    Args:
        prepared: read once, lazily.
        batch_tokens: most tokens of a batch, padding among them; a longer example is a batch of its own.
        pool: how many examples are sorted together.

    Raises:
        OptionError: if `batch_tokens` is not positive.
    """
    if batch_tokens < 1:
        raise OptionError(f"--batch-tokens {batch_tokens} is not a positive number.", "4096 suits most machines.")
    return _batches(iter(prepared), batch_tokens, pool)


def _batches(prepared: Iterator[Prepared], batch_tokens: int, pool: int) -> Iterator[list[Prepared]]:
    while held := list(islice(prepared, pool)):
        batch: list[Prepared] = []
        rows = 0
        for example in sorted(held, key=lambda p: p.length):
            if batch and (rows + len(example.rows)) * example.length > batch_tokens:
                yield batch
                batch, rows = [], 0
            batch.append(example)
            rows += len(example.rows)
        yield batch
