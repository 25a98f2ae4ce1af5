"""How a recipe says what it is doing; the command line shows it, Python code may ignore it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate

Advance = Callable[[int], None]
LONG = 10.0  # seconds, of which a user is told before


class Reporter:
    """What shows the user how far a recipe has come; this one shows nothing."""

    def status(self, text: str) -> AbstractContextManager[None]:
        """Shows work of unknown length while the block runs."""
        del text
        return nullcontext()

    def progress(
        self, text: str, total: int | None, costs: Sequence[float] | None = ()
    ) -> AbstractContextManager[Advance]:
        """Shows work of `total` steps; the block gets a function to call with the number of further steps done.

        Args:
            text: what is done.
            total: number of steps; None where it is not known.
            costs: of the steps in their order, where some take longer than others, in any unit; None where later ones
                take longer, and nobody knows by how much.
        """
        del text, total, costs
        return nullcontext(lambda _: None)

    def remark(self, text: str) -> None:
        """Shows what is known so far, while work goes on."""

    def warn(self, text: str) -> None:
        """Shows a warning before the run ends."""


class Forecast:
    """Tells once how long work takes as a whole, by the first part of it that took a second or more.

    Steps that come at once were done before the run was interrupted, and tell nothing about time.

    Args:
        total: number of steps.
        costs: of the steps in their order, where they differ.
        clock: seconds from any start.
    """

    FIRST, AT_ONCE = 1.0, 0.001  # seconds

    def __init__(self, total: int, costs: Sequence[float] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._total = len(costs) or total
        # Of the steps up to each; of steps that do not differ there may be millions, and their number is enough.
        self._up_to = list(accumulate(costs, initial=0.0)) if costs else None
        self._clock, self._last = clock, clock()
        self._done, self._seconds, self._timed = 0, 0.0, 0.0
        self._told = False

    def seconds(self, steps: int) -> float | None:
        """Adds steps that were done since the last call; 0 begins to measure the time anew.

        Returns:
            The seconds of all steps from first to last, once; None before that is known, and again afterwards.
        """
        if self._told:
            return None
        now = self._clock()
        spent, self._last = now - self._last, now
        before, self._done = self._done, self._done + steps
        if steps and spent > self.AT_ONCE:
            self._seconds += spent
            self._timed += self._cost(self._done) - self._cost(before)
        left = self._cost(self._total) - self._cost(self._done)
        if self._seconds < self.FIRST or not (left and self._timed):
            return None
        self._told = True
        return self._seconds * (1 + left / self._timed)

    def _cost(self, steps: int) -> float:
        """Returns the cost of the first steps."""
        known = min(steps, self._total)
        return float(known) if self._up_to is None else self._up_to[known]
