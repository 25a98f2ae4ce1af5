"""The options of `headlens reproduce`."""

from __future__ import annotations

from dataclasses import dataclass, field

from headlens.options import CORPUS, OUTPUT, CommandOptions, option
from headlens.runs.output_options import OutputOptions


@dataclass(frozen=True)
class ReproduceRequest:
    """What `headlens reproduce` is asked for; without a paper the recipes that come along are listed."""

    paper: str | None = option(
        None,
        "A recipe that comes along, or a TOML file of your own; none lists them.",
        metavar="PAPER",
        shown="",
        argument=True,
    )
    small: bool = option(
        False, "Embedded data and models, in minutes and without a network: the path, not the paper's numbers.", CORPUS
    )
    show: bool = option(False, "Print the recipe, for a file of your own.", OUTPUT)
    place: OutputOptions = field(default_factory=OutputOptions)


COMMAND = CommandOptions("reproduce", (ReproduceRequest,), "run_reproduce")
