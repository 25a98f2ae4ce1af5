"""The options that every request has: where its run goes; and its arguments by the names of the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from headlens.option_values import folder
from headlens.options import OUTPUT, option


@dataclass(frozen=True)
class OutputOptions:
    """The folder of a run, whether another run there is replaced, and whether it goes on with the run there."""

    out: Path | None = option(
        None,
        "Run folder; without a name runs/<command>-<model>-<time>.",
        OUTPUT,
        metavar="DIR",
        parse=folder,
        shown="a new one in runs/",
    )
    overwrite: bool = option(False, "Replace an existing run in that folder.", OUTPUT)
    resume: bool = False


def arguments(request: Any) -> dict[str, Any]:
    """Returns the arguments of a request as run.json and --config hold them: flat, by option, without the folder."""
    by_option: dict[str, Any] = {}
    for field in fields(request):
        value = getattr(request, field.name)
        if isinstance(value, OutputOptions) or not field.metadata.get("recorded", True):
            continue
        by_option |= arguments(value) if is_dataclass(value) else {field.name: json_value(value)}
    return by_option


def json_value(value: Any) -> Any:
    """Returns a value as JSON can hold it: tuples as lists, paths as text."""
    if isinstance(value, (list, tuple)):
        return [json_value(v) for v in value]
    return str(value) if isinstance(value, Path) else value
