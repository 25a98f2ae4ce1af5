"""Values as text from anybody: JSON, TOML, and the JSON that a cell of a table holds.

Whatever is wrong with a text, or with what it holds, is a ValueError.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
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
    known = {field.name: field for field in fields(kind)}
    if unknown := sorted(given.keys() - known.keys()):
        raise ValueError(f"{place} has {unknown[0][:60]!r}, which is not one of {', '.join(known)}")
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
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


_MOST_CHARACTERS = 1_000_000
# Names of arguments are of lower case and lists begin with a text, a number or a list: "CC(C=O)" and "nc([C@H]" are
# chemistry.
_OPENED = re.compile(r"[\[{(]\s*['\"\[{(]|(\w+\.)?\w+\(\s*([a-z_]\w+=|['\"{]|[\[(]\s*['\"\[{(\d.-])")
_ENCLOSED = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)


def looks_nested(text: str) -> bool:
    """Whether a text looks like a list, a mapping or an array, be it whole or cut off, and not like prose."""
    text = text.strip()
    return bool(_OPENED.match(text) or _ENCLOSED.fullmatch(text))


def holds_texts(text: str) -> bool:
    """Whether a text is a list, an array or a mapping of texts; `[1]`, `[sic]` and `("So.")` stand in prose, too."""
    text = text.strip()
    if text.startswith("(") or not looks_nested(text):
        return False
    try:
        value = nested_value(text)
    except ValueError:
        return bool(_OPENED.match(text) and _ENCLOSED.search(text))  # as Python, numpy or another program shows one
    return bool(value) and (isinstance(value, Mapping) or _has_texts(value))


def nested_value(text: str) -> Any:
    """Reads the JSON that a cell of a table holds.

    Args:
        text: of at most 1,000,000 characters.

    Raises:
        ValueError: for anything else.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"it has more than {_MOST_CHARACTERS:,} characters")
    return parse_json(text)


def _has_texts(value: Any) -> bool:
    """Whether there is a text in a list, however deep."""
    return isinstance(value, str) or (isinstance(value, list) and any(map(_has_texts, value)))
