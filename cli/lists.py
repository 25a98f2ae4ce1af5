"""Options that take a list: `--heads encoder.0.1,encoder.2.3`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand


class ListsOnce(TyperCommand):
    """A command that refuses a list that is given a second time, which would silently take the place of the first.

    Lists are what the help calls by a plural: HEADS, NAMES, NUMBERS.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as ever, and look at what was given how often."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for parameter, times in Counter(given).items():
            metavar = getattr(parameter, "metavar", None) or ""
            if times > 1 and metavar.isupper() and metavar.endswith("S") and not getattr(parameter, "multiple", True):
                option = parameter.opts[0]
                raise typer.BadParameter(
                    f"{option} is given {times} times. Give it once, with commas: {option} ONE,ANOTHER.", ctx=ctx
                )
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the defaults of the command, and not those of a file of `--config`, which may come from anybody."""
        ctx.default_map = None
        super().format_help(ctx, formatter)
