"""The options of `headlens reproduce`."""

from __future__ import annotations

from dataclasses import dataclass, field

from headlens.options import OUTPUT, CommandOptions, option
from headlens.shared_options import OutputOptions

_PAPER = "Name of a bundled recipe, or your own TOML file; without it, the bundled recipes are listed."


@dataclass(frozen=True)
class ReproduceRequest:
    """What `headlens reproduce` is asked for; without a paper the recipes that come along are listed."""

    paper: str | None = option(None, _PAPER, metavar="PAPER", shown="", argument=True)
    small: bool = option(
        False,
        "Use bundled data and models, which takes minutes and needs no network; this exercises the pipeline and "
        "does not give the paper's numbers.",
        OUTPUT,
    )
    show: bool = option(False, "Print the recipe, as a starting point for a file of your own.", OUTPUT)
    place: OutputOptions = field(default_factory=OutputOptions)


COMMAND = CommandOptions("reproduce", (ReproduceRequest,), "run_reproduce")
