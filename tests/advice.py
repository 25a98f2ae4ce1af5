"""What an error advises, held against the program: options that it names must be those of the commands it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

import typer
from built_commands import command_line
from typer.core import TyperGroup

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
_COMMAND = re.compile(r"\bheadlens ([a-z][a-z-]*[a-z])")
_OTHERS = re.compile(r"(?:pip|python|hf|git|torchrun) [^\n;,]*")  # command lines of other programs


@cache
def options() -> dict[str, set[str]]:
    """The options of every command, and those of the program itself under the empty name."""
    group = command_line()
    assert isinstance(group, TyperGroup)
    found = {"": {"--help", *(flag for own in group.params for flag in (*own.opts, *own.secondary_opts))}}
    for name, command in walk(group):
        found.setdefault(name, {"--help"}).update(
            flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)
        )
    return found


def walk(group: TyperGroup, first: str = "") -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Commands by their first word; those below others count as them."""
    yield first, group  # type: ignore[misc]
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from walk(command, first or name)
        else:
            yield first or name, command  # type: ignore[misc]


def misleading(words: Sequence[str], said: str) -> list[str]:
    """Options that an error names and that neither the command that was called nor one that it names has.

    Args:
        words: of the command line; what the user wrote may be repeated.
        said: the error.
    """
    known = options()
    text = _OTHERS.sub("", " ".join(said.replace("│", " ").split()))
    commands = {name for name in _COMMAND.findall(text) if name in known} | {"", *words[:1]}
    there = set().union(*(known.get(name, set()) for name in commands))
    given = {word.partition("=")[0] for word in words}
    return [name for name in _OPTION.findall(text) if name not in there | given]
