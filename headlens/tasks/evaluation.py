"""A model on a task: one record per example, and metrics with intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headlens.errors import CorpusError, OptionError, counted
from headlens.memory import SplitWhenOutOfMemory
from headlens.models.loading import LoadedModel
from headlens.statistics.bootstrap import FEWEST, Draws, percentile_interval
from headlens.tasks.example_sources import SourceCounts, TaskSource
from headlens.tasks.examples import TaskExample
from headlens.tasks.feeding import budget_batches, prepare_all
from headlens.tasks.reader import Reader
from headlens.tasks.task import Floats, PreparedExample, Task, TaskBatch


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


@dataclass(frozen=True)
class EvaluationOptions:
    """How a task is evaluated.

    Args:
        batch_tokens: tokens of a batch, padding included.
        max_length: a limit of tokens below the model's own.
        replicates: bootstrap samples; 0 gives no intervals.
        seed: of the bootstrap.
        progress: called after every batch with the number of examples that are done.
        warn: called with what the user should know at once.
        seen: called after every batch with the model's outputs and what it read.
    """

    batch_tokens: int = 4096
    max_length: int | None = None
    replicates: int = 1000
    seed: int = 0
    progress: Callable[[int], None] = lambda _: None
    warn: Callable[[str], None] = _warn
    seen: Callable[[Any, TaskBatch], None] = lambda _, __: None

    def __post_init__(self) -> None:
        if self.replicates < 0:
            raise OptionError(f"{self.replicates} bootstrap samples cannot be drawn.", "1000 are usual.")


@dataclass(frozen=True)
class Estimate:
    """A metric and its 95 % bootstrap interval over examples; NaN ends without one."""

    value: float
    ci_low: float
    ci_high: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model did on a task.

    Args:
        task: the task.
        records: (n, k), in the order of the source.
        ids: of the examples, (n,).
        metrics: by name, the main one first.
        counts: what became of the source.
        keys: of the examples for the bootstrap, see `Draws.of`, (n,).
    """

    task: Task
    records: Floats
    ids: tuple[str, ...]
    metrics: dict[str, Estimate]
    counts: SourceCounts = field(default_factory=SourceCounts)
    keys: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """Value of the task's main metric over all evaluated examples."""
        return self.metrics[self.task.metrics[0]].value

    def samples(self, name: str, options: EvaluationOptions | None = None) -> Floats:
        """A metric in the bootstrap samples that its interval is of: (replicates,); none for few examples.

        They are the same samples of examples for every model that answered the same ones.
        """
        options = options or EvaluationOptions()
        return _samples(self.task, self.records, _draws(self.keys, options), name)


def evaluate(
    task: Task, loaded: LoadedModel, source: TaskSource, options: EvaluationOptions | None = None
) -> Evaluation:
    """Run a model over a task's examples.

    Batches hold examples of similar length; only records are kept. A batch that does not fit into memory is run in
    halves. Examples that the model cannot read whole are left out and counted, never cut.

    Raises:
        CorpusError: broken data, or no example that can be read.
        OptionError: a model that is not for this task.
        ModelError: no tokenizer, or no memory for a single example.
    """
    options = options or EvaluationOptions()
    reader = Reader.of(loaded, task.labels, options.max_length)
    counts = SourceCounts()

    def run(prepared: Sequence[PreparedExample]) -> Floats:
        batch = task.collate(prepared, reader, loaded.device)
        outputs = task.run(loaded.model, batch)
        options.seen(outputs, batch)
        return task.read(outputs, batch)

    in_parts = SplitWhenOutOfMemory(loaded.device, run, lambda a, b: np.concatenate([a, b]), token_count, options.warn)
    places: list[int] = []
    examples: list[TaskExample] = []
    records: list[Floats] = []
    for batch in budget_batches(prepare_all(task, source, reader, counts), options.batch_tokens):
        records.append(in_parts(batch))
        places += [p.index for p in batch]
        examples += [p.example for p in batch]
        options.progress(len(places))
    if not records:
        raise nothing_left(source, reader, counts)
    order = np.argsort(places)
    found, ordered = np.concatenate(records)[order], [examples[i] for i in order]
    keys = tuple(e.key for e in ordered)
    metrics = estimates(task, found, keys, options)
    return Evaluation(task, found, tuple(e.id for e in ordered), metrics, counts, keys)


def nothing_left(source: TaskSource, reader: Reader, counts: SourceCounts) -> CorpusError:
    """The error of a source of which no example could be read."""
    return CorpusError(
        f"none of its {counted(counts.rows, 'example')} can be asked: longer than {reader.limit} tokens, "
        "or without anything to ask.",
        "Give shorter texts, a model that reads longer ones, or a larger --longest if one was given.",
        path=source.name,
    )


def estimates(
    task: Task, records: Floats, keys: Sequence[str], options: EvaluationOptions | None = None
) -> dict[str, Estimate]:
    """All metrics of records with their intervals, which fewer than `FEWEST` examples do not have.

    Args:
        task: whose records they are.
        records: (n, k).
        keys: of the examples, see `Draws.of`.
        options: of the bootstrap.
    """
    options = options or EvaluationOptions()
    draws, found = _draws(keys, options), {}
    for name, value in task.values(records).items():
        low, high = percentile_interval(_samples(task, records, draws, name))
        found[name] = Estimate(value, float(low), float(high))
    return found


def _draws(keys: Sequence[str], options: EvaluationOptions) -> Draws:
    return Draws.of(keys, options.replicates if len(keys) >= FEWEST else 0, options.seed)


def _samples(task: Task, records: Floats, draws: Draws, name: str) -> Floats:
    replicates = [task.replicates(records, weights, name) for weights in draws.blocks()]
    return np.concatenate([*replicates, np.empty(0)])


def token_count(prepared: Sequence[PreparedExample]) -> int:
    """Tokens of some examples as one batch, padding included."""
    return sum(len(p.rows) for p in prepared) * max(p.length for p in prepared)
