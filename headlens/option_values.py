"""What is made of the values of options that are given as text, or as a TOML file holds them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headlens.errors import OptionError

_RANGE, _MOST = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?"), 10_000
_LONGEST_PATH, _LONGEST_NAME = 4095, 255  # that Linux can have


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the parts of a text with commas, each once; of a sequence its members."""
    parts = (
        given.split(",") if isinstance(given, str) else map(str, given) if isinstance(given, Sequence) else [str(given)]
    )
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def names_or_none(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of a list, where `none` stands for none of them."""
    return tuple(name for name in names(given) if name != "none")


def whole_numbers(given: Any) -> tuple[int, ...]:
    """Returns the whole numbers of a text with commas, or of a sequence; a number alone is one of them.

    Raises:
        ValueError: if one of them is none.
    """
    try:
        return tuple(int(part) for part in names(given))
    except ValueError as error:
        raise ValueError(f"{given!r} is not a list of whole numbers. Write 3,10,20,30.") from error


def whole_numbers_and_ranges(given: Any) -> tuple[int, ...]:
    """Returns the whole numbers from 0 on of a text with commas, in which `0-4` stands for 0 to 4, each once.

    Raises:
        ValueError: if a part is no number and no range, or a range has no number or more than `_MOST`.
    """
    distinct: dict[int, None] = {}
    for part in names(given):
        match = _RANGE.fullmatch(part)
        first, last = (-1, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if match is None or not 0 <= last - first < _MOST:
            raise ValueError(f"{part!r} is neither a whole number nor a range. Write 0,3,7 or 0-4.")
        distinct |= dict.fromkeys(range(first, last + 1))
    return tuple(distinct)


def numbers(given: Any) -> tuple[float, ...]:
    """Returns the numbers of a text with commas, or of a sequence; a number alone is one of them.

    Raises:
        ValueError: if one of them is none.
    """
    try:
        parsed = tuple(float(part) for part in names(given))
    except ValueError as error:
        raise ValueError(f"{given!r} is not a list of numbers. Write 0.03,0.1,0.3.") from error
    if not all(map(math.isfinite, parsed)):
        raise ValueError(f"{given!r} contains a number that is not finite.")
    return parsed


def share(given: Any) -> float:
    """Returns a number from 0 to 1; NaN, which compares with nothing, is none.

    Raises:
        ValueError: for anything else.
    """
    number = _number(given)
    if not 0 <= number <= 1:
        raise ValueError(f"{given} is not a number from 0 to 1.")
    return number


def positive_share(given: Any) -> float:
    """Returns a number above 0 and up to 1.

    Raises:
        ValueError: for anything else.
    """
    if not share(given):
        raise ValueError(f"{given} is not a number above 0 and up to 1.")
    return share(given)


def positive_shares(given: Any) -> tuple[float, ...]:
    """Returns the numbers of a text with commas, or of a sequence, each above 0 and up to 1; errors as for one."""
    return tuple(map(positive_share, numbers(given)))


def folder(given: Any) -> Path:
    """Returns a path, `~` as the home folder; an empty text, which would be the current folder, is none.

    Raises:
        ValueError: for an empty text, or the home of nobody.
    """
    if given == "":
        raise ValueError("the name of the folder is empty. Write . for the current folder.")
    try:
        return Path(given).expanduser()
    except (RuntimeError, TypeError) as error:  # no such user; a TOML file may give anything
        raise ValueError(f"{given} is not a valid path: {error}") from error


def check_text(flag: str, text: str, *, is_place: bool) -> None:
    """Refuses a text that no option means, before anything is read or written.

    Args:
        flag: the option, for the message.
        text: what is given.
        is_place: whether it names a file, folder, model or corpus.

    Raises:
        OptionError: for NUL or half a character, and for a name that is blank or longer than file systems have.
    """
    problem = ""
    try:
        name = os.fsencode(text)
    except UnicodeEncodeError:
        name, problem = b"", "contains half a character (a lone surrogate)"
    if b"\0" in name:
        problem = "holds a NUL character"
    elif is_place and text.isspace():
        problem = "is blank"
    elif is_place and (len(name) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in name.split(b"/"))):
        problem = f"is a name of {len(name):,} bytes"
    if problem:
        raise OptionError(f"{flag} {problem}.", "Give a name." if is_place else "Write plain text.")


def text_of_file(path: Path, flag: str, advice: str) -> str:
    """Returns the text of a file that an option names.

    Raises:
        OptionError: if it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
        raise OptionError(f"{flag}: {path} {reason}.", advice) from error


def amount(given: Any) -> float:
    """Returns a number of at least 0, and finite.

    Raises:
        ValueError: for anything else.
    """
    number = _number(given)
    if not 0 <= number < math.inf:
        raise ValueError(f"{given} is not a finite number of 0 or more.")
    return number


def _number(given: Any) -> float:
    try:
        return float(given)
    except (TypeError, ValueError) as error:  # a TOML file may give anything
        raise ValueError(f"{given!r} is not a number.") from error
