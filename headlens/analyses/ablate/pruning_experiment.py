"""Many heads pruned from one model: chosen on one part of the examples, evaluated on the other."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from headlens.analyses.ablate import pruning_strategies as strategies
from headlens.analyses.ablate import rankings
from headlens.analyses.ablate.options import AblationOptions, PruneOptions
from headlens.analyses.ablate.ranking_variance import variance_notes, variance_table
from headlens.analyses.ablate.recorded_scores import RecordedGates, RecordedRelevance
from headlens.analyses.ablate.scorers import (
    AttentionEstimator,
    AttributionEstimator,
    CachedScorer,
    FocusEstimator,
    ImportanceEstimator,
    ImportanceScorer,
    InteractionEstimator,
    NormEstimator,
    RankingScorer,
    RelevanceEstimator,
    ShapleyEstimator,
)
from headlens.analyses.ablate.sweep import HeadRecords, TaskSweep, task_heads
from headlens.errors import UnsupportedModelError, counted
from headlens.findings.verdicts import VERDICT_COLUMNS, margin_of, with_verdicts, without_verdicts
from headlens.heads import Head
from headlens.interventions.pruned_model import pruned_model
from headlens.models.loading import LoadedModel
from headlens.planning.speed import operations_of
from headlens.runs.checkpoint import Checkpoint
from headlens.runs.progress import Advance
from headlens.runs.run import Run
from headlens.statistics.bootstrap import Draws
from headlens.statistics.paired_tests import Comparison, replicates_of
from headlens.tables.ablation_tables import PRUNING
from headlens.tasks.evaluation import estimate, label_counts, paired_comparison
from headlens.tasks.skill import skill_of
from headlens.tasks.task import Floats
from headlens.tasks.task_examples import Chosen, Examples, ranking_part
from headlens.tasks.task_options import LOWER_IS_BETTER

MeasuredScorer = RankingScorer | ImportanceScorer
# Strategies that score all heads once, and so rank them.
RANKED_ONCE = ("ranked", "importance", "relevance", "attribution", "shapley", "norm", "entropy", "gates")
# What measures attention alone.
_OF_ATTENTION: dict[str, type[AttentionEstimator]] = {"norm": NormEstimator, "entropy": FocusEstimator}
NONE = "none"  # the row of the whole model


class ChosenHeads(NamedTuple):
    """A set of heads to prune.

    Args:
        strategy: that chose it.
        seed: of a random order or set, else None.
        removed: the heads, in the order they went.
        control_of: the strategy beside whose set it was drawn; None for no control.
        possible_sets: how many there are that it was drawn from, see `pruning_strategies.control_sets`.
    """

    strategy: str
    seed: int | None
    removed: tuple[Head, ...]
    control_of: str | None = None
    possible_sets: int | None = None


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
        strategies.check_pruning(self.prune.prune, len(self.heads))
        ranking_part(self.examples.keys, self.prune.rank_split, self.options.seed)

    def check_scores(self) -> None:
        """Read what was measured of the heads, or measure it on the shortest example, if a strategy goes by it.

        Raises:
            InputError: if the run that --strategy-args relevance or gates names is not one of this model.
            UnsupportedModelError: if a part of the model has no rule.
            OptionError: if relevance cannot start from what the model answers.
        """
        assert self._gates or "gates" not in self.scored_by
        shortest = min(self.examples.prepared, key=lambda p: p.length)
        part = self.examples.part(np.array([p is shortest for p in self.examples.prepared]))
        for name in _OF_ATTENTION.keys() & self.scored_by:
            _OF_ATTENTION[name](self.loaded.model, part, None, self.run.warn_once)(frozenset())
        if self.by_relevance and self._recorded is None:
            try:
                self._estimator(part)(frozenset())
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
        return "relevance" in self.scored_by

    @property
    def scored_by(self) -> set[str | None]:
        """What the strategies score heads by."""
        return {strategies.STRATEGY_ENTRIES[name].scored_by for name in self.prune.strategies}

    def notes(self, tables: Mapping[str, pd.DataFrame]) -> list[str]:
        """What the reader should know about how heads were chosen, and about the rows of the tables of `outcome`."""
        sets, silent = tables["pruning"].query("n_pruned > 0"), rankings.sets_have_no_verdicts(tables["pruning"])
        areas = tables["pruning_areas"].iloc[: 0 if silent else None]
        compared = rankings.comparison_notes(areas, tables.get("rankings")) + rankings.control_notes(areas, sets)
        compared += rankings.interaction_notes(tables.get("interactions"), silent=silent)
        compared += variance_notes(tables.get("ranking_variance"))
        return [*_layout_note(tables["pruning"]), *self._source_notes(), *compared]

    def _source_notes(self) -> Iterator[str]:
        """What relevance and gates come from, where strategies go by them."""
        if self._recorded is not None:
            yield (
                f"`relevance` used {self.prune.relevance} ({self._recorded.measured}): heads were chosen on the data "
                "of that run, which should not contain any example that is evaluated here."
            )
        elif self.by_relevance:
            part = self.examples.part(self.ranked_on)
            on = f"on {counted(len(part), 'example')} of the selection split"
            yield f"`relevance` used rule epsilon, target {self._estimator(part).target.label}, {on}."
        if self._gates is not None:
            yield (
                f"`gates` used {self.prune.gates} ({self._gates.measured}), whose training data should not contain any "
                "example that is evaluated here."
            )

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """All heads that the task comes by."""
        return task_heads(self.loaded.model, self.examples.task)

    @cached_property
    def ranked_on(self) -> Chosen:
        """The examples that heads are chosen on."""
        return ranking_part(self.examples.keys, self.prune.rank_split, self.options.seed)

    def outcome(self) -> tuple[dict[str, pd.DataFrame], Floats]:
        """What becomes of pruned models: the whole model, then a row for each strategy, seed and number.

        Returns:
            `pruning.csv` and what compares strategies (`rankings`), all without the column `model`, and records of both
            parts, (rows, examples, columns of the task).
        """
        chosen, tables = self._choices()
        choices = [ChosenHeads(NONE, None, ()), *chosen]
        sets = list(dict.fromkeys(frozenset(choice.removed) for choice in choices))
        text, pruned_models, whole_model = f"evaluating {counted(len(sets) - 1, 'pruned model')}", {}, self.loaded.model
        total = len(sets) * self.run.processes.shard_size(len(self.examples))
        with self.run.reporter.progress(text, total, None) as advance:
            for removed in sets:
                sweep = self.sweep_without("pruned", removed, advance)
                with pruned_model(self.loaded.model, removed) as model:
                    cut = not removed or model is not whole_model
                    pruned_models[removed] = evaluated(model, self.examples, sweep, cut=cut)
        keys = [k for k, ranked in zip(self.examples.keys, self.ranked_on, strict=True) if not ranked]
        draws = Draws.of(keys, self.options.replicates, self.options.seed)
        intact = pruned_models[frozenset()]
        random = np.array([choice.seed is not None for choice in chosen], bool)
        baseline, tests = intact.records[~self.ranked_on], int((~random).sum())
        labels = label_counts(self.examples.part(~self.ranked_on).prepared)
        # What guesses without reading give, on the same examples as `value`.
        chance = self.examples.task.chance(baseline, self.metric, labels)
        value = self.examples.task.value(baseline, metric=self.metric)
        margin = margin_of(self.metric, value, self.options.margin, tests, guesses=chance)
        compare = paired_comparison(self.examples.task, self.metric, baseline, draws, margin)
        models = [pruned_models[frozenset(choice.removed)] for choice in choices]
        rows = [self._row(*pair, intact, compare, draws) for pair in zip(choices, models, strict=True)]
        # whole numbers also where most strategies have no seed, or all
        whole = {name: "Int64" for name in ("seed", "parameters", "possible_sets") if name in rows[0]}
        table = pd.DataFrame(rows).astype(whole | {"speedup": np.float64})
        # Random sets are controls, and no sets that anybody would choose among; each kind of them is a family.
        drawn = [random & (table["strategy"].iloc[1:] == name) for name in strategies.STRATEGY_ENTRIES]
        families = [table.iloc[1:][is_member] for is_member in (~random, *drawn)]
        table["chance"] = np.nan if chance is None else chance
        verdicts = pd.concat([with_verdicts(family, margin) for family in families if len(family)]).sort_index()
        task, every = self.examples.task, label_counts(self.examples.prepared)
        # Of a model that guesses on all examples, as its single heads show, a part may be right by luck.
        guesses = any(skill_of(task, *given).lacking for given in ((baseline, labels), (intact.records, every)))
        if task.constant(baseline, self.metric) or guesses:
            verdicts = without_verdicts(verdicts)
        more = verdicts[["p_holm", *VERDICT_COLUMNS[1:]]]
        table = table.drop(columns="n_to_decide").join(more)
        table = table[[name for name in PRUNING.names if name in table]]
        statistic = partial(task.replicates, metric=self.metric)
        resampled = {
            removed: replicates_of(model.records[~self.ranked_on], statistic, draws)
            for removed, model in pruned_models.items()
        }
        of_rows = np.stack([resampled[frozenset(choice.removed)] for choice in choices])
        tables |= {"pruning": table, "pruning_areas": rankings.area_table(table, of_rows, draws.independent)}
        return tables, np.stack([model.records for model in models])

    def _row(
        self, chosen: ChosenHeads, pruned: PrunedModel, intact: PrunedModel, compare: Comparison, draws: Draws
    ) -> dict[str, Any]:
        """A row of `pruning.csv`: metric, paired difference, intervals and size of one pruned model."""
        removed, task = chosen.removed, self.examples.task
        records = pruned.records[~self.ranked_on]
        compared = compare.of(records)
        return {
            "task": task.name,
            "metric": self.metric,
            "strategy": chosen.strategy,
            "seed": chosen.seed,
            "n_pruned": len(removed),
            "n_heads": len(self.heads) - len(removed),
            **asdict(estimate(task, self.metric, records, draws)),
            "parameters": pruned.parameters,
            "speedup": intact.operations / pruned.operations if intact.operations and pruned.operations else None,
            "removed": " ".join(map(str, strategies.in_order(removed))),
            "delta": compared.delta,
            "delta_low": compared.low,
            "delta_high": compared.high,
            "p_value": compared.p_value,
            "p_margin": compared.p_margin,
            "n_to_decide": compared.n_to_decide,
            "n": draws.examples,
            "answer_share": task.answer_share(records, self.metric),
            "ranking_value": task.value(pruned.records[self.ranked_on], metric=self.metric),
        } | ({"control_of": chosen.control_of, "possible_sets": chosen.possible_sets} if self._control_names else {})

    def _choices(self) -> tuple[list[ChosenHeads], dict[str, pd.DataFrame]]:
        """What every strategy removes, and how those rank the heads that score them all once."""
        heads, part = self.heads, self.examples.part(self.ranked_on)
        counts = strategies.check_pruning(self.prune.prune, len(heads))
        calls = sum(
            strategies.strategy_cost(name, self.prune.beam, len(heads), counts[-1]).calls for name, _ in self._named()
        )
        text = f"choosing heads on {counted(len(part), 'example')}"
        with self.run.reporter.progress(text, calls * self.run.processes.shard_size(len(part)), None) as advance:
            measured, choices = self._measured(part, advance), list[ChosenHeads]()
            scorers = {name: self.remembered(name, scorer) for name, scorer in measured.items()}
            for name, seed in self._named():
                entry = strategies.STRATEGY_ENTRIES[name]
                settings = strategies.StrategySettings(scorers[entry.scored_by or "metric"], self.prune.beam, seed or 0)
                made = strategies.strategy_choices(name, settings, heads, counts)
                choices += [ChosenHeads(name, seed, choice.removed) for choice in made]
            tables = self._rankings(scorers, measured, part)
        return [*choices, *self._controls(choices)], tables | self._interactions(scorers, part)

    def _controls(self, choices: Sequence[ChosenHeads]) -> Iterator[ChosenHeads]:
        """Random sets beside every set that was chosen, where there are enough heads to draw from."""
        heads = self.heads
        for name in self._control_names:
            for choice in (choice for choice in choices if choice.seed is None):
                possible, drawn = strategies.control_sets(name, self._seeds, choice.removed, heads)
                for seed, removed in drawn.items():
                    yield ChosenHeads(name, seed, removed, choice.strategy, possible)

    def _rankings(
        self, scorers: Mapping[str, strategies.Scorer], measured: Mapping[str, MeasuredScorer], part: Examples
    ) -> dict[str, pd.DataFrame]:
        """The tables that compare rankings; none of fewer than two strategies that score heads once."""
        by = {name: strategies.STRATEGY_ENTRIES[name].scored_by or "" for name in self.prune.strategies}
        once = [name for name in self.prune.strategies if name in RANKED_ONCE]
        if len(once) < 2:
            return {}
        heads = self.heads
        scores = {name: strategies.scores_of(scorers[by[name]], frozenset(), heads) for name in once}
        # Of Shapley values there are standard errors, too.
        of_errors = strategies.scores_of(scorers["shapley-error"], frozenset(), heads) if "shapley" in once else {}
        errors = {head: -score.value for head, score in of_errors.items()}
        baseline = self.examples.task.value(self.records.intact[self.ranked_on], metric=self.metric)
        sign = -1 if self.metric in LOWER_IS_BETTER else 1
        table = rankings.rankings_table(scores, sign * baseline, errors, len(part))
        # A run that measured relevance or trained gates tells nothing of its examples.
        known = [name for name in once if name != "gates" and not (by[name] == "relevance" and self._recorded)]
        rankers = {name: partial(measured[by[name]].ranks, heads) for name in known}
        by_orders = measured.get("shapley")
        orders = by_orders.rounds if "shapley" in known and isinstance(by_orders, ImportanceScorer) else ()
        variance, corrected = variance_table(rankers, part.keys, self.options.seed, orders)
        agreement = rankings.agreement_table(table, self.options.seed, corrected)
        return {"rankings": table, "ranking_agreement": agreement, "ranking_variance": variance}

    def _interactions(self, scorers: Mapping[str, strategies.Scorer], part: Examples) -> dict[str, pd.DataFrame]:
        """The table `interactions` of pairs of the heads with the largest Shapley values, if it is asked for."""
        if (most := self.prune.interactions) is None:
            return {}
        scores = strategies.scores_of(scorers["shapley"], frozenset(), self.heads)
        largest = strategies.in_order(sorted(scores, key=scores.__getitem__)[:most])
        pairs = math.comb(len(largest), 2)
        text = f"interactions of {counted(pairs, 'pair')} of heads, {8 * self.prune.rounds} passes each"
        with self.run.reporter.progress(text, pairs * len(part), None) as advance:
            given = (self.loaded.model, part, self.options.batch_tokens, self.run.warn_once, advance)
            estimator = InteractionEstimator(*given, seed=self.options.seed, rounds=self.prune.rounds)
            scorer = self.remembered("interactions", estimator)
            found = {
                (head, other): score
                for place, head in enumerate(largest[:-1])
                for other, score in scorer.without(frozenset([head]), largest[place + 1 :]).items()
            }
        values = {head: -scores[head].value for head in largest}
        return {"interactions": rankings.interactions_table(found, values, part.keys)}

    def _named(self) -> Iterator[tuple[str, int | None]]:
        for name in self.prune.strategies:
            entry = strategies.STRATEGY_ENTRIES[name]
            yield from ((name, seed) for seed in (self._seeds if entry.seeded else (None,)) if not entry.pools)

    @property
    def _control_names(self) -> list[str]:
        """The strategies that are controls of others."""
        return [name for name in self.prune.strategies if strategies.STRATEGY_ENTRIES[name].pools]

    @property
    def _seeds(self) -> range:
        """The seeds of random orders and sets."""
        return range(self.options.seed, self.options.seed + self.prune.orders)

    def _measured(self, part: Examples, advance: Advance) -> dict[str, MeasuredScorer]:
        """What scores heads, by the name that entries of strategies give it."""
        known = {head: record[self.ranked_on] for head, record in self.records.items()}

        def sweep(removed: frozenset[Head]) -> TaskSweep:
            return self.sweep_without("without", removed, advance)

        ranking = RankingScorer(self.loaded.model, part, self.metric, sweep, known)
        given = (self.loaded.model, part, self.options.batch_tokens, self.run.warn_once, advance)

        def kept(name: str) -> Checkpoint:
            return self.run.checkpoint(f"{name}-examples-{self.name}", self.loaded, self._identity)

        scorers: dict[str, MeasuredScorer] = {
            "metric": ranking,
            "importance": ImportanceScorer(ImportanceEstimator(*given, kept("importance"))),
        }
        if "shapley" in self.scored_by:
            values = ShapleyEstimator(*given, kept("shapley"), seed=self.options.seed, rounds=self.prune.rounds)
            scorers["shapley"] = ImportanceScorer(values, normalize=False)
            scorers["shapley-error"] = ImportanceScorer(values.errors, normalize=False)
        if self.by_relevance:
            # Sizes of `raw` compare layers as they are.
            own = RelevanceEstimator(*given, kept("relevance"))
            scorers["relevance"] = ImportanceScorer(self._recorded or own, normalize=False)
        estimators: dict[str, type[ImportanceEstimator]] = {"attribution": AttributionEstimator, **_OF_ATTENTION}
        for name in estimators.keys() & self.scored_by:
            scorers[name] = ImportanceScorer(estimators[name](*given, kept(name)), normalize=False)
        if self._gates is not None:
            scorers["gates"] = ImportanceScorer(self._gates, normalize=False)
        return scorers

    @cached_property
    def _recorded(self) -> RecordedRelevance | None:
        folder = self.prune.relevance
        return None if folder is None else RecordedRelevance.of(folder, self.loaded, self.heads)

    @cached_property
    def _gates(self) -> RecordedGates | None:
        folder = self.prune.gates
        return None if folder is None else RecordedGates.of(folder, self.loaded, self.heads)

    def _estimator(self, part: Examples, advance: Advance = lambda _: None) -> RelevanceEstimator:
        return RelevanceEstimator(self.loaded.model, part, self.options.batch_tokens, self.run.warn_once, advance)

    def remembered(self, name: str, scorer: strategies.Scorer) -> CachedScorer:
        """A scorer whose answers are kept."""
        checkpoint = self.run.checkpoint(f"{name}-{self.name}", self.loaded, self._identity)

        def keep(removed: frozenset[Head]) -> None:
            checkpoint.save(memory)
            self._keeper("without", removed).path.unlink(missing_ok=True)

        memory = CachedScorer(scorer, keep)
        checkpoint.restore(memory)
        # One process may have kept an answer more than another, but all must ask the same.
        memory.known = self.run.processes.share(memory.known)
        return memory

    def sweep_without(self, what: str, removed: frozenset[Head], advance: Advance) -> TaskSweep:
        """How the examples go through a model without some heads.

        Args:
            what: that is for, which is kept apart from other records of a model without these heads.
            removed: the heads.
            advance: called with the number of examples that are done.
        """
        kept = self._keeper(what, removed)
        return TaskSweep("zero", self.options.batch_tokens, advance, self.run.warn_once, kept, self.run.processes)

    def _keeper(self, what: str, removed: frozenset[Head]) -> Checkpoint:
        digest = hashlib.sha256(" ".join(map(str, strategies.in_order(removed))).encode()).hexdigest()[:16]
        return self.run.checkpoint(f"{what}-{self.name}-{digest}", self.loaded, self._identity)

    @cached_property
    def _identity(self) -> dict[str, str]:
        return {"the data": self.examples.summary.sha256}


@dataclass(frozen=True)
class PrunedModel:
    """A model without some heads, on the evaluation part.

    Args:
        records: of its examples.
        parameters: that are left; None where heads are set to 0 and nothing is smaller.
        operations: of a forward pass over an example of median length; None likewise.
    """

    records: Floats
    parameters: int | None = None
    operations: int | None = None


def evaluated(model: PreTrainedModel, examples: Examples, sweep: TaskSweep, *, cut: bool) -> PrunedModel:
    """Run a model over the evaluation part; whether its heads were cut out, so that it has a size of its own."""
    records = sweep.run(model, examples, heads=()).intact
    return PrunedModel(records, model.num_parameters(), operations(model, examples)) if cut else PrunedModel(records)


def operations(model: PreTrainedModel, examples: Examples) -> int:
    """Floating-point operations of matrix products in a forward pass over the example of median length."""
    task = examples.task.differentiable
    middle = sorted(examples.prepared, key=lambda p: p.length)[len(examples) // 2]
    batch = task.collate([middle], examples.reader, model.device)
    return operations_of(task.network(model), {**batch.inputs, **task.arguments(model)})


def _layout_note(pruning: pd.DataFrame) -> list[str]:
    """A note where pruned models kept all weights: their architecture is not known, or groups would be left uneven."""
    pruned = pruning[pruning["n_pruned"] > 0]
    uncut = pruned["parameters"].isna()
    if not uncut.any():
        return []
    which = (
        "The heads of pruned models"
        if uncut.all()
        else f"The heads of {int(uncut.sum())} of {len(pruned)} pruned models"
    )
    return [
        f"{which} cannot be cut out of the weights (`compact` says why): they were measured with their outputs at 0, "
        "and `parameters` and `speedup` are empty."
    ]
