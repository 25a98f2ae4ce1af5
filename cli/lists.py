"""How commands read options that take a list, `--heads encoder.0.1,encoder.2.3`, and which options their help shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import typer
from typer.core import TyperCommand

from headlens.visible_text import visible_text

_ALL = "headlens.all"
_ALWAYS = ("out", "dry_run", "resume", "config", "help_all", "help")


class ListsOnce(TyperCommand):
    """A command that refuses a list that is given a second time, which would silently take the place of the first.

    Lists are what the help calls by a plural: HEADS, NAMES, NUMBERS. Of the options of a large command `--help` shows
    those that most people need, in one panel, and `--help-all` every one.
    """

    first: tuple[str, ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as ever, and look at what was given how often."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for parameter, times in Counter(given).items():
            metavar = getattr(parameter, "metavar", None) or ""
            if times > 1 and metavar.isupper() and metavar.endswith("S") and not getattr(parameter, "multiple", True):
                option = parameter.opts[0]
                raise typer.BadParameter(
                    f"{option} is given {times} times. Give it once, with values separated by commas: {option} "
                    "ONE,ANOTHER.",
                    ctx=ctx,
                )
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the defaults of the command, and not those of a file of `--config`, which may come from anybody."""
        ctx.default_map = None
        with self._brief() if self.first and not ctx.meta.get(_ALL) else nullcontext():
            super().format_help(ctx, formatter)

    @contextmanager
    def _brief(self) -> Iterator[None]:
        """Hide what few people need from the help that is written meanwhile; a shell still completes it."""
        options: list[Any] = [own for own in self.params if own.param_type_name == "option"]
        before = [(own, own.hidden, own.rich_help_panel) for own in options]
        for own in options:
            own.hidden = own.hidden or own.name not in (*self.first, *_ALWAYS)
            own.rich_help_panel = None
        try:
            yield
        finally:
            for own, hidden, panel in before:
                own.hidden, own.rich_help_panel = hidden, panel


def show_all(ctx: typer.Context, given: bool) -> None:
    """Print the help with every option of a command, and exit."""
    if given:
        ctx.meta[_ALL] = True
        typer.echo(visible_text(ctx.get_help()))
        raise typer.Exit
