"""Many heads pruned from one model: chosen on one part of the examples, evaluated on the other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from headlens.analyses.ablate.head_records import HeadRecords
from headlens.analyses.ablate.options import AblationOptions, PruneOptions
from headlens.analyses.ablate.pruning_strategies import (
    STRATEGY_ENTRIES,
    Choice,
    Scorer,
    StrategySettings,
    check_pruning,
    in_order,
    strategy_cost,
)
from headlens.analyses.ablate.relevance_scorer import RecordedRelevance, RelevanceEstimator
from headlens.analyses.ablate.scorers import (
    CachedScore,
    CachedScorer,
    ImportanceEstimator,
    ImportanceScorer,
    RankingScorer,
)
from headlens.analyses.ablate.single_heads import paired_comparison
from headlens.analyses.ablate.sweep import TaskSweep
from headlens.analyses.ablate.task_examples import Chosen, Examples, ranking_part
from headlens.attention.session import AttentionSession
from headlens.errors import UnsupportedModelError, counted
from headlens.heads import Head
from headlens.interventions.compacting import without_heads
from headlens.models.loading import LoadedModel
from headlens.runs.checkpoint import IDENTITY, Checkpoint, packed, unpacked
from headlens.runs.progress import Advance
from headlens.runs.run import Run
from headlens.statistics.bootstrap import Draws
from headlens.tasks.evaluation import estimate
from headlens.tasks.task import Floats

NONE = "none"  # the row of the whole model
PRUNING_COLUMNS = [
    *("model", "task", "metric", "strategy", "seed", "n_pruned", "n_heads", "value", "ci_low", "ci_high"),
    *("parameters", "speedup", "removed", "delta", "delta_low", "delta_high", "p_value", "n", "ranking_value"),
]


class ScoreCheckpoint:
    """What scorers said, kept for --resume."""

    def __init__(self) -> None:
        self.found: list[CachedScore] = []

    def dump(self, identity: Mapping[str, str] | None = None) -> bytes:
        """Serializes the scores to the bytes of a checkpoint file, together with the identity of the run."""
        return packed({IDENTITY: dict(identity or {}), "answers": [a.as_json() for a in self.found]}, {})

    def take(self, content: bytes) -> None:
        """Restores the scores from the bytes of a checkpoint file, as `dump` returns them."""
        self.found = [CachedScore.from_json(a) for a in unpacked(content)[0]["answers"]]


@dataclass(frozen=True)
class ChosenHeads:
    """A choice of heads, and who made it.

    Args:
        strategy: its name.
        seed: of a random order, else None.
        choice: the heads.
    """

    strategy: str
    seed: int | None
    choice: Choice


@dataclass(frozen=True, eq=False)
class PruningOutcome:
    """What became of pruned models.

    Args:
        table: `pruning.csv` without the column `model`.
        records: (rows, examples, columns of the task), of both parts.
    """

    table: pd.DataFrame
    records: Floats


@dataclass(frozen=True)
class PruningExperiment:
    """One model on a task, swept already.

    Args:
        run: under way.
        name: of the model, unique in the run and fit for a file.
        loaded: the model.
        examples: all of them.
        metric: of the task.
        records: of all examples, from the sweep that `ranked` goes by.
        options: of the ablation.
        prune: how it is pruned.
    """

    run: Run
    name: str
    loaded: LoadedModel
    examples: Examples
    metric: str
    records: HeadRecords
    options: AblationOptions
    prune: PruneOptions

    def check(self) -> None:
        """Raise OptionError for numbers of heads that the model does not have, or too few examples to split."""
        check_pruning(self.prune.prune, len(self.records.heads))
        ranking_part(self.examples.keys, self.prune.rank_split, self.options.seed)

    def check_relevance(self) -> None:
        """Read what was measured of the heads, or measure it on the shortest example, if a strategy goes by it.

        Raises:
            InputError: if the run that --relevance names is not one of this model.
            UnsupportedModelError: if a part of the model has no rule.
            OptionError: if relevance cannot start from what the model answers.
        """
        if self.by_relevance and self.prune.relevance is not None:
            self._recorded(self.prune.relevance)
        elif self.by_relevance:
            shortest = min(self.examples.prepared, key=lambda p: p.length)
            chosen = np.array([p is shortest for p in self.examples.prepared])
            try:
                self._estimator(self.examples.part(chosen))(frozenset())
            except UnsupportedModelError as error:
                raise UnsupportedModelError(
                    f"--strategies relevance: {error.message}",
                    f"Measure it by a rule that needs no relevance rules for single operations (headlens relevance "
                    f"{self.loaded.name} --rule gradxact) and "
                    "name that run with --relevance, or leave relevance out of --strategies.",
                ) from error

    @property
    def by_relevance(self) -> bool:
        """Whether a strategy chooses heads by their relevance."""
        return any(STRATEGY_ENTRIES[name].scored_by == "relevance" for name in self.prune.strategies)

    @property
    def notes(self) -> list[str]:
        """What the reader should know about how heads were chosen."""
        if not self.by_relevance:
            return []
        if self.prune.relevance is not None:
            measured = self._recorded(self.prune.relevance).measured
            return [
                f"`relevance` used {self.prune.relevance} ({measured}): heads were chosen on the data of that "
                "run, which should not contain any example that is evaluated here."
            ]
        part = self.examples.part(self.ranked_on)
        target = self._estimator(part).target.label
        return [
            f"`relevance` used rule epsilon, target {target}, on {counted(len(part), 'example')} of the selection "
            "split."
        ]

    @cached_property
    def ranked_on(self) -> Chosen:
        """The examples that heads are chosen on."""
        return ranking_part(self.examples.keys, self.prune.rank_split, self.options.seed)

    def outcome(self) -> PruningOutcome:
        """The whole model, then a row for each strategy, seed and number."""
        choices = [ChosenHeads(NONE, None, Choice(())), *self._choices()]
        sets = list(dict.fromkeys(frozenset(named.choice.removed) for named in choices))
        text = f"evaluating {counted(len(sets) - 1, 'pruned model')}"
        with self.run.reporter.progress(text, len(sets) * self._own(self.examples), None) as advance:
            evaluated = {removed: self._evaluated(removed, advance) for removed in sets}
        results = _Results(self, evaluated[frozenset()])
        rows = [results.row(named, evaluated[frozenset(named.choice.removed)]) for named in choices]
        # whole numbers also where most strategies have no seed, or all
        table = pd.DataFrame(rows).astype({"seed": "Int64"})[PRUNING_COLUMNS[1:]]
        return PruningOutcome(
            table, np.stack([evaluated[frozenset(named.choice.removed)].records for named in choices])
        )

    def _choices(self) -> list[ChosenHeads]:
        """What every strategy removes."""
        heads, part = self.records.heads, self.examples.part(self.ranked_on)
        counts = check_pruning(self.prune.prune, len(heads))
        calls = sum(strategy_cost(name, self.prune.beam, len(heads), counts[-1]).calls for name, _ in self._named())
        text = f"choosing heads on {counted(len(part), 'example')}"
        with self.run.reporter.progress(text, calls * self._own(part), None) as advance:
            scorers = self._scorers(part, advance)
            choices = []
            for name, seed in self._named():
                entry = STRATEGY_ENTRIES[name]
                scorer = scorers[entry.scored_by or "metric"]
                strategy = entry.make(StrategySettings(scorer, self.prune.beam, seed or 0))
                made = enumerate(strategy.choices(heads, counts[-1]), 1)
                choices += [ChosenHeads(name, seed, choice) for size, choice in made if size in counts]
            return choices

    def _named(self) -> Iterator[tuple[str, int | None]]:
        for name in self.prune.strategies:
            if STRATEGY_ENTRIES[name].seeded:
                yield from ((name, self.options.seed + number) for number in range(self.prune.orders))
            else:
                yield name, None

    def _scorers(self, part: Examples, advance: Advance) -> dict[str, Scorer]:
        """What scores heads, by the name that entries of strategies give it."""
        known = {head: record[self.ranked_on] for head, record in self.records.items()}

        def sweep(removed: frozenset[Head]) -> TaskSweep:
            return self._sweep(self._keeper("without", removed), advance)

        ranking = RankingScorer(self.loaded.model, part, self.metric, sweep, known)
        gradient = ImportanceEstimator(self.loaded.model, part, self.options.batch_tokens, self.run.warn_once, advance)
        scorers: dict[str, Scorer] = {
            "metric": self._remembered("ranking", ranking),
            "importance": self._remembered("importance", ImportanceScorer(gradient)),
        }
        if self.by_relevance:
            # Sizes of `raw` compare layers as they are.
            if self.prune.relevance is not None:
                scorers["relevance"] = ImportanceScorer(self._recorded(self.prune.relevance), normalize=False)
            else:
                measured = ImportanceScorer(self._estimator(part, advance), normalize=False)
                scorers["relevance"] = self._remembered("relevance", measured)
        return scorers

    def _recorded(self, folder: Path) -> RecordedRelevance:
        return RecordedRelevance.of(folder, self.loaded, self.records.heads)

    def _estimator(self, part: Examples, advance: Advance = lambda _: None) -> RelevanceEstimator:
        return RelevanceEstimator(self.loaded.model, part, self.options.batch_tokens, self.run.warn_once, advance)

    def _remembered(self, name: str, scorer: Scorer) -> CachedScorer:
        """A scorer whose answers are kept."""
        answers, keeper = ScoreCheckpoint(), self.run.keeper(f"{name}-{self.name}", self.loaded, self._identity)
        keeper.restore(answers)
        # One process may have kept an answer more than another, but all must ask the same.
        answers.found = self.run.processes.share(answers.found)

        def keep(answer: CachedScore) -> None:
            answers.found.append(answer)
            keeper.save(answers)
            self._keeper("without", frozenset(answer.removed)).path.unlink(missing_ok=True)

        return CachedScorer(scorer, list(answers.found), keep)

    def _evaluated(self, removed: frozenset[Head], advance: Advance) -> PrunedModel:
        sweep = self._sweep(self._keeper("pruned", removed), advance)
        return evaluated(without_heads(self.loaded.model, removed), self.examples, sweep)

    def _sweep(self, keeper: Checkpoint, advance: Advance) -> TaskSweep:
        return TaskSweep("zero", self.options.batch_tokens, advance, self.run.warn_once, keeper, self.run.processes)

    def _keeper(self, what: str, removed: frozenset[Head]) -> Checkpoint:
        digest = hashlib.sha256(" ".join(map(str, in_order(removed))).encode()).hexdigest()[:16]
        return self.run.keeper(f"{what}-{self.name}-{digest}", self.loaded, self._identity)

    @cached_property
    def _identity(self) -> dict[str, str]:
        return {"the data": self.examples.summary.sha256}

    def _own(self, examples: Examples) -> int:
        """How many examples this process has."""
        return len(range(self.run.processes.rank, len(examples), self.run.processes.count))


class _Results:
    """Makes the rows of the table.

    Args:
        bench: whose results they are.
        whole: those of the whole model.
    """

    def __init__(self, bench: PruningExperiment, unpruned: PrunedModel) -> None:
        self.bench, self.whole = bench, unpruned
        task, metric = bench.examples.task, bench.metric
        keys = [k for k, ranked in zip(bench.examples.keys, bench.ranked_on, strict=True) if not ranked]
        self.draws = Draws.of(keys, bench.options.replicates, bench.options.seed)
        self.compare = paired_comparison(task, metric, self._evaluation(unpruned), self.draws)

    def row(self, named: ChosenHeads, pruned: PrunedModel) -> dict[str, Any]:
        """Computes a row of `pruning.csv`: metric, paired difference, intervals and size of one pruned model."""
        task, metric = self.bench.examples.task, self.bench.metric
        compared = self.compare.of(self._evaluation(pruned))
        found = estimate(task, metric, self._evaluation(pruned), self.draws)
        removed = named.choice.removed
        values = {
            "strategy": named.strategy,
            "seed": named.seed,
            "n_pruned": len(removed),
            "n_heads": len(self.bench.records.heads) - len(removed),
            **asdict(found),
            "parameters": pruned.parameters,
            "speedup": self.whole.operations / pruned.operations,
            "removed": " ".join(map(str, in_order(removed))),
        }
        paired = {
            "delta": compared.delta,
            "delta_low": compared.low,
            "delta_high": compared.high,
            "p_value": compared.p_value,
            "n": self.draws.examples,
            "ranking_value": task.value(pruned.records[self.bench.ranked_on], metric=metric),
        }
        return {"task": task.name, "metric": metric, **values, **paired}

    def _evaluation(self, pruned: PrunedModel) -> Floats:
        records: Floats = pruned.records[~self.bench.ranked_on]
        return records


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
