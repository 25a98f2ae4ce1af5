"""The heads that change a metric most while a sweep over all heads goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from headlens.analyses.ablate.head_records import HeadRecords
from headlens.analyses.ablate.options import Mode
from headlens.runs.progress import LONG
from headlens.tasks.task import Task

_MOST = 3


class InterimHeads:
    """Tells the heads that change a metric most on the examples done so far: after a tenth of these, and after half.

    A sweep that is over in `LONG` seconds tells nothing.

    Args:
        task: whose records they are.
        metric: of the task.
        mode: how heads are taken out.
        total: number of examples of this process.
        tell: called with the sentence.
        clock: seconds from any start.
    """

    def __init__(
        self,
        task: Task,
        metric: str,
        mode: Mode,
        total: int,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task, self._metric, self._total = task, metric, total
        self._how = "with only" if mode == "keep-only" else "without"
        self._tell, self._clock, self._start = tell, clock, clock()
        self._left = [0.1, 0.5]  # shares after which it is told

    def __call__(self, records: HeadRecords) -> None:
        """Looks at the records, and tells the heads if it is time."""
        done = int(records.there.sum())
        passed = [share for share in self._left if done >= share * self._total]
        self._left = self._left[len(passed) :]
        if passed and done < self._total and self._clock() - self._start >= passed[-1] * LONG:
            self._tell(
                f"preliminary, after {done:,} of {self._total:,} examples, short ones first: {self._changes(records)}"
            )

    def _changes(self, records: HeadRecords) -> str:
        value = self._task.value(records.intact[records.there], metric=self._metric)
        deltas = {
            head: self._task.value(without[records.there], metric=self._metric) - value
            for head, without in records.items()
        }
        # What is not defined for so few examples is not above 0.
        changed = sorted((head for head in deltas if abs(deltas[head]) > 0), key=lambda head: -abs(deltas[head]))
        if not changed:
            return f"{self._metric} does not change {self._how} any head"
        heads = ", ".join(f"{head} ({deltas[head]:+.3f})" for head in changed[:_MOST])
        return f"{self._metric} changes most {self._how} {heads}"
