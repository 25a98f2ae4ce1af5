"""The options of `headlens serve`."""

from __future__ import annotations

from dataclasses import dataclass, field

from headlens.models.model_options import ModelOptions
from headlens.options import DEMO, OUTPUT, CommandOptions, Option, option
from headlens.runs.mask_options import MaskOptions

SOURCE = Option(
    "Hugging Face id, local folder, or 'demo'; or a run folder: the run's model as it was run there, and the "
    "sentences kept in that folder.",
    metavar="RUN|MODEL",
    argument=True,
)


@dataclass(frozen=True)
class ServeRequest:
    """What `headlens serve` is asked for: a model or the folder of a run, and the port of the page."""

    source: str = option(DEMO, SOURCE)
    port: int = option(
        0, "Local port to serve on.", OUTPUT, metavar="N", shown="any free port", at_least=0, at_most=65535
    )
    mask: MaskOptions = field(default_factory=MaskOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)


# It writes no run, so that it is none of the commands that Python and recipes have.
SERVE = CommandOptions("serve", (ServeRequest,), "")
