"""The command line with all of its commands, which it makes one by one as they are needed."""

from __future__ import annotations

from functools import cache
from typing import Any

import typer

from headlens_cli.app import app


@cache
def command_line() -> Any:
    """Returns the group of all commands with their options."""
    group: Any = typer.main.get_command(app)
    for name in group.list_commands(None):
        group.get_command(None, name)
    return group
