"""All commands by name: `COMMAND` in the options of every analysis."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

import headlens.analyses
from headlens.options import CommandOptions


@cache
def commands() -> dict[str, CommandOptions]:
    """Returns the commands by the name that is typed; nothing heavy is imported for them."""
    by_name = {}
    for package in iter_modules(headlens.analyses.__path__, f"{headlens.analyses.__name__}."):
        if package.ispkg and find_spec(f"{package.name}.options") is not None:
            command = import_module(f"{package.name}.options").COMMAND
            by_name[command.name] = command
    return by_name
