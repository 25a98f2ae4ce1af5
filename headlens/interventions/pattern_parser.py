"""Patterns in words: `window:3|global:1|random:2`, `strided`, `bigbird:window=1,keys=3,seed=7`."""

from __future__ import annotations

import re
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from headlens.errors import OptionError
from headlens.interventions.patterns import (
    BigBird,
    FixedPattern,
    Full,
    Global,
    LogSparse,
    Longformer,
    Pattern,
    Random,
    Star,
    Strided,
    Union,
    Window,
)

_KINDS: tuple[type[Pattern], ...] = (
    Strided,
    FixedPattern,
    Longformer,
    LogSparse,
    BigBird,
    Star,
    Window,
    Global,
    Random,
    Full,
)
PATTERNS = {kind.name: kind for kind in _KINDS}
_FORM = "Write a pattern such as window:3, several with | between them, parameters as in bigbird:window=1,keys=2."


def parse_pattern(text: str) -> Pattern:
    """Read a pattern, or several with `|` between them, of which any may allow a position.

    A pattern is its name, and after a colon its parameters in order or by name, with commas between them.

    Raises:
        OptionError: for what is no pattern, with the pattern that may have been meant.
    """
    found = [_single(part.strip(), text) for part in text.split("|")]
    return found[0] if len(found) == 1 else Union(tuple(found))


def _single(text: str, whole: str) -> Pattern:
    name, colon, values = (part.strip() for part in text.partition(":"))
    if not name or (colon and not values):
        lacking = "a parameter" if name else "a name"
        raise OptionError(f"{whole!r} is no attention pattern: {lacking} is missing.", _FORM)
    kind = PATTERNS.get(name.lower())
    if kind is None:
        close = get_close_matches(name.lower(), PATTERNS, n=1)
        meant = f"Did you mean {close[0]}? " if close else ""
        raise OptionError(f"There is no attention pattern {name!r}.", f"{meant}Patterns: {', '.join(PATTERNS)}.")
    return kind(**_parameters(kind, values))


def _parameters(kind: type[Pattern], text: str) -> dict[str, int]:
    names = [own.name for own in fields(kind)]  # type: ignore[arg-type]  # all patterns are dataclasses
    given: dict[str, int] = {}
    for place, part in enumerate(text.split(",") if text else ()):
        name, equals, value = (own.strip() for own in part.rpartition("="))
        if not equals:
            if place >= len(names):
                raise OptionError(f"{kind.name}: {part.strip()!r} is one parameter too many.", _has(kind, names))
            name = names[place]
        if name not in names:
            close = get_close_matches(name, names, n=1)
            meant = f"Did you mean {close[0]}? " if close else ""
            raise OptionError(f"{kind.name} has no parameter {name!r}.", meant + _has(kind, names))
        if name in given:
            raise OptionError(f"{kind.name}: {name} is given twice.", _has(kind, names))
        given[name] = _whole(kind, name, value)
    return given


def _whole(kind: type[Pattern], name: str, value: str) -> int:
    # int() also takes 3_0 and digits of other scripts.
    if not re.fullmatch(r"-?[0-9]+", value):
        raise OptionError(f"{kind.name}: {name} is {value!r}, which is no whole number.", _FORM)
    return int(value)


def _has(kind: type[Pattern], names: list[str]) -> str:
    defaults: dict[str, Any] = {own.name: own.default for own in fields(kind)}  # type: ignore[arg-type]
    if not names:
        return "It has none."
    return f"In order it has {', '.join(f'{name} ({defaults[name]})' for name in names)}."
