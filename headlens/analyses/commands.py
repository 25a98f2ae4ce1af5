"""All commands by name: `COMMAND` in the options of every analysis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

import headlens.analyses
from headlens.options import CommandOptions


@cache
def commands() -> Mapping[str, CommandOptions]:
    """Returns the commands by the name that is typed; nothing heavy is imported for them."""
    return _Commands()


class _Commands(Mapping[str, CommandOptions]):
    """The commands, whose options are imported for one that is looked up, or for all."""

    def __init__(self) -> None:
        packages = (p.name for p in iter_modules(headlens.analyses.__path__) if p.ispkg)
        self._unread = [name for name in packages if find_spec(f"{headlens.analyses.__name__}.{name}.options")]
        self._read: dict[str, CommandOptions] = {}

    def __getitem__(self, name: str) -> CommandOptions:
        # The folder of a command has its name, or part of it: train_dam is in dam, and train in training.
        likely = name.replace("-", "_")
        for package in sorted(self._unread, key=lambda p: (p != likely, p not in likely and likely not in p)):
            if name in self._read:
                break
            command: CommandOptions = import_module(f"{headlens.analyses.__name__}.{package}.options").COMMAND
            self._unread.remove(package)
            self._read[command.name] = command
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        self.get("")  # no command has this name: all are read
        return iter(sorted(self._read))

    def __len__(self) -> int:
        return len(list(iter(self)))
