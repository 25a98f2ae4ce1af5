"""A model on a task: one record per example, and metrics with intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headlens.corpora.bootstrap import Draws, percentile_interval
from headlens.errors import CorpusError, ModelError, OptionError, counted
from headlens.models.loading import LoadedModel
from headlens.models.memory import free, is_out_of_memory
from headlens.tasks.base import Floats, Prepared, Task, TaskBatch
from headlens.tasks.feeding import budget_batches, prepare_all
from headlens.tasks.reader import Reader
from headlens.tasks.sources import SourceCounts, TaskSource


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
    """

    batch_tokens: int = 4096
    max_length: int | None = None
    replicates: int = 1000
    seed: int = 0
    progress: Callable[[int], None] = lambda _: None
    warn: Callable[[str], None] = _warn

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
    """

    task: Task
    records: Floats
    ids: tuple[str, ...]
    metrics: dict[str, Estimate]
    counts: SourceCounts = field(default_factory=SourceCounts)

    @property
    def value(self) -> float:
        """The main metric."""
        return self.metrics[self.task.metrics[0]].value


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
    runner = _Runner(task, loaded, reader, options)
    places: list[int] = []
    ids: list[str] = []
    records: list[Floats] = []
    for batch in budget_batches(prepare_all(task, source, reader, counts), options.batch_tokens):
        records.append(runner.run(batch))
        places += [p.index for p in batch]
        ids += [p.example.id for p in batch]
        options.progress(len(places))
    if not records:
        raise nothing_left(source, reader, counts)
    order = np.argsort(places)
    found, names = np.concatenate(records)[order], tuple(ids[i] for i in order)
    return Evaluation(task, found, names, estimates(task, found, names, options), counts)


def nothing_left(source: TaskSource, reader: Reader, counts: SourceCounts) -> CorpusError:
    """The error of a source of which no example could be read."""
    return CorpusError(
        f"none of its {counted(counts.rows, 'example')} can be asked: too long for the model's "
        f"{reader.limit} tokens, or without anything to ask.",
        "Give shorter texts, or a model that reads longer ones.",
        path=source.name,
    )


def estimates(
    task: Task, records: Floats, keys: Sequence[str], options: EvaluationOptions | None = None
) -> dict[str, Estimate]:
    """All metrics of records with their intervals.

    Args:
        task: whose records they are.
        records: (n, k).
        keys: of the examples, see `Draws.of`.
        options: of the bootstrap.
    """
    options = options or EvaluationOptions()
    draws = Draws.of(keys, options.replicates, options.seed)
    found = {}
    for name, value in task.values(records).items():
        replicates = [task.replicates(records, weights, name) for weights in draws.blocks()]
        low, high = percentile_interval(np.concatenate([*replicates, np.empty(0)]))
        found[name] = Estimate(value, float(low), float(high))
    return found


@dataclass
class _Runner:
    """Runs batches, each in as many parts as memory asks for."""

    task: Task
    loaded: LoadedModel
    reader: Reader
    options: EvaluationOptions
    # Padded tokens that are known to be too many.
    too_many: int | None = None

    def run(self, prepared: Sequence[Prepared]) -> Floats:
        """Records of a batch."""
        size = sum(len(p.rows) for p in prepared) * max(p.length for p in prepared)
        if self.too_many is None or size < self.too_many or len(prepared) == 1:
            found = self._try(prepared)
            if found is not None:
                return found
            if len(prepared) == 1:
                raise ModelError(
                    f"{self.loaded.device} has no memory for a single example of {prepared[0].length} tokens.",
                    "Use --device cpu or --dtype bfloat16.",
                )
            self._note(size)
        middle = len(prepared) // 2
        return np.concatenate([self.run(prepared[:middle]), self.run(prepared[middle:])])

    def _note(self, size: int) -> None:
        if self.too_many is None:
            self.options.warn(
                f"{self.loaded.device} has no memory for a batch of {size} tokens: batches are halved. "
                "A smaller --batch-tokens saves the failed attempts."
            )
        self.too_many = size

    def _try(self, prepared: Sequence[Prepared]) -> Floats | None:
        """None when memory did not suffice."""
        try:
            return self._records(self.task.collate(prepared, self.reader, self.loaded.device))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler, whose exception keeps the failed pass's tensors alive.
        free(self.loaded.device)
        return None

    def _records(self, batch: TaskBatch) -> Floats:
        return self.task.read(self.task.run(self.loaded.model, batch), batch)
