"""JSON and TOML from anybody: whatever is wrong with a text is a ValueError, however deep or long it is."""

from __future__ import annotations

import json
import tomllib
from typing import Any

_TOO_DEEP = "nested too deeply"


def parse_json(text: str | bytes) -> Any:
    """Returns the content of a JSON text.

    Raises:
        ValueError: if it is none, nested more deeply than Python can follow, or holds a number of thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error


def parse_toml(text: str) -> dict[str, Any]:
    """Returns the content of a TOML text; errors as in `parse_json`."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
