"""The commands whose runs `headlens report` draws; runs of all others are shown with the pictures they have."""

from __future__ import annotations

from headlens.report.ablate import ABLATE
from headlens.report.classify import CLASSIFY
from headlens.report.compact import COMPACT
from headlens.report.dam import DAM
from headlens.report.example_maps import ATTEND
from headlens.report.gates import GATES
from headlens.report.kind import Kind
from headlens.report.masks import MASKS
from headlens.report.relevance import RELEVANCE
from headlens.report.sparsefinder import SPARSEFINDER
from headlens.report.training import TRAIN

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


def kind_of(command: str) -> Kind:
    """How runs of a command are shown."""
    return KINDS.get(command, Kind())
