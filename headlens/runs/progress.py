"""How a recipe reports what it is doing; the command line shows it, Python code may ignore it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

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
