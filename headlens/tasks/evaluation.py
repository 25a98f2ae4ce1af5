"""Evaluation of a model on a task: batches of examples, one record per example, and metrics with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np

from headlens.attention.finite_values import FiniteValues
from headlens.corpora.batches import IGNORED, POOL, pooled_batches
from headlens.corpora.encoded_corpus import UnknownTokens
from headlens.corpora.encoding import SentenceEncoder
from headlens.errors import CorpusError, OptionError, counted
from headlens.memory import SplitWhenOutOfMemory
from headlens.models.loading import LoadedModel
from headlens.statistics.bootstrap import FEWEST, Draws
from headlens.statistics.intervals import wilson
from headlens.statistics.non_inferiority import Margin
from headlens.statistics.paired_tests import Comparison, Right, interval_around, replicates_of
from headlens.tasks.example_sources import SourceCounts, TaskSource
from headlens.tasks.examples import texts_of
from headlens.tasks.reader import Reader
from headlens.tasks.task import Floats, PreparedExample, Task, TaskBatch
from headlens.visible_text import warn_visibly

_WORTH_TELLING = 0.1  # share of the examples that repeat the texts of others


@dataclass(frozen=True)
class EvaluationOptions:
    """Batches, bootstrap and callbacks of an evaluation.

    Args:
        batch_tokens: tokens of a batch, padding included.
        max_length: a limit of tokens below the model's own.
        replicates: number of bootstrap samples; 0 gives no intervals but those of shares of right examples.
        seed: seed of the bootstrap.
        progress: called after every batch with the number of examples that are done.
        warn: called with what the user should know at once.
        seen: called after every batch with the model's outputs and what it read.
    """

    batch_tokens: int = 4096
    max_length: int | None = None
    replicates: int = 1000
    seed: int = 0
    progress: Callable[[int], None] = lambda _: None
    warn: Callable[[str], None] = warn_visibly
    seen: Callable[[Any, TaskBatch], None] = lambda _, __: None

    def __post_init__(self) -> None:
        if self.replicates < 0:
            raise OptionError(f"{self.replicates} bootstrap samples cannot be drawn.", "1000 is usual.")


@dataclass(frozen=True)
class Estimate:
    """A metric and its 95 % interval over examples, see `estimate`; NaN ends without one."""

    value: float
    ci_low: float
    ci_high: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Records and metrics of a model on a task.

    Args:
        task: the task.
        records: records of the examples, (n, k), in the order of the source.
        ids: ids of the examples, (n,).
        metrics: estimates by name of the metric, the main one first.
        counts: what became of the source.
        keys: keys of the examples for the bootstrap, see `Draws.of`, (n,).
        notes: what to know about the numbers of the classes, and about how the model was measured.
        labels: how often each token was to be predicted, by id; empty for tasks without labels of tokens.
        traits: how many examples have which `Task.trait`.
    """

    task: Task
    records: Floats
    ids: tuple[str, ...]
    metrics: dict[str, Estimate]
    counts: SourceCounts = field(default_factory=SourceCounts)
    keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    labels: Counter[int] = field(default_factory=Counter)
    traits: Counter[Any] = field(default_factory=Counter)

    @property
    def value(self) -> float:
        """Value of the task's main metric over all evaluated examples."""
        return self.metrics[self.task.metrics[0]].value

    def samples(self, name: str, options: EvaluationOptions | None = None) -> Floats:
        """Computes a metric in the bootstrap samples of its interval: (replicates,); none for few examples.

        The samples are the same for every model that was evaluated on the same examples.
        """
        options = options or EvaluationOptions()
        draws = Draws.of(self.keys, options.replicates, options.seed)
        return replicates_of(self.records, partial(self.task.replicates, metric=name), draws)


def evaluate(
    task: Task, loaded: LoadedModel, source: TaskSource, options: EvaluationOptions | None = None
) -> Evaluation:
    """Runs a model over a task's examples.

    Batches hold examples of similar length; only records are kept. A batch that does not fit into memory is run in
    halves. Examples that the model cannot read whole are left out and counted, never cut.

    Raises:
        CorpusError: broken data, or no example that can be read.
        OptionError: a model that is not for this task.
        ModelError: no tokenizer, no memory for a single example, or outputs that are not finite.
    """
    options = options or EvaluationOptions()
    reader = Reader.of(loaded, task.labels, options.max_length, task.outputs)
    task.notes(reader)  # what cannot be measured is refused before anything is read
    counts = SourceCounts()
    labels: Counter[int] = Counter()
    traits: Counter[Any] = Counter()

    def seen(outputs: Any, batch: TaskBatch) -> None:
        labels.update(label_counts(batch.prepared))
        traits.update(map(task.trait, batch.prepared))
        options.seen(outputs, batch)

    records, ids, keys = records_of(task, loaded, source, reader, counts, replace(options, seen=seen))
    metrics = estimates(task, records, keys, options)
    notes = [*filter(None, [reader.order.note]), *task.notes(reader, traits)]
    return Evaluation(task, records, ids, metrics, counts, keys, (*notes, *counts.notes), labels, traits)


def records_of(
    task: Task,
    loaded: LoadedModel,
    source: TaskSource,
    reader: Reader,
    counts: SourceCounts,
    options: EvaluationOptions,
) -> tuple[Floats, tuple[str, ...], tuple[str, ...]]:
    """Runs a model over a task's examples: their records, (n, k), ids and keys, in the order of the source.

    Args:
        task: the task.
        loaded: the model.
        source: the examples.
        reader: that of the model.
        counts: grows by what became of the source.
        options: batches and callbacks; errors as in `evaluate`.
    """

    def run(prepared: Sequence[PreparedExample]) -> Floats:
        batch = task.collate(prepared, reader, loaded.device)
        outputs = task.run(loaded.model, batch)
        FiniteValues(loaded.model).check(outputs)
        records = task.read(outputs, batch)
        # A batch that does not fit into memory is seen in halves, and only in these.
        options.seen(outputs, batch)
        return records

    in_parts = SplitWhenOutOfMemory(loaded.device, run, lambda a, b: np.concatenate([a, b]), token_count, options.warn)
    evaluated: list[tuple[int, str, str]] = []  # index, id and key of every example
    blocks: list[Floats] = []
    prepared = with_repeated_told(prepare_all(task, source, reader, counts), counts, source.name)
    for batch in budget_batches(prepared, options.batch_tokens):
        blocks.append(in_parts(batch))
        evaluated += [(p.index, p.example.id, p.example.key) for p in batch]
        options.progress(len(evaluated))
    if not blocks:
        raise no_examples_error(source, reader, counts)
    # Batches come by length of their examples: back to the order of the source.
    records = np.concatenate(blocks)[np.argsort([index for index, _, _ in evaluated])]
    _, ids, keys = zip(*sorted(evaluated), strict=True)
    return records, ids, keys


def no_examples_error(source: TaskSource, reader: Reader, counts: SourceCounts) -> CorpusError:
    """Returns the error for a source of which no example could be read."""
    limit = reader.limit_text
    longer = f"longer than {limit}, or without text to score." if limit else "without text to score."
    advice = "a larger --data-args longest" if reader.shortened else "a model that reads longer ones"
    return CorpusError(
        f"none of its {counted(counts.rows, 'example')} can be used: each is {longer}",
        f"Give shorter texts, or {advice}." if limit else "Give texts of two tokens or more.",
        path=source.name,
    )


def estimates(task: Task, records: Floats, keys: Sequence[str], options: EvaluationOptions) -> dict[str, Estimate]:
    """Computes all metrics of records with their intervals, see `estimate`.

    Args:
        task: task of the records.
        records: records of the examples, (n, k).
        keys: keys of the examples, see `Draws.of`.
        options: options of the bootstrap.
    """
    draws = Draws.of(keys, options.replicates, options.seed)
    return {name: estimate(task, name, records, draws) for name in task.metrics}


def estimate(task: Task, metric: str, records: Floats, draws: Draws) -> Estimate:
    """Computes a metric of records, (n, k), with its 95 % interval.

    The interval of a share of right examples is Wilson's score interval. That of any other metric, or of examples that
    are drawn together, is the range of percentiles of the bootstrap, which few examples do not have; see
    `replicates_of`.
    """
    right = None if draws.clusters is not None else task.right(records, metric)
    value = task.value(records, metric=metric)
    if right is None:
        low, high = interval_around(value, replicates_of(records, partial(task.replicates, metric=metric), draws))
    else:
        low, high = map(float, wilson(right.sum(), np.array(len(right))))
    return Estimate(value, low, high)


def label_counts(prepared: Iterable[PreparedExample]) -> Counter[int]:
    """Counts the tokens that examples have as labels, by id."""
    return Counter(label for p in prepared for row in p.rows for label in row.labels if label != IGNORED)


def token_count(prepared: Sequence[PreparedExample]) -> int:
    """Counts the tokens of examples as one batch, padding included."""
    return sum(len(p.rows) for p in prepared) * max(p.length for p in prepared)


def prepare_all(task: Task, source: TaskSource, reader: Reader, counts: SourceCounts) -> Iterator[PreparedExample]:
    """Tokenises the examples of a source one at a time, numbered in order; `counts` grows, also by those left out.

    Raises:
        CorpusError: broken data, or more that is unknown to the tokenizer than the reader allows.
    """
    encoder, sides = SentenceEncoder(reader.tokenizer), (UnknownTokens(), UnknownTokens())
    for example in source.read(counts):
        rows = task.prepare(example, reader)
        # A tokenizer may not know any of a text, and drop it.
        if not rows or not all(any(row.labels) or set(row.ids) - encoder.special_kinds.keys() for row in rows):
            counts.too_long += 1
            continue
        for row in rows:
            for side, ids in zip(sides, (row.ids, [i for i in row.labels if i >= 0]), strict=True):
                side.add(ids, encoder.unknown_id, encoder.special_kinds)
        for side in sides:
            side.check(reader.max_unknown, source.name, reader.tokenizer, complete=False)
        counts.examples += 1
        yield PreparedExample(counts.examples - 1, example, rows)
    for side in sides:
        side.check(reader.max_unknown, source.name, reader.tokenizer)
        counts.note(*side.notes(reader.tokenizer))


def with_repeated_told(
    prepared: Iterable[PreparedExample], counts: SourceCounts, name: str
) -> Iterator[PreparedExample]:
    """Yields what a model is evaluated on; at the end `counts` has a note if many examples repeat the texts of others.

    Args:
        prepared: the examples.
        counts: of their source.
        name: of it.
    """
    times = Counter[int]()
    for one in prepared:
        times[hash(texts_of(one.example))] += 1
        yield one
    counts.repeated = times.total() - len(times)
    counts.note(*repeated_notes(counts, times.total(), name))


def repeated_notes(counts: SourceCounts, number: int, name: str) -> list[str]:
    """The note on examples that repeat the texts of others, where they are many.

    Args:
        counts: of what a model was evaluated on.
        number: how many examples that are.
        name: of their source.
    """
    if number < FEWEST or counts.repeated < _WORTH_TELLING * number:
        return []
    return [
        f"{counts.repeated:,} of {counted(number, 'example')} of {name} repeat the texts of others: intervals and "
        "p-values take them for independent ones, and are too small."
    ]


def budget_batches(
    prepared: Iterable[PreparedExample], batch_tokens: int, pool: int = POOL
) -> Iterator[list[PreparedExample]]:
    """Puts prepared examples of similar length together, each with all its rows; see `pooled_batches`."""
    return pooled_batches(prepared, batch_tokens, lambda p: p.length, lambda p: len(p.rows), pool)


def chosen_metric(task: Task, metric: str | None) -> str:
    """The metric asked for, or the task's main one.

    Raises:
        OptionError: if the task has no such metric.
    """
    name = metric or task.metrics[0]
    if name not in task.metrics:
        raise OptionError(
            f"The task {task.name} has no metric {name!r}.", f"--metric can be {', '.join(task.metrics)}."
        )
    return name


def paired_comparison(
    task: Task, metric: str, baseline: Floats, draws: Draws, margin: Margin | None = None
) -> Comparison:
    """Compares records of a task with a baseline: by right examples where the metric is their share, see `Comparison`.

    Args:
        task: task of the records.
        metric: a metric of the task.
        baseline: records of the baseline, (examples, k).
        draws: draws of the same examples.
        margin: the smallest loss that matters; None tests no margin.
    """
    is_share = task.right(baseline, metric) is not None
    right = cast("Right", partial(task.right, metric=metric)) if is_share else None
    changed = partial(task.changed, metric=metric)
    return Comparison(baseline, partial(task.replicates, metric=metric), draws, right, margin, changed)
