"""Whether a model does a task better than guesses that are made without reading."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from headlens.statistics.bootstrap import FEWEST
from headlens.statistics.intervals import mean_interval
from headlens.statistics.non_inferiority import LEVEL
from headlens.statistics.paired_tests import exceeds_chance, mcnemar
from headlens.tasks.classification import CorrelationTask
from headlens.tasks.examples import LabelCounts
from headlens.tasks.masked import Likelihood
from headlens.tasks.task import Floats, Task
from headlens.tasks.task_options import LOGIT_DIFFERENCE


@dataclass(frozen=True)
class Skill:
    """How a model compares with the best guesses made without reading.

    Args:
        better: whether it is significantly better; None where that is not known.
        worse: whether it is significantly worse.
        untested: whether there are too few examples for the test that the metric needs.
    """

    better: bool | None = None
    worse: bool = False
    untested: bool = False

    @property
    def lacking(self) -> bool:
        """Whether the model is not significantly better: what it needs heads for is then not shown by the task."""
        return self.better is False


UNTESTED = Skill(better=False, untested=True)


def skill_of(task: Task, records: Floats, labels: LabelCounts | None = None) -> Skill:
    """Compares the records of a model in its main metric with what guesses give.

    Args:
        task: whose records they are.
        records: of all examples, (n, k).
        labels: how often each token was to be predicted, of tasks that predict tokens.
    """
    if isinstance(task, Likelihood):
        return skill_at_tokens(task, records, labels, task.metrics[0]) if labels else Skill()
    # That of two classes is Pearson's correlation of their numbers, too (Matthews 1975).
    if isinstance(task, CorrelationTask) or task.metrics[0] == "matthews":
        return _skill_of_correlation(task, records)
    if (chance := task.chance(records)) is None:
        return Skill()
    metric = task.metrics[0]
    right = task.right(records, metric)
    if metric == LOGIT_DIFFERENCE:
        if len(records) < FEWEST:
            return UNTESTED
        _, low, high = mean_interval(records[:, 0])
        return Skill(low > chance, high < chance)
    if right is None or not len(right):
        return Skill()
    better = exceeds_chance(right.sum(), len(right), chance)
    worse = bool(special.bdtr(right.sum(), len(right), chance) < LEVEL / 2)
    # The most frequent answer is that of the same examples, which makes the two a pair.
    if worse and (other := _of_most_frequent(task, records, metric)) is not None:
        worse = bool(mcnemar(right, other) < LEVEL)
    return Skill(better, worse)


def skill_at_tokens(task: Likelihood, records: Floats, labels: LabelCounts, metric: str) -> Skill:
    """Compares accuracy or loss with the best constant prediction by example: tokens of one are not independent.

    Args:
        task: whose records they are.
        records: of all examples (nll, tokens, correct), (n, 3).
        labels: how often each token was to be predicted.
        metric: `accuracy`; any other one is compared by the loss.
    """
    if len(records) < FEWEST:
        return UNTESTED
    if metric == "accuracy":
        most_frequent = task.chance(records, metric, labels)
        assert most_frequent is not None
        tokens, right = records[:, 1], records[:, 2]
        # Where every example is all right or all wrong nothing varies; each counts once then.
        if np.array_equal(right, tokens):
            return Skill(most_frequent ** len(records) < LEVEL / 2)
        if not right.any():
            return Skill(better=False, worse=(1 - most_frequent) ** len(records) < LEVEL / 2)
        _, low, high = mean_interval(right - most_frequent * tokens)
        return Skill(bool(low > 0), bool(high < 0))
    loss = task.chance(records, "loss", labels)
    assert loss is not None
    _, _, high = mean_interval(records[:, 0] - loss * records[:, 1])
    # The frequencies were fitted to these very tokens: on others they lose about (kinds - 1) / tokens nats more, twice
    # the bias of the entropy of a sample (Miller 1955).
    _, beyond, _ = mean_interval(records[:, 0] - (loss + (len(labels) - 1) / sum(labels.values())) * records[:, 1])
    return Skill(bool(high < 0), bool(beyond > 0))


def _skill_of_correlation(task: Task, records: Floats) -> Skill:
    """Tests whether what is said correlates with what people said, by Student's t of the main metric."""
    from scipy import stats

    n, r = len(records), float(task.value(records))
    if n < FEWEST:
        return UNTESTED
    p_value = 2 * stats.t.sf(abs(r) * math.sqrt((n - 2) / max(1 - r * r, 1e-12)), n - 2)
    return Skill(bool(p_value < LEVEL and r > 0), bool(p_value < LEVEL and r < 0))


def _of_most_frequent(task: Task, records: Floats, metric: str) -> Floats | None:
    """Which examples the most frequent answer has right, (n,); None for tasks whose answers are no classes."""
    if not task.labels or not {"label", "predicted"} <= set(task.columns):
        return None
    values, counts = np.unique(records[:, task.columns.index("label")], return_counts=True)
    made = records.copy()
    made[:, task.columns.index("predicted")] = values[np.argmax(counts)]
    return task.right(made, metric)
