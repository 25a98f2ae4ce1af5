"""What every request has to offer."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """A request as JSON can hold it: tuples as lists, paths as text."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value
