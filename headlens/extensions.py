"""What other packages add to headlens by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from headlens.errors import ExtensionError


def load_extension(point: EntryPoint) -> Any:
    """Returns what an entry point of another package names.

    Raises:
        ExtensionError: if it cannot be imported, with the package that it comes from.
    """
    try:
        return point.load()
    except Exception as error:
        package = "" if point.dist is None else f" {point.dist.name}"
        raise ExtensionError(
            f"The entry point {point.name!r} of {point.group} ({point.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}.",
            f"Mend the package{package} that registers it, or take it away with pip uninstall{package}.",
        ) from error
