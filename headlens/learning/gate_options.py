"""The options of gates that are learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from headlens.errors import OptionError
from headlens.learning.hyperparameters import penalized_rate
from headlens.option_values import names_or_none
from headlens.options import OUTPUT, Checked, StackName, option
from headlens.shared_options import FREEZE

GATES_PANEL = "Gates"
_LAW: dict[str, Any] = {"panel": GATES_PANEL, "group": "law"}
# log α of a gate that is 1 at evaluation.
START = 2.5


@dataclass(frozen=True)
class GateOptions(Checked):
    """Which heads get gates, and how these are trained.

    The learning rate of log α follows the schedule of the training. `save` says whether the pruned model is without the
    heads that are gone, or has zeros in their place so that plain from_pretrained reads it; see `with_folded_gates`.

    Raises:
        OptionError: if a number or a name cannot be.
    """

    gates: tuple[StackName, ...] = option(
        (),
        "Stacks whose heads have gates, comma-separated: encoder, decoder, cross.",
        **_LAW,
        metavar="STACKS",
        parse=names_or_none,
        shown="all of the model",
    )
    freeze: tuple[str, ...] | None = option(None, replace(FREEZE, panel=GATES_PANEL))
    penalty: Literal["mean", "sum"] = option(
        "mean",
        "Whether λ multiplies the number of open gates averaged over attention modules, or summed.",
        **_LAW,
    )
    gate_start: float = option(START, "Initial log α; from 2.4 upwards a gate is 1.", **_LAW, metavar="NUMBER")
    gate_learning_rate: float | None = option(
        None,
        "Peak learning rate of log α.",
        **_LAW,
        metavar="NUMBER",
        shown="24 / updates, at most 0.5",
        above=0,
    )
    save: Literal["compacted", "folded"] = option(
        "compacted",
        "Cut heads out, or write zeros instead, so that plain from_pretrained can load the models.",
        OUTPUT,
        group="training-args",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gate_start != START:
            from headlens.interventions.hard_concrete import HardConcrete

            if self.gate_start <= HardConcrete().closed_below:
                raise OptionError(
                    f"--law gate-start {self.gate_start} closes all gates before training.", f"Try {START}."
                )

    def rate(self, updates: int) -> float:
        """The highest learning rate of gates in a training of so many updates."""
        return penalized_rate(self.gate_learning_rate, updates)
