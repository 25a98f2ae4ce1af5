"""What is remembered of the runs of a sweep over gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headlens.analyses.training.sweep import Record
from headlens.heads import Head

UNPRUNED = "unpruned"


@dataclass(frozen=True)
class PenaltyOutcome:
    """What one run of a sweep gave; everything in it can be written as JSON.

    Args:
        run: its name, such as `penalty-0.1`; `unpruned` for the model as it was.
        penalty: λ; None for the model as it was.
        removed: heads whose gates are closed.
        values: the gate of every gated head, by its name.
        gates: rows of `gates.csv` without run and penalty.
        log: rows of the training's log.
        metrics: of the model on what was held out, a row each.
        checkpoint: its folder, below that of the run; None for the model as it was.
        roles: role and roles of every head, by its name; empty where roles were not asked for.
        scratch: metrics of a model of the same shape that was trained from random weights; empty where there is none.
        scratch_checkpoint: its folder.
        notes, scratch_notes: what to know about the metrics of either.
        records, keys: of the model as it was, which others are compared with, see `Baseline`; empty for others.
    """

    run: str
    penalty: float | None = None
    removed: list[str] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    gates: list[Record] = field(default_factory=list)
    log: list[Record] = field(default_factory=list)
    metrics: list[Record] = field(default_factory=list)
    checkpoint: str | None = None
    roles: dict[str, list[str]] = field(default_factory=dict)
    scratch: list[Record] = field(default_factory=list)
    scratch_checkpoint: str | None = None
    notes: list[str] = field(default_factory=list)
    scratch_notes: list[str] = field(default_factory=list)
    records: list[list[float]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    @property
    def heads(self) -> list[Head]:
        """Heads whose gates closed and that the pruned model does not have."""
        return [Head.parse(name) for name in self.removed]

    @property
    def between(self) -> int:
        """Gates that are neither closed nor 1."""
        return sum(0.0 < value < 1.0 for value in self.values.values())

    def with_scratch(self, metrics: list[Record], checkpoint: str | None, notes: Sequence[str] = ()) -> PenaltyOutcome:
        """The same with a model that was trained from random weights."""
        return replace(self, scratch=metrics, scratch_checkpoint=checkpoint, scratch_notes=list(notes))
