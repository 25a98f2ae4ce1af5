"""The options of `headlens attend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headlens.errors import OptionError
from headlens.models.model_options import ModelOptions
from headlens.options import CORPUS, DEMO, LEVEL, MODEL_NAME, STATISTICS, CommandOptions, Level, StackName, option
from headlens.runs.mask_options import MaskOptions
from headlens.runs.output_options import OutputOptions

if TYPE_CHECKING:
    from headlens.heads import Head, Stack

EXAMPLE = "The quick brown fox jumps over the lazy dog because it is bored."


@dataclass(frozen=True)
class Selection:
    """Which heads to look at: one stack, one layer of every such stack, one head of that layer; None takes all."""

    stack: StackName | None = option(None, "Only this stack.", STATISTICS)
    layer: int | None = option(None, "Only this layer.", STATISTICS, at_least=0)
    head: int | None = option(None, "Only this head, large.", STATISTICS, at_least=0)

    def check(self, heads: Sequence[Head]) -> None:
        """Refuse a selection that no head fits.

        Raises:
            OptionError: with the range that would do.
        """
        stacks = list(dict.fromkeys(h.stack for h in heads))
        if self.stack is not None and self.stack not in stacks:
            raise OptionError(
                f"--stack {self.stack}: the model was run on: {', '.join(stacks)}.",
                "Choose one of these; decoder and cross need a translation (--target-text).",
            )
        selected = [h for h in heads if self.stack in (None, h.stack)]
        for name, number, numbers in (
            ("layer", self.layer, {h.layer for h in selected}),
            ("head", self.head, {h.head for h in selected if self.layer in (None, h.layer)}),
        ):
            if number is not None and number not in numbers:
                raise OptionError(f"--{name} {number} is out of range.", f"Choose {_span(numbers)}; both count from 0.")

    def takes(self, stack: Stack) -> bool:
        """Whether heads of this stack are selected; without a selected stack all are."""
        return self.stack in (None, stack)


@dataclass(frozen=True)
class AttendRequest:
    """What `headlens attend` is asked for: sentences and, for decoders and cross-attention, their translations.

    The selection says which heads are drawn; the maps of all are kept.
    """

    model: str = option(DEMO, MODEL_NAME)
    text: tuple[str, ...] = option((EXAMPLE,), "A sentence; can be given again.", CORPUS)
    target_text: tuple[str, ...] = option((), "Its translation, for decoder and cross-attention.", CORPUS)
    selection: Selection = field(default_factory=Selection)
    level: Level = option("token", LEVEL)
    mask: MaskOptions = field(default_factory=MaskOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    place: OutputOptions = field(default_factory=OutputOptions)


def _span(numbers: set[int]) -> str:
    """What can be chosen: `0 to 11`, or `0, 2, 3` where heads were cut out."""
    return f"0 to {max(numbers)}" if len(numbers) == max(numbers) + 1 else ", ".join(map(str, sorted(numbers)))


COMMAND = CommandOptions("attend", (AttendRequest,), "run_attend")
