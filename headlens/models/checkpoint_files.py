"""The files of a checkpoint, in a folder or on the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers.utils.hub import cached_file

from headlens.nested_text import conform, parse_json

_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class CheckpointFiles:
    """Where a checkpoint is, and how its files may be had.

    Args:
        place: a folder or hub id.
        revision: branch, tag or commit on the hub.
        offline: whether only what is on this machine is looked at.
        trusts_code: whether code that comes with it may be run.
    """

    place: str
    revision: str = "main"
    offline: bool = False
    trusts_code: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments with which transformers fetches files."""
        return {"revision": self.revision, "local_files_only": self.offline}

    @property
    def trusting(self) -> dict[str, Any]:
        """The same for what may run code: arguments of `from_pretrained`."""
        return {**self.arguments, "trust_remote_code": self.trusts_code}

    def path(self, name: str) -> Path | None:
        """Returns where a file is on this machine, fetched if need be; None if there is none."""
        try:
            file = cached_file(self.place, name, **self.arguments)
        except OSError:
            return None
        return None if file is None else Path(file)

    def first(self, *names: str) -> str | None:
        """Returns the first name that a file has; None if there is none of them."""
        return next((name for name in names if self.path(name) is not None), None)

    def weights(self) -> list[Path]:
        """Returns where the safetensors files of the weights are: the shards that an index lists, or the only one.

        Raises:
            ValueError: if the index lists what is no file beside it.
        """
        index = self.read_json(_INDEX)
        listed = index.get("weight_map", {}) if isinstance(index, dict) else {}
        shards = set(conform(listed, dict[str, str], f"weight_map of {_INDEX}").values()) or {"model.safetensors"}
        for name in shards:
            # transformers would follow the name to any place of this machine.
            if name in ("", ".", "..") or re.search(r"[\\/:\0]", name):
                raise ValueError(f"{_INDEX} lists {name[:60]!r}, which is no file beside it")
        return [path for path in map(self.path, sorted(shards)) if path is not None]

    def tensor_types(self) -> dict[str, str]:
        """Returns the types of the weights in safetensors files by name, as `F32` or `I8`; sorted."""
        found: dict[str, str] = {}
        for path in self.weights():
            with safe_open(path, "pt") as file:
                found |= {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 - no mapping
        return dict(sorted(found.items()))

    def read_json(self, name: str) -> Any:
        """Returns the content of a JSON file; None where there is none, or one that cannot be read."""
        file = self.path(name)
        try:
            return None if file is None else parse_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
