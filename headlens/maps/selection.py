"""Which heads are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headlens.errors import OptionError
from headlens.option_values import whole_numbers_and_ranges
from headlens.options import (
    HEADS,
    Checked,
    Option,
    StackName,
    option,
)

if TYPE_CHECKING:
    from headlens.heads import Head, Stack

_HEADS = Option(
    "Draw only these heads, and keep their queries and keys: 0,3,7 or 0-4.",
    HEADS,
    "NUMBERS",
    whole_numbers_and_ranges,
    shown="all",
)


@dataclass(frozen=True)
class Selection(Checked):
    """Which heads to look at: one stack, one layer of every such stack, one head or some of that layer; all by default.

    Raises:
        OptionError: if one head and several are asked for.
    """

    stack: StackName | None = option(None, "Draw only this stack.", HEADS)
    layer: int | None = option(None, "Draw only this layer.", HEADS, metavar="N", at_least=0)
    head: int | None = option(None, "Draw only this head, enlarged.", HEADS, metavar="N", at_least=0, excludes="heads")
    heads: tuple[int, ...] = option((), _HEADS)

    def check(self, heads: Sequence[Head]) -> None:
        """Refuse a selection that no head fits.

        Raises:
            OptionError: with the range that would do.
        """
        stacks = list(dict.fromkeys(h.stack for h in heads))
        if self.stack is not None and self.stack not in stacks:
            raise OptionError(
                f"--stack {self.stack}: the model was only run on {', '.join(stacks)}.",
                "Choose one of these; decoder and cross need a translation (--target-text).",
            )
        selected = [h for h in heads if self.stack in (None, h.stack)]
        in_layer = {h.head for h in selected if self.layer in (None, h.layer)}
        choices = [("layer", self.layer, {h.layer for h in selected}), ("head", self.head, in_layer)]
        for name, number, numbers in [*choices, *(("heads", head, in_layer) for head in self.heads)]:
            if number is not None and number not in numbers:
                # With gaps where heads were cut out.
                is_range = len(numbers) == max(numbers) + 1
                span = f"0 to {max(numbers)}" if is_range else ", ".join(map(str, sorted(numbers)))
                raise OptionError(f"--{name} {number} is out of range.", f"Choose {span}; both count from 0.")

    def takes(self, stack: Stack) -> bool:
        """Whether heads of this stack are selected; without a selected stack all are."""
        return self.stack in (None, stack)
