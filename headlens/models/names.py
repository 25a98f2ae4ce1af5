"""Short names of models, for titles and tables."""

from __future__ import annotations

from pathlib import Path


def short_model_name(name: str) -> str:
    """The last part of an id or folder; of the folder `model` that `headlens train` wrote, the name of its run."""
    path = Path(name.rstrip("/"))
    return path.parent.name if path.name == "model" and path.parent.name not in ("", "..") else path.name
