"""What is remembered of the runs of a sweep, so that an interrupted sweep goes on with the next one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from headlens.errors import ResumeError
from headlens.experiments.run import Run
from headlens.heads import Head
from headlens.report.files import atomic_path

Record = dict[str, Any]
Kept = TypeVar("Kept")
UNPRUNED = "unpruned"


@dataclass(frozen=True)
class Outcome:
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

    @property
    def heads(self) -> list[Head]:
        """The heads that are gone."""
        return [Head.parse(name) for name in self.removed]

    @property
    def between(self) -> int:
        """Gates that are neither closed nor 1."""
        return sum(0.0 < value < 1.0 for value in self.values.values())

    def with_scratch(self, metrics: list[Record], checkpoint: str | None, notes: Sequence[str] = ()) -> Outcome:
        """The same with a model that was trained from random weights."""
        return replace(self, scratch=metrics, scratch_checkpoint=checkpoint, scratch_notes=list(notes))


def run_name(strength: float) -> str:
    """What a run with this λ is called."""
    return f"penalty-{strength:.10g}"


def remembered(run: Run, name: str, make: Callable[[], Kept], kind: type[Kept]) -> Kept:
    """What was kept of a run that has finished, or what it gives now; the same in all processes.

    Args:
        run: the sweep.
        name: unique in it.
        make: the run; only what the first process gives counts.
        kind: a dataclass of what can be written as JSON.

    Raises:
        ResumeError: if what was kept cannot be read.
    """
    path = run.kept(f"{name}.json")
    if run.processes.share(path.is_file()):
        return _read(path, kind)
    made = run.processes.share(make())
    if run.writes:
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(vars(made)), encoding="utf-8")
    run.processes.gather(None)
    return made


def _read(path: Path, kind: type[Kept]) -> Kept:
    try:
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ResumeError(f"{path} cannot be read: {error}.", "Start again with --overwrite.") from error
