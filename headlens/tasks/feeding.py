"""From examples to batches of about equal cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headlens.corpora.batching import POOL, pooled_batches
from headlens.tasks.example_sources import SourceCounts, TaskSource
from headlens.tasks.examples import TaskExample
from headlens.tasks.reader import Reader
from headlens.tasks.task import PreparedExample, Task


def prepare_all(task: Task, source: TaskSource, reader: Reader, counts: SourceCounts) -> Iterator[PreparedExample]:
    """Examples as a model reads them, one at a time, numbered in order; `counts` says what became of the others."""
    for example in source.read(counts):
        prepared = _prepare(task, example, reader, counts.examples)
        if prepared is None:
            counts.too_long += 1
        else:
            counts.examples += 1
            yield prepared


def _prepare(task: Task, example: TaskExample, reader: Reader, index: int) -> PreparedExample | None:
    rows = task.prepare(example, reader)
    return PreparedExample(index, example, rows) if rows else None


def budget_batches(
    prepared: Iterable[PreparedExample], batch_tokens: int, pool: int = POOL
) -> Iterator[list[PreparedExample]]:
    """`pooled_batches` of prepared examples, each with all its rows."""
    return pooled_batches(prepared, batch_tokens, lambda p: p.length, lambda p: len(p.rows), pool)
