"""What scores heads for strategies of pruning: the metric without them, their importance, or what was scored before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from headlens.analyses.ablate.importance import ImportanceSession, add, importances
from headlens.analyses.ablate.pruning_strategies import Score, Scorer, in_order, scores_of
from headlens.analyses.ablate.sweep import WHOLE, TaskSweep
from headlens.analyses.ablate.task_examples import Examples
from headlens.attention.sites import Site
from headlens.heads import Head
from headlens.interventions.compacting import without_heads
from headlens.memory import SplitWhenOutOfMemory
from headlens.metrics.accumulator import Accumulator
from headlens.tasks.evaluation import token_count
from headlens.tasks.task import Floats, PreparedExample, TaskBatch
from headlens.tasks.task_options import LOWER_IS_BETTER

# From the heads that are gone to the importance of those that are left, never negative.
Importance = Callable[[frozenset[Head]], Mapping[Head, float]]


@dataclass(frozen=True)
class ImportanceScorer:
    """The scorer that lets heads of little importance go first: a head's score is minus its importance.

    Args:
        importance: estimates it; called once for every set of removed heads. What it says of these is left out.
        normalize: divide by the l2 norm of the layer (`per_layer`), as Michel et al. 2019 do.
    """

    importance: Importance
    normalize: bool = True

    def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, float]:
        """Minus the importance of each candidate."""
        scores = {h: v for h, v in self.importance(removed).items() if h not in removed}
        values = per_layer(scores) if self.normalize else scores
        return {h: -values[h] for h in candidates if h in values}


def per_layer(importance: Mapping[Head, float]) -> dict[Head, float]:
    """Importances divided by the l2 norm of those of their layer (Molchanov et al. 2017; Michel et al. 2019).

    A layer of zeros stays as it is. A head that is alone in its layer gets 1, the most there is. So a model that is
    estimated anew after every single removal keeps a head in every layer, as far as these have any importance, until
    all layers are down to one.
    """
    layers: dict[tuple[str, int], list[float]] = {}
    for head, value in importance.items():
        layers.setdefault(head[:2], []).append(value)
    norms = {layer: hypot(*values) for layer, values in layers.items()}
    return {h: v / norms[h[:2]] if norms[h[:2]] else v for h, v in importance.items()}


@dataclass(frozen=True)
class CachedScore:
    """What a scorer said once.

    Args:
        removed: the heads that were gone, in the order of `place`.
        scores: of the candidates it was asked for.
    """

    removed: tuple[Head, ...]
    scores: Mapping[Head, Score]

    def as_json(self) -> dict[str, Any]:
        """What JSON can hold; scores survive to the last bit, -inf as null."""
        scores = {str(h): [v if np.isfinite(v) else None for v in score] for h, score in self.scores.items()}
        return {"removed": [str(h) for h in self.removed], "scores": scores}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> CachedScore:
        """Creates a cached score from the JSON values of `as_json`; null is read as -inf."""
        scores = {
            Head.parse(h): Score(*(-np.inf if v is None else float(v) for v in score))
            for h, score in record["scores"].items()
        }
        return cls(tuple(Head.parse(h) for h in record["removed"]), scores)


class CachedScorer:
    """A scorer that asks another one only what it was not asked before.

    Strategies are functions of what their scorer says. So its answers are all there is to keep of one that was
    interrupted: run from the start with them it chooses the same heads, and goes on where it was. Strategies that share
    one memory share what is known, such as what the model does without each single head.

    Args:
        scorer: is asked.
        answers: that it gave before, in any order.
        keep: called with each new answer, at once.
    """

    def __init__(
        self, scorer: Scorer, answers: Iterable[CachedScore] = (), keep: Callable[[CachedScore], None] | None = None
    ) -> None:
        self._scorer = scorer
        self._known: dict[frozenset[Head], dict[Head, Score]] = {}
        self._keep = keep
        for answer in answers:
            self._add(answer)

    @property
    def answers(self) -> list[CachedScore]:
        """Everything that is known, by set of removed heads."""
        return [CachedScore(in_order(removed), dict(scores)) for removed, scores in self._known.items()]

    def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, Score]:
        """What is known of the candidates, or else what the scorer says.

        Raises:
            SelfCheckError: if it says nothing of a candidate.
        """
        missing = [h for h in candidates if h not in self._known.get(removed, {})]
        if missing:
            scores = scores_of(self._scorer, removed, missing)
            answer = CachedScore(in_order(removed), scores)
            self._add(answer)
            if self._keep is not None:
                self._keep(answer)
        return {h: self._known[removed][h] for h in candidates}

    def _add(self, answer: CachedScore) -> None:
        self._known.setdefault(frozenset(answer.removed), {}).update(answer.scores)


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
        model, task = without_heads(self.model, removed), self.examples.task.differentiable
        with ImportanceSession(task.network(model)) as session:

            def measure(batch: TaskBatch, inputs: Mapping[str, Any]) -> Mapping[Site, Tensor]:
                rows = [len(p.rows) for p in batch.prepared]
                return session.derivatives(inputs, lambda outputs, _: task.losses(outputs, batch), rows)

            return importances(self.totals(model, measure), session.sites)

    def totals(
        self, model: PreTrainedModel, measure: Callable[[TaskBatch, Mapping[str, Any]], Mapping[Site, Tensor]]
    ) -> Accumulator:
        """Adds up over the examples what `measure` gives for a batch and its inputs, (examples, heads) by site."""
        task, totals = self.examples.task.differentiable, Accumulator()

        def run(prepared: Sequence[PreparedExample]) -> int:
            batch = task.collate(prepared, self.examples.reader, model.device)
            add(totals, measure(batch, {**batch.inputs, **task.arguments(model)}))
            return len(prepared)

        in_parts = SplitWhenOutOfMemory(model.device, run, int.__add__, token_count, self.warn)
        for prepared in self.examples.batches(self.batch_tokens or WHOLE):
            self.progress(in_parts(prepared))
        return totals
