"""What scores heads for strategies of pruning: the metric without them, their importance or attention, or a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import hypot
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.analyses.ablate.pruning_strategies import Score, Scorer, in_order, scores_of
from headlens.analyses.ablate.stand_ins import batch_tokens
from headlens.analyses.ablate.sweep import WHOLE, TaskSweep
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.errors import UnsupportedModelError
from headlens.heads import Head
from headlens.interventions.pruned_model import pruned_model
from headlens.interventions.shapley_values import HeadGame, interaction_samples, random_coalitions, shapley_values
from headlens.memory import SplitWhenOutOfMemory
from headlens.metrics.entropy import Entropy
from headlens.metrics.metric import Metric, Statistics
from headlens.metrics.norms import Norms
from headlens.relevance_propagation import targets
from headlens.relevance_propagation.importance import ImportanceSession
from headlens.relevance_propagation.relevance_session import RelevanceSession
from headlens.runs.checkpoint import IDENTITY, Checkpoint, packed, unpacked
from headlens.tasks.classification import SentenceSimilarity
from headlens.tasks.evaluation import token_count
from headlens.tasks.reader import Reader
from headlens.tasks.task import Floats, HeadKind, PreparedExample, Task, TaskBatch
from headlens.tasks.task_examples import Chosen, Examples
from headlens.tasks.task_options import LOWER_IS_BETTER

PRECISE = 0.05  # standard error beside the largest value, from which on no further orders are drawn
# From the heads that are gone to the importance of those that are left.
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

    def ranks(self, heads: Sequence[Head], chosen: Chosen) -> Floats:
        """Ranks of heads by what some examples say, (heads,), the largest for the most important; NaN if unknown.

        Args:
            heads: all of the model.
            chosen: which examples.
        """
        if not isinstance(self.importance, ImportanceEstimator):
            return np.full(len(heads), np.nan)
        scores = self.importance.by_example()
        means = self.importance.worth(scores.mean(chosen))
        worth = dict(zip(scores.heads, means.tolist(), strict=True))
        values = per_layer(worth) if self.normalize else worth
        return np.array(pd.Series([values[head] for head in heads]).rank(), np.float64)

    @property
    def rounds(self) -> list[Floats]:
        """The means of each part of what examples say, (heads,) each: of each round of random orders."""
        if not isinstance(self.importance, ImportanceEstimator):
            return []
        scores = self.importance.by_example()
        return [scores.mean(parts=slice(number, number + 1)) for number in range(len(scores.sums))]


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


class CachedScorer:
    """A scorer that asks another one only what it was not asked before; kept for --resume.

    Strategies are functions of what their scorer says. So its answers are all there is to keep of one that was
    interrupted: run from the start with them it chooses the same heads, and goes on where it was. Strategies that share
    one memory share what is known, such as what the model does without each single head.

    Args:
        scorer: is asked.
        keep: called with the removed heads after each new answer, at once.

    `known` holds the scores of candidates by set of removed heads.
    """

    def __init__(self, scorer: Scorer, keep: Callable[[frozenset[Head]], None] = lambda _: None) -> None:
        self._scorer, self._keep = scorer, keep
        self.known: dict[frozenset[Head], dict[Head, Score]] = {}

    def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, Score]:
        """What is known of the candidates, or else what the scorer says.

        Raises:
            SelfCheckError: if it says nothing of a candidate.
        """
        known = self.known.get(removed, {})
        if missing := [h for h in candidates if h not in known]:
            known = self.known[removed] = known | scores_of(self._scorer, removed, missing)
            self._keep(removed)
        return {h: known[h] for h in candidates}

    def dump(self, identity: Mapping[str, str] | None = None) -> bytes:
        """Serializes what is known to the bytes of a checkpoint; scores survive to the last bit, -inf as null."""
        answers = [
            {
                "removed": [str(h) for h in in_order(removed)],
                "scores": {str(h): [v if np.isfinite(v) else None for v in score] for h, score in scores.items()},
            }
            for removed, scores in self.known.items()
        ]
        return packed({IDENTITY: dict(identity or {}), "answers": answers}, {})

    def take(self, content: bytes) -> None:
        """Restores what is known from the bytes of a checkpoint, as `dump` returns them."""
        for answer in unpacked(content)[0]["answers"]:
            self.known.setdefault(frozenset(map(Head.parse, answer["removed"])), {}).update(
                (Head.parse(h), Score(*(-np.inf if v is None else float(v) for v in score)))
                for h, score in answer["scores"].items()
            )


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
        with pruned_model(self.model, removed) as model:
            swept = self.sweep(removed).run(model, self.examples, candidates)
        return {head: self.score(records) for head, records in swept.items()}

    def ranks(self, heads: Sequence[Head], chosen: Chosen) -> Floats:
        """Ranks of heads by the metric on some of the examples, (heads,), the largest for the head missed most."""
        scores = [Score.of(self.score(self.known[head][chosen])) for head in heads]
        return np.array(pd.Series([(-score.value, -score.finer) for score in scores]).rank(), np.float64)

    def score(self, records: Floats) -> Score:
        """The score of records of the ranking part; higher is better."""
        value = self.examples.task.value(records, metric=self.metric)
        return Score(-value if self.metric in LOWER_IS_BETTER else value, self.examples.task.finer(records))


class ExampleScores:
    """What every example of the ranking part says of every head; kept for --resume.

    Args:
        heads: those that are scored.
        sums: numbers of the examples, (parts, examples, heads), of which the mean over parts and examples is the score;
            parts are rounds of random orders, else there is one.
        counts: how many numbers each example has in its sum, (examples,), or (examples, heads) where heads differ.
    """

    def __init__(self, heads: Sequence[Head] = (), sums: Floats | None = None, counts: Floats | None = None) -> None:
        self.heads = tuple(heads)
        self.sums: Floats = np.zeros((1, 0, 0)) if sums is None else sums
        self.counts: Floats = np.ones(self.sums.shape[1]) if counts is None else counts

    def mean(self, chosen: Chosen | None = None, parts: slice = slice(None)) -> Floats:
        """The means over some examples, or all, and some parts: (heads,)."""
        where = slice(None) if chosen is None else chosen
        sums: Floats = self.sums[parts][:, where].mean(0).sum(0) / self.counts[where].sum(0)
        return sums

    def dump(self, identity: Mapping[str, str] | None = None) -> bytes:
        """Serializes the scores to the bytes of a checkpoint."""
        record = {IDENTITY: dict(identity or {}), "heads": [str(h) for h in self.heads]}
        return packed(record, {"sums": self.sums, "counts": self.counts})

    def take(self, content: bytes) -> None:
        """Restores the scores from the bytes of a checkpoint, as `dump` returns them."""
        record, arrays = unpacked(content)
        self.heads = tuple(map(Head.parse, record["heads"]))
        self.sums, self.counts = arrays["sums"], arrays["counts"]


@dataclass(frozen=True)
class ImportanceEstimator:
    """Estimates the importance of heads on the ranking part (`headlens.relevance_propagation.importance`).

    Args:
        model: whole.
        examples: the ranking part.
        batch_tokens: tokens of a batch, padding included; None for `WHOLE`.
        warn: called with what the user should know at once.
        progress: called with the number of examples that are done.
        checkpoint: where the scores of the whole model are kept; None keeps them in memory.
    """

    model: PreTrainedModel
    examples: Examples
    batch_tokens: int | None
    warn: Callable[[str], None]
    progress: Callable[[int], None] = lambda _: None
    checkpoint: Checkpoint | None = None
    _known: dict[frozenset[Head], ExampleScores] = field(default_factory=dict)
    # Whether derivatives keep their sign.
    signed: ClassVar[bool] = False

    def __call__(self, removed: frozenset[Head]) -> Mapping[Head, float]:
        """The importance of the heads that are left."""
        scores = self.by_example(removed)
        return dict(zip(scores.heads, self.worth(scores.mean()).tolist(), strict=True))

    def worth(self, means: Floats) -> Floats:
        """What heads are worth, by the means over examples."""
        return means

    def by_example(self, removed: frozenset[Head] = frozenset()) -> ExampleScores:
        """What each example says of the heads that are left; measured once for the whole model."""
        if removed:
            return self.measured(removed)
        if not self._known:
            scores = ExampleScores()
            if self.checkpoint is not None:
                self.checkpoint.restore(scores)
            if not scores.heads:
                scores = self.measured(removed)
                if self.checkpoint is not None:
                    self.checkpoint.save(scores)
            self._known[removed] = scores
        return self._known[removed]

    def measured(self, removed: frozenset[Head]) -> ExampleScores:
        """Runs all examples without some heads."""
        task = self.examples.task.differentiable
        with (
            pruned_model(self.model, removed) as model,
            ImportanceSession(task.network(model), signed=self.signed) as session,
        ):

            def measure(batch: TaskBatch, inputs: Mapping[str, Any]) -> Mapping[Site, Tensor]:
                rows = [len(p.rows) for p in batch.prepared]
                return session.derivatives(inputs, lambda outputs, _: task.losses(outputs, batch), rows)

            return self.gathered(model, measure, session.sites)

    def gathered(
        self,
        model: PreTrainedModel,
        measure: Callable[[TaskBatch, Mapping[str, Any]], Mapping[Site, Tensor]],
        sites: Sequence[Site],
    ) -> ExampleScores:
        """What `measure` gives for every batch and its inputs, (examples or rows, heads) by site, by example."""
        heads = [head for site in sites for head in site.heads]
        scores = ExampleScores(heads, np.zeros((1, len(self.examples), len(heads))), np.zeros(len(self.examples)))

        def run(batch: TaskBatch, inputs: Mapping[str, Any]) -> None:
            by_site = measure(batch, inputs)
            numbers = torch.cat([by_site[site] for site in sites], dim=1).numpy()
            places, rows = np.array([p.index for p in batch.prepared]), [len(p.rows) for p in batch.prepared]
            each = rows if len(numbers) == sum(rows) else len(numbers) // len(rows)
            np.add.at(scores.sums[0], places.repeat(each), numbers)
            np.add.at(scores.counts, places.repeat(each), 1)

        self.each_batch(model, run)
        return scores

    def each_batch(
        self,
        model: PreTrainedModel,
        run: Callable[[TaskBatch, Mapping[str, Any]], None],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Calls `run` with every batch and its inputs, in halves where memory does not suffice."""
        task, advance = self.examples.task.differentiable, progress or self.progress

        def counted_run(prepared: Sequence[PreparedExample]) -> int:
            batch = task.collate(prepared, self.examples.reader, model.device)
            run(batch, task.inputs(model, batch))
            return len(prepared)

        in_parts = SplitWhenOutOfMemory(model.device, counted_run, int.__add__, token_count, self.warn)
        for prepared in self.examples.batches(self.batch_tokens or WHOLE):
            advance(in_parts(prepared))


class AttributionEstimator(ImportanceEstimator):
    """Estimates by how much the loss grows without each head, to first order (attribution patching; Syed et al. 2023).

    One pass forwards and one back do for all heads what ablation does one by one; what a head does through softmaxes
    and norms that saturate is missed (Kramár et al. 2024).
    """

    signed = True

    def worth(self, means: Floats) -> Floats:
        """Minus the mean derivatives by gates."""
        return -means


@dataclass(frozen=True)
class ShapleyEstimator(ImportanceEstimator):
    """Estimates the Shapley values of heads for the loss on the ranking part, see `shapley_values`.

    Every example draws an order of its own in each round; rounds end when the largest standard error (over examples) is
    small beside the largest value, or after a few. Progress is that of the first round.

    Args:
        seed: of the orders.
        rounds: at most.
    """

    seed: int = 0
    rounds: int = 1

    def errors(self, removed: frozenset[Head]) -> Mapping[Head, float]:
        """The standard errors of the values, over examples."""
        scores = self.by_example(removed)
        return dict(zip(scores.heads, _errors(scores.sums.mean(0)).tolist(), strict=True))

    def measured(self, removed: frozenset[Head]) -> ExampleScores:
        """Draws orders until the values are precise."""
        task = self.examples.task.differentiable
        with pruned_model(self.model, removed) as model:
            network = task.network(model)
            players = [h for s in find_sites(network) for h in s.heads if h not in removed]
            parts = list[Floats]()

            def run(batch: TaskBatch, inputs: Mapping[str, Any]) -> None:
                places = [p.index for p in batch.prepared]
                seeds = ([self.seed, len(parts), place] for place in places)
                orders = [np.random.default_rng(seed).permutation(len(players)) for seed in seeds]
                losses, rows = partial(task.losses, batch=batch), [len(p.rows) for p in batch.prepared]
                parts[-1][places] = shapley_values(HeadGame(network, inputs, losses, rows, players), orders)

            for number in range(self.rounds):
                parts.append(np.zeros((len(self.examples), len(players))))
                self.each_batch(model, run, None if number == 0 else lambda _: None)
                samples = np.mean(parts, axis=0)
                if _errors(samples).max() <= PRECISE * np.abs(samples.mean(0)).max():
                    break
        return ExampleScores(players, np.stack(parts))


def _errors(samples: Floats) -> Floats:
    """Standard errors of means over examples, (heads,); NaN for a single one."""
    n = len(samples)
    errors: Floats = samples.std(0, ddof=1) / np.sqrt(n) if n > 1 else np.full(samples.shape[1], np.nan)
    return errors


@dataclass(frozen=True)
class InteractionEstimator(ImportanceEstimator):
    """Estimates the Shapley interaction index of pairs of heads for the loss, see `interaction_samples`.

    It is asked like a scorer, for others beside one head, so that its answers are kept in the same way.

    Args:
        seed: of the coalitions, of which every example draws its own.
        rounds: coalitions of an example, and as many reversed ones.
    """

    seed: int = 0
    rounds: int = 1

    def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, Score]:
        """The interactions of a head with each candidate, as `value`, and their standard errors, as `finer`."""
        (first,) = removed
        return {other: Score(*mean_with_error(self.samples(first, other), self.examples.keys)) for other in candidates}

    def samples(self, first: Head, second: Head) -> Floats:
        """What each example says of a pair, (examples,)."""
        task, found = self.examples.task.differentiable, np.zeros(len(self.examples))
        network = task.network(self.model)
        players = [h for s in find_sites(network) for h in s.heads]
        pair = players.index(first), players.index(second)

        def run(batch: TaskBatch, inputs: Mapping[str, Any]) -> None:
            places = [p.index for p in batch.prepared]
            losses, rows = partial(task.losses, batch=batch), [len(p.rows) for p in batch.prepared]
            game = HeadGame(network, inputs, losses, rows, players)
            for number in range(self.rounds):
                generators = (np.random.default_rng([self.seed, number, *pair, place]) for place in places)
                drawn = np.stack([random_coalitions(rng, len(players), pair) for rng in generators])
                for there in (drawn[:, 0], drawn[:, 1]):
                    own = interaction_samples(game, there, pair)
                    found[places] += own / (2 * self.rounds)

        self.each_batch(self.model, run)
        return found


def mean_with_error(samples: Floats, keys: Sequence[str]) -> tuple[float, float]:
    """The mean of a number over examples, and its standard error; NaN for a single independent example.

    Args:
        samples: the number of each example.
        keys: those of examples that are not independent, as of questions about one paragraph, are equal.
    """
    mean = float(samples.mean())
    sums = pd.Series(samples - mean).groupby(list(keys)).sum().to_numpy()
    clusters = len(sums)
    if clusters < 2:
        return mean, float("nan")
    return mean, float(np.sqrt((sums**2).sum() * clusters / (clusters - 1)) / len(samples))


_TARGETS: dict[HeadKind, type[targets.Target]] = {
    "sequence-classification": targets.PredictedClass,
    "multiple-choice": targets.PredictedChoice,
    "question-answering": targets.AnswerSpanTarget,
    "seq2seq-lm": targets.EveryPosition,
    "causal-lm": targets.EveryPosition,
    "embedding": targets.OwnEmbedding,
}


def task_target(task: Task, reader: Reader) -> targets.Target:
    """Returns where the relevance of heads starts in a task: at what the model answers, whether it is right or not.

    Of decoders these are positions, of which each batch starts at those that the task reads.

    Raises:
        OptionError: if the tokenizer has no mask token, for a task of masked words.
    """
    if isinstance(task, SentenceSimilarity):
        return targets.SimilarityTarget()
    if task.head == "language-model" and reader.causal:
        return targets.EveryPosition()
    if task.head in _TARGETS:
        return _TARGETS[task.head]()
    return targets.MaskedTokenLogits(reader.mask_id)


class RelevanceEstimator(ImportanceEstimator):
    """Measures the relevance of heads on the ranking part, by the rule `epsilon`.

    It is the size of the mean of `raw` over rows of input, see `RelevanceSums`, which compares
    heads of all layers, as shares of a layer do not. A head that works against the answer counts as one that works for
    it: without either of them the model says something else.
    """

    def worth(self, means: Floats) -> Floats:
        """The magnitudes of the means of every head."""
        return np.abs(means)

    def measured(self, removed: frozenset[Head]) -> ExampleScores:
        """Runs all examples without some heads."""
        task = self.examples.task.differentiable
        with (
            pruned_model(self.model, removed) as model,
            RelevanceSession(task.network(model), self.target) as session,
        ):

            def measure(batch: TaskBatch, inputs: Mapping[str, Any]) -> Mapping[Site, Tensor]:
                if (read := task.read_positions(batch)) is not None:
                    session.target = targets.GivenPositions(read)
                return session.relevance(inputs).raw

            return self.gathered(model, measure, session.sites)

    @property
    def target(self) -> targets.Target:
        """The part of the model's answer that relevance starts from, see `task_target`."""
        return task_target(self.examples.task.differentiable, self.examples.reader)


class AttentionEstimator(ImportanceEstimator):
    """Measures the attention of heads on the ranking part by a metric of `classify`: no labels, no gradients.

    Its mean is over all queries of all examples, special tokens included, as in heads.csv. The model reads one example
    at a time, so that each has sums of its own.

    Attributes:
        metric: that is measured.
        mean: the name of its sums, see `headlens.metrics.ratio_estimator.ratio_mean`.
    """

    metric: ClassVar[Metric]
    mean: ClassVar[str]

    def measured(self, removed: frozenset[Head]) -> ExampleScores:
        """Runs all examples without some heads.

        Raises:
            UnsupportedModelError: if the metric cannot be measured at some site.
        """
        task = self.examples.task.differentiable
        with pruned_model(self.model, removed) as model:
            network = task.network(model)
            sites = find_sites(network)
            heads = [head for site in sites for head in site.heads]
            sums, counts = (np.zeros((len(self.examples), len(heads))) for _ in range(2))
            statistics = Statistics([self.metric], sites)

            def run(batch: TaskBatch, inputs: Mapping[str, Any]) -> None:
                statistics.totals.clear()
                with session.batch(batch_tokens(network, inputs)):
                    network(**inputs)
                found = statistics.totals.of(self.metric.name)
                if unknown := [str(site) for site in sites if f"{self.mean}.x" not in found.get(str(site), {})]:
                    raise UnsupportedModelError(
                        f"{self.metric.name} cannot be measured at {unknown[0]}: headlens does not know the output "
                        "projection of its heads.",
                        "Name other --strategies.",
                    )
                for numbers, part in ((sums, "x"), (counts, "n")):
                    numbers[batch.prepared[0].index] = np.concatenate(
                        [found[str(site)][f"{self.mean}.{part}"] for site in sites]
                    )

            with AttentionSession(network, observers=[statistics]) as session, torch.inference_mode():
                replace(self, batch_tokens=1).each_batch(model, run)
        return ExampleScores(heads, sums[None], counts)


class NormEstimator(AttentionEstimator):
    """Measures the mean norm of what heads add: sums of weighted values, projected (Kobayashi et al. 2020)."""

    metric, mean = Norms(), "norm"


class FocusEstimator(AttentionEstimator):
    """Measures how far attention is from even: 1 minus its entropy as a share of the largest possible one."""

    metric, mean = Entropy(), "entropy_norm"

    def worth(self, means: Floats) -> Floats:
        """Computes 1 minus the mean normalised entropy of every head."""
        return 1 - means
