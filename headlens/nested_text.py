"""Values as text from anybody: JSON, TOML, and the lists and mappings that a cell of a table holds.

Whatever is wrong with a text, or with what it holds, is a ValueError. Cells hold JSON, Python as pandas writes it, and
arrays as numpy shows them.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}


def _parsed(load: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        return load(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_json(text: str | bytes) -> Any:
    """Returns the content of a JSON text.

    Raises:
        ValueError: if it is none, nested more deeply than Python can follow, or holds a number of thousands of digits.
    """
    return _parsed(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """Returns the content of a TOML text; errors as in `parse_json`."""
    content: dict[str, Any] = _parsed(tomllib.loads, text)
    return content


def conform(value: Any, kind: Any, place: str = "the content") -> Any:
    """Returns a value of JSON or TOML as a type has it: lists for tuples, objects for dataclasses.

    Args:
        value: what was read.
        kind: a dataclass, a plain type, a list, tuple or mapping of such, a union, a Literal, or Any.
        place: words for the value in errors, such as `site 3`.

    Raises:
        ValueError: at the first part of another type, or that is missing or unknown; it names the part.
    """
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Any:
        return value
    if origin in (Union, UnionType):
        # The first that fits is meant; errors tell of the last one but null.
        kinds = sorted(arguments, key=lambda kind: kind is not NoneType)
        return conform(value, next((kind for kind in kinds if fits(value, kind)), kinds[-1]), place)
    if origin is Literal:
        if value in arguments:
            return value
        raise ValueError(f"{place} is {_shown(value)}, not one of {', '.join(map(str, arguments))}")
    if is_dataclass(origin):
        return _conform_fields(value, origin, place)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        inner = arguments[1] if arguments else Any
        return {k: conform(v, inner, f"{k} of {place}") for k, v in _of_type(value, dict, "an object", place).items()}
    if origin not in _WORDS:
        inner, items = arguments[0] if arguments else Any, _of_type(value, list, "a list", place)
        made = (conform(item, inner, f"item {i} of {place}") for i, item in enumerate(items, 1))
        return list(made) if origin is list else tuple(made)
    # Whole numbers are numbers, too; true and false are none.
    types = (int, float) if origin is float else origin
    is_kind = isinstance(value, types) and (origin is bool or not isinstance(value, bool))
    if not is_kind or (type(value) is int and origin is float and abs(value) > sys.float_info.max):
        raise ValueError(f"{place} is {_shown(value)}, not {_WORDS[origin]}")
    return value


def fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is of a type, see `conform`."""
    try:
        conform(value, kind)
    except ValueError:
        return False
    return True


def _conform_fields(value: Any, kind: Any, place: str) -> Any:
    hints, given = get_type_hints(kind), _of_type(value, dict, "an object", place)
    known = {own.name: own for own in fields(kind)}
    if unknown := sorted(given.keys() - known.keys()):
        raise ValueError(f"{place} has {unknown[0][:60]!r}, which is not one of {', '.join(known)}")
    for name, own in known.items():
        if name not in given and own.default is MISSING and own.default_factory is MISSING:
            raise ValueError(f"{place} has no {name}")
    return kind(**{name: conform(part, hints[name], f"{name} of {place}") for name, part in given.items()})


def _of_type(value: Any, kind: type, words: str, place: str) -> Any:
    if isinstance(value, kind):
        return value
    raise ValueError(f"{place} is {_shown(value)}, not {words}")


def _shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):  # TOML may hold a number of thousands of digits in hexadecimal
        return "too long or deep to be shown"


_MOST_CHARACTERS, _MOST_LEVELS = 1_000_000, 20
_OPENED = re.compile(r"[\[{(]\s*['\"\[{(]|(\w+\.)?\w+\(\s*(\w+=|['\"\[{(])")
_ENCLOSED = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)
_CALL = re.compile(r"((np|numpy)\.)?(array|str_|u?int\d+|float\d+)")
_NAMES = {"true": True, "True": True, "false": False, "False": False} | dict.fromkeys(("null", "None", "NaN", "nan"))
_ENDS = {"[": "]", "(": ")"}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")(?!['"])
        |(?P<number>[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?)(?![\w.+-])
        |(?P<ignored>,\s*(?:dtype|shape)=(?:[\w.]+|'[^']*'|\([\d,\ ]*\)))
        |(?P<name>[A-Za-z_][\w.]*)
        |(?P<mark>[\[\](){}:,])
    )""",
    re.VERBOSE | re.DOTALL,
)


def looks_nested(text: str) -> bool:
    """Whether a text looks like a list, a mapping or an array, be it whole or cut off, and not like prose."""
    text = text.strip()
    return bool(_OPENED.match(text) or _ENCLOSED.fullmatch(text))


def holds_texts(text: str) -> bool:
    """Whether a text is a list or an array with texts in it, or a mapping; `[1]` and `("So.")` stand in prose, too."""
    text = text.strip()
    if text.startswith("(") or not looks_nested(text):
        return False
    try:
        return _has_texts(nested_value(text))
    except ValueError:
        return False


def nested_value(text: str) -> Any:
    """Reads a text as JSON, or as literals of Python; arrays and tuples become lists. Nothing of it is executed.

    Elements without commas between them are several, as numpy shows them: `['a' 'b']`.

    Args:
        text: of at most 1,000,000 characters and 20 levels.

    Raises:
        ValueError: for anything else, with the reason.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"it has more than {_MOST_CHARACTERS:,} characters")
    return _LiteralReader(text).whole()


class _LiteralReader:
    """Reads one value from a text, token by token."""

    def __init__(self, text: str) -> None:
        self._left = [("", ""), *reversed(list(_tokens(text.strip())))]  # kind and text, the next one last

    def whole(self) -> Any:
        """Returns the value that the whole text is."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a backslash that begins no escape
            value = self._value(_MOST_LEVELS)
        if len(self._left) > 1:
            raise ValueError(f"{self._next!r} follows after its end")
        return value

    @property
    def _next(self) -> str:
        return self._left[-1][1]

    def _took(self, mark: str) -> bool:
        found = self._next == mark
        if found:
            self._left.pop()
        return found

    def _value(self, levels: int) -> Any:
        kind, text = self._left.pop() if self._next else ("", "")
        if kind == "string":
            return _unescaped(text)
        if kind == "number":
            return int(text) if text.lstrip("+-").isdecimal() else float(text)
        if text in _NAMES:
            return _NAMES[text]
        if not levels:
            raise ValueError("it is nested too deeply")
        if text == "{":
            return self._mapping(levels - 1)
        if text in _ENDS:
            return self._items(_ENDS[text], levels - 1)
        if _CALL.fullmatch(text) and self._took("("):
            arguments = self._items(")", levels - 1)
            if len(arguments) == 1:
                return arguments[0]
        raise ValueError(f"{text!r} is not a value" if text else "it is cut off")

    def _items(self, end: str, levels: int) -> list[Any]:
        found = []
        while not self._took(end):
            found.append(self._value(levels))
            self._separate("" if end == "]" else end)
        return found

    def _mapping(self, levels: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._took("}"):
            if self._left[-1][0] != "string":
                raise ValueError(f"the key {self._next!r} is not a string" if self._next else "it is cut off")
            key = self._value(levels)
            if not self._took(":"):
                raise ValueError(f"there is no colon after {key!r}")
            value = self._value(levels)
            if key in found:
                raise ValueError(f"the key {key!r} is given twice")
            found[key] = value
            self._separate("}")
        return found

    def _separate(self, end: str) -> None:
        """Goes on behind a comma, which must be there unless `end` follows; arrays, without an `end`, need none."""
        if not self._took(",") and end and self._next != end:
            raise ValueError(f"there is no comma before {self._next!r}")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yields kind and text of every token; what says how an array is stored is left out."""
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise ValueError(f"{text[place : place + 10].strip()!r} is neither JSON nor Python")
        place = found.end()
        if found.lastgroup not in (None, "ignored"):
            yield str(found.lastgroup), found[str(found.lastgroup)]


def _unescaped(token: str) -> str:
    """Returns the text of a token; JSON alone has pairs of surrogates and escaped slashes."""
    with contextlib.suppress(ValueError):
        return str(json.loads(token))
    try:
        return str(ast.literal_eval(token))
    except (SyntaxError, Warning) as error:
        raise ValueError(f"the string {token[:20]} is not valid Python") from error


def _has_texts(value: Any) -> bool:
    """Whether there is a text in a list, however deep, or anything in a mapping."""
    if isinstance(value, list):
        return any(isinstance(inner, str) or _has_texts(inner) for inner in value)
    return isinstance(value, Mapping) and bool(value)
