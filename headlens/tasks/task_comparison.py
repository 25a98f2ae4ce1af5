"""Which metric of a task is looked at, and two models compared by it on the same examples."""

from __future__ import annotations

from functools import partial
from typing import cast

from headlens.errors import OptionError
from headlens.statistics.bootstrap import Draws
from headlens.statistics.non_inferiority import Margin
from headlens.statistics.paired_tests import Comparison, Right
from headlens.tasks.task import Floats, Task


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
    deciding = partial(task.deciding, metric=metric)
    return Comparison(baseline, partial(task.replicates, metric=metric), draws, right, margin, deciding)
