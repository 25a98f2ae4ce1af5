"""The options of `headlens reproduce`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headlens.options import OUTPUT, CommandOptions, option
from headlens.shared_options import OutputOptions

Scale = Literal["small", "card", "full"]
_PAPER = "Name of a bundled recipe, or your own TOML file; without it, the bundled recipes are listed."


@dataclass(frozen=True)
class ReproduceRequest:
    """What `headlens reproduce` is asked for; without a paper the recipes that come along are listed."""

    paper: str | None = option(None, _PAPER, metavar="PAPER", shown="", argument=True)
    scale: Scale = option(
        "full",
        "full is the paper's setting; card a smaller one, made for about ten minutes a step on one GPU; small uses "
        "bundled data and models, takes minutes and needs no network. Only full gives the paper's numbers.",
        OUTPUT,
        replaces={"small": "--scale small"},
    )
    show: bool = option(False, "Print the recipe, as a starting point for a file of your own.", OUTPUT)
    thorough: bool = option(
        False, "With --dry-run: also time and memory of every step, from a batch of its model.", OUTPUT
    )
    place: OutputOptions = field(default_factory=OutputOptions)


COMMAND = CommandOptions("reproduce", (ReproduceRequest,), "run_reproduce")
