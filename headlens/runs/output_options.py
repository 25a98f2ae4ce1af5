"""What every request has to offer: where its run goes, and its arguments by the names of the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class OutputOptions:
    """Where a run goes.

    Args:
        out: run folder; None for a new one below `runs/`.
        overwrite: replace what a run left there, finished or not.
        resume: go on with the run there that was interrupted.
    """

    out: Path | None = None
    overwrite: bool = False
    resume: bool = False


def arguments(request: Any) -> dict[str, Any]:
    """The arguments of a request as run.json holds them and --config takes them: flat, by option, but for the place."""
    found: dict[str, Any] = {}
    for field in fields(request):
        value = getattr(request, field.name)
        if isinstance(value, OutputOptions):
            continue
        found |= arguments(value) if is_dataclass(value) else {field.name: json_value(value)}
    return found


def json_value(value: Any) -> Any:
    """A value as JSON can hold it: tuples as lists, paths as text."""
    if isinstance(value, (list, tuple)):
        return [json_value(v) for v in value]
    return str(value) if isinstance(value, Path) else value
