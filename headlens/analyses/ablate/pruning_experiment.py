"""What a task loses with many heads, chosen in several ways: the recipe of `headlens ablate --prune`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from headlens.analyses.ablate.head_records import HeadRecords
from headlens.analyses.ablate.importance import ImportanceSession, add, importances
from headlens.analyses.ablate.strategies import Choice, Score, Strategy
from headlens.analyses.ablate.sweep import WHOLE, TaskSweep
from headlens.analyses.ablate.task_examples import Examples
from headlens.attention.session import AttentionSession
from headlens.heads import Head
from headlens.interventions.compacting import without_heads
from headlens.memory import SplitWhenOutOfMemory
from headlens.metrics.accumulator import Accumulator
from headlens.statistics.bootstrap import Draws, percentile_interval
from headlens.tasks.evaluation import token_count
from headlens.tasks.task import Floats, PreparedExample, Task
from headlens.tasks.task_options import LOWER_IS_BETTER

NONE = "none"  # the row of the whole model
PRUNING_COLUMNS = [
    *("model", "task", "metric", "strategy", "seed", "n_pruned", "n_heads", "value", "ci_low", "ci_high"),
    *("parameters", "speedup", "removed", "delta", "delta_low", "delta_high", "p_value", "n", "ranking_value"),
]


@dataclass(frozen=True)
class RankingScorer:
    """What heads are chosen by: what becomes of a metric on the ranking part. A scorer for strategies.

    Where the metric stays the same, what the task has that is finer decides (`Task.finer`), such as the loss.

    Args:
        model: whole.
        examples: the ranking part.
        metric: of the task.
        sweep: how the examples go through a model, given the heads that are gone from it.
        known: records without each single head, which need not be computed again.
    """

    model: PreTrainedModel
    examples: Examples
    metric: str
    sweep: Callable[[frozenset[Head]], TaskSweep]
    known: Mapping[Head, Floats]

    def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, Score]:
        """The metric without each candidate, its sign turned where lower is better."""
        if not removed and all(head in self.known for head in candidates):
            return {head: self.score(self.known[head]) for head in candidates}
        swept = self.sweep(removed).run(without_heads(self.model, removed), self.examples, candidates)
        return {head: self.score(records) for head, records in swept.items()}

    def score(self, records: Floats) -> Score:
        """Of records of the ranking part: higher is better."""
        value = self.examples.task.value(records, metric=self.metric)
        return Score(-value if self.metric in LOWER_IS_BETTER else value, self.examples.task.finer(records))


@dataclass(frozen=True)
class ImportanceEstimator:
    """Estimates the importance of heads on the ranking part (`headlens.analyses.ablate.importance`).

    Args:
        model: whole.
        examples: the ranking part.
        batch_tokens: tokens of a batch, padding included; None for `WHOLE`.
        warn: called with what the user should know at once.
        progress: called with the number of examples that are done.
    """

    model: PreTrainedModel
    examples: Examples
    batch_tokens: int | None
    warn: Callable[[str], None]
    progress: Callable[[int], None] = lambda _: None

    def __call__(self, removed: frozenset[Head]) -> Mapping[Head, float]:
        """The importance of the heads that are left."""
        model, totals = without_heads(self.model, removed), Accumulator()
        task, reader = self.examples.task.differentiable, self.examples.reader
        with ImportanceSession(task.network(model)) as session:

            def run(prepared: Sequence[PreparedExample]) -> int:
                batch = task.collate(prepared, reader, model.device)
                rows = [len(p.rows) for p in prepared]
                inputs = {**batch.inputs, **task.arguments(model)}
                add(totals, session.derivatives(inputs, lambda outputs, _: task.losses(outputs, batch), rows))
                return len(prepared)

            in_parts = SplitWhenOutOfMemory(model.device, run, int.__add__, token_count, self.warn)
            for batch in self.examples.batches(self.batch_tokens or WHOLE):
                self.progress(in_parts(batch))
            return importances(totals, session.sites)


def wanted_choices(strategy: Strategy, heads: Sequence[Head], counts: Sequence[int]) -> Iterator[Choice]:
    """What a strategy removes, for every wanted number of heads, ascending."""
    for size, choice in enumerate(strategy.choices(heads, max(counts)), 1):
        if size in counts:
            yield choice


@dataclass(frozen=True)
class PrunedModel:
    """A model without some heads, on the evaluation part.

    Args:
        records: of its examples.
        parameters: that are left.
        operations: of a forward pass over an example of median length.
    """

    records: Floats
    parameters: int
    operations: int


def evaluated(model: PreTrainedModel, examples: Examples, sweep: TaskSweep) -> PrunedModel:
    """Run a model over the evaluation part."""
    records: HeadRecords = sweep.run(model, examples, heads=())
    return PrunedModel(records.intact, sum(p.numel() for p in model.parameters()), operations(model, examples))


def operations(model: PreTrainedModel, examples: Examples) -> int:
    """Floating-point operations of matrix products in a forward pass over the example of median length."""
    task = examples.task.differentiable
    middle = sorted(examples.prepared, key=lambda p: p.length)[len(examples) // 2]
    batch = task.collate([middle], examples.reader, model.device)
    network = task.network(model)
    # The counter does not know every kernel of sdpa.
    with AttentionSession(network, kernel="eager"), FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(**batch.inputs, **task.arguments(model))
    return int(counter.get_total_flops())


def interval(task: Task, metric: str, records: Floats, draws: Draws) -> tuple[float, float]:
    """Computes the 95 % percentile bootstrap interval of a metric from records (examples, columns)."""
    replicates = np.concatenate([task.replicates(records, weights, metric) for weights in draws.blocks()])
    low, high = percentile_interval(replicates)
    return float(low), float(high)
