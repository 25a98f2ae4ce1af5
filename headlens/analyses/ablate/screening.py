"""Screening: heads are ranked by attribution, the first are ablated, and random subsets bound what that misses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.analyses.ablate.missed_heads import CONFIDENCE, SHARE
from headlens.analyses.ablate.pruning_strategies import Scorer, in_order, scores_of
from headlens.analyses.ablate.scorers import AttributionEstimator, ImportanceScorer
from headlens.analyses.ablate.sweep import TaskSweep, task_heads
from headlens.errors import counted
from headlens.heads import KEY_COLUMNS, Head
from headlens.interventions.pruned_model import pruned_model
from headlens.models.loading import LoadedModel
from headlens.runs.progress import Advance, Reporter
from headlens.tasks.task import Floats
from headlens.tasks.task_examples import Examples

Members = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Screener:
    """Ranks the heads of a model by attribution, and looks for what that misses.

    Attribution is by how much the loss grows without a head to first order, from one pass forwards and one back for all
    heads. It misses heads that act through what saturates; so random subsets of the heads that are not ablated one by
    one are ablated together, as in the diagnostics of AtP* (Kramár et al. 2024).

    Args:
        loaded: the model.
        examples: all of them.
        metric: of the task.
        confirm: how many heads are ablated exactly.
        subsets: how many random subsets of the others are ablated.
        seed: of the subsets.
        batch_tokens: tokens of a batch, padding included; None for what suits the device.
        warn: called with what the user should know at once.
        progress: shows how far it has come, see `Reporter.progress`.
        remembered: makes a scorer whose answers are kept for --resume.
        sweep: how the examples go through a model without some heads, given what is called with their number.
    """

    loaded: LoadedModel
    examples: Examples
    metric: str
    confirm: int
    subsets: int
    seed: int = 0
    batch_tokens: int | None = None
    warn: Callable[[str], None] = lambda _: None
    progress: Callable[[str, int | None], AbstractContextManager[Advance]] = Reporter().progress
    remembered: Callable[[Scorer], Scorer] = lambda scorer: scorer
    sweep: Callable[[frozenset[Head], Advance], TaskSweep] = lambda _, advance: TaskSweep(progress=advance)

    @cached_property
    def attribution(self) -> dict[Head, float]:
        """By how much the loss grows without each head, to first order."""
        heads = in_order(task_heads(self.loaded.model, self.examples.task))
        with self.progress(f"attribution of {counted(len(heads), 'head')}", len(self.examples)) as advance:
            estimator = AttributionEstimator(self.loaded.model, self.examples, self.batch_tokens, self.warn, advance)
            scorer = self.remembered(ImportanceScorer(estimator, normalize=False))
            return {head: -score.value for head, score in scores_of(scorer, frozenset(), heads).items()}

    @cached_property
    def confirmed(self) -> tuple[Head, ...]:
        """The heads whose attribution is largest in size; of equal ones the first in the order of the model."""
        return in_order(sorted(self.attribution, key=lambda head: -abs(self.attribution[head]))[: self.confirm])

    @property
    def others(self) -> tuple[Head, ...]:
        """The heads that are not ablated exactly."""
        return tuple(head for head in self.attribution if head not in self.confirmed)

    def columns(self, rows: pd.DataFrame, baseline: float) -> pd.DataFrame:
        """Adds to rows of single heads their attribution, and what subsets tell of those that were not ablated.

        Args:
            rows: of ablation.csv.
            baseline: the metric with all heads.
        """
        effects, bounds = self._missed(baseline)
        heads = [Head(*key) for key in zip(*(rows[name] for name in KEY_COLUMNS), strict=True)]
        return rows.assign(
            attribution=[self.attribution[head] for head in heads],
            confirmed=[head in self.confirmed for head in heads],
            subset_effect=[effects.get(head, np.nan) for head in heads],
            subset_bound=[bounds.get(head, np.nan) for head in heads],
        )

    def _missed(self, baseline: float) -> tuple[dict[Head, float], dict[Head, float]]:
        if not self.others:
            return {}, {}
        members = subset_members(len(self.others), self.subsets, self.seed)
        sets = [frozenset(head for head, there in zip(self.others, row, strict=True) if there) for row in members]
        values = self._values({*sets} - {frozenset()}) | {frozenset(): baseline}
        changes = np.array([values[removed] - baseline for removed in sets])
        effects, bounds = subset_effects(changes, members)
        return dict(zip(self.others, effects, strict=True)), dict(zip(self.others, bounds, strict=True))

    def _values(self, sets: Iterable[frozenset[Head]]) -> dict[frozenset[Head], float]:
        """The metric without each set of heads."""
        ordered, values = sorted(sets, key=in_order), {}
        text = f"ablating {counted(len(ordered), 'random subset')} of {counted(len(self.others), 'other head')}"
        with self.progress(text, len(ordered) * len(self.examples)) as advance:
            for removed in ordered:
                with pruned_model(self.loaded.model, removed) as model:
                    records = self.sweep(removed, advance).run(model, self.examples, heads=()).intact
                values[removed] = self.examples.task.value(records, metric=self.metric)
        return values


def subset_members(heads: int, subsets: int, seed: int) -> Members:
    """Draws which heads are in which subsets, (subsets, heads).

    Every head is in a quarter of the subsets, whichever the others are in, so that on average heads with it and without
    it are in the same company.

    Args:
        heads: how many.
        subsets: how many.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    first = np.arange(subsets) < subsets // SHARE
    return np.stack([rng.permutation(first) for _ in range(heads)], axis=1)


def subset_effects(changes: Floats, members: Members) -> tuple[Floats, Floats]:
    """Estimates the effect of each head from changes by subsets, and bounds its size.

    The effect is the mean change by the subsets with the head minus that by those without; it is unbiased where effects
    of heads add up. The bound is the smallest size from which on Welch's one-sided test rejects every effect at the 5 %
    level: the size of the estimate plus t times its standard error. The largest of all bounds is above the largest of
    all effects with a confidence of 95 %, without a correction for the number of heads: it is too low only where the
    bound of the head with that effect is.

    Args:
        changes: of the metric, (subsets,).
        members: which heads are in which subset, (subsets, heads).

    Returns:
        Effects and bounds, (heads,).
    """
    from scipy.stats import t

    effects, bounds = np.zeros((2, members.shape[1]))
    for number, there in enumerate(members.T):
        groups = changes[there], changes[~there]
        of_means = [float(group.var(ddof=1)) / len(group) for group in groups]
        error = sum(of_means)
        effects[number] = groups[0].mean() - groups[1].mean()
        bounds[number] = abs(effects[number])
        if error:  # else nothing varies
            freedom = error**2 / sum(part**2 / (len(group) - 1) for part, group in zip(of_means, groups, strict=True))
            bounds[number] += t.ppf(CONFIDENCE, freedom) * np.sqrt(error)
    return effects, bounds
