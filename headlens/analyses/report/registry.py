"""The commands whose runs `headlens report` draws; runs of all others are shown with the pictures they have."""

from __future__ import annotations

from headlens.analyses.ablate.report import ABLATE
from headlens.analyses.attend.stored_maps import ATTEND
from headlens.analyses.classify.report import CLASSIFY
from headlens.analyses.compact.report import COMPACT
from headlens.analyses.dam.report import DAM
from headlens.analyses.masks.report import MASKS
from headlens.analyses.prune.report import GATES
from headlens.analyses.relevance.report import RELEVANCE
from headlens.analyses.sparsefinder.report import SPARSEFINDER
from headlens.analyses.training.figures import TRAIN
from headlens.pages.command_report import CommandReport

KINDS = {
    "ablate": ABLATE,
    "attend": ATTEND,
    "classify": CLASSIFY,
    "compact": COMPACT,
    "masks": MASKS,
    "prune": GATES,
    "relevance": RELEVANCE,
    "sparsefinder": SPARSEFINDER,
    "train": TRAIN,
    "train-dam": DAM,
}


def kind_of(command: str) -> CommandReport:
    """How runs of a command are shown."""
    return KINDS.get(command, CommandReport())
