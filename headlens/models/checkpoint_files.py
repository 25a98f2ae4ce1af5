"""The files of a checkpoint, in a folder or on the hub, and its tokenizer."""

from __future__ import annotations

import hashlib
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from headlens.errors import ModelError, counted, listed
from headlens.nested_text import conform, parse_json
from headlens.unchanged_files import file_hashes
from headlens.weights.head_map import FILE

# Names of configurations and tokenizers of all kinds.
_SETTINGS = ("*config*.json", "*token*", "*vocab*", "merges.txt", "*.model", "*.spm", "*.bpe", FILE)


class StoredWeight(NamedTuple):
    """A weight of a checkpoint: whether it holds whole numbers, as quantised ones do, and how many numbers."""

    is_integer: bool
    numbers: int


@dataclass(frozen=True)
class CheckpointFiles:
    """Where a checkpoint is, and how its files may be had.

    Args:
        place: a folder or hub id.
        revision: branch, tag or commit on the hub.
        offline: whether only what is on this machine is looked at.
        trusts_code: whether code that comes with it may be run.
        reads_pickles: whether weights may be unpickled.
    """

    place: str
    revision: str = "main"
    offline: bool = False
    trusts_code: bool = False
    reads_pickles: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments with which transformers fetches files."""
        return {"revision": self.revision, "local_files_only": self.offline}

    @property
    def trusting(self) -> dict[str, Any]:
        """Arguments with which `from_pretrained` fetches what may run code."""
        return {**self.arguments, "trust_remote_code": self.trusts_code}

    def path(self, name: str) -> Path | None:
        """Returns where a file is on this machine, fetched if need be; None if there is none."""
        with suppress(OSError):
            if (file := cached_file(self.place, name, **self.arguments)) is not None:
                return Path(file)
        return None

    def weights(self) -> dict[str, StoredWeight]:
        """Returns all weights by name, without their numbers.

        Raises:
            ModelError: if a file that the index of the others names is not there.
            ValueError: if the index lists what is no file beside it.
        """
        found: dict[str, StoredWeight] = {}
        for path in self._weight_files():
            if path.suffix == ".safetensors":
                with safe_open(path, "pt") as file:
                    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                    found |= {
                        name: StoredWeight(part.get_dtype()[0] in "IU", math.prod(part.get_shape()))
                        for name, part in slices.items()
                    }
            else:
                stored = torch.load(path, map_location="meta", weights_only=True)
                tensors = {name: tensor for name, tensor in stored.items() if isinstance(tensor, Tensor)}
                found |= {
                    name: StoredWeight(not t.is_floating_point() and t.dtype != torch.bool, t.numel())
                    for name, t in tensors.items()
                }
        return found

    def _weight_files(self) -> list[Path]:
        """Returns the files that transformers takes the weights of; none where it finds none."""
        for name in ("model.safetensors", *(["pytorch_model.bin"] if self.reads_pickles else [])):
            if (single := self.path(name)) is not None:
                return [single]
            index = self.read_json(f"{name}.index.json")
            if isinstance(index, dict) and "weight_map" in index:
                shards = conform(index["weight_map"], dict[str, str], f"weight_map of {name}.index.json")
                for shard in set(shards.values()):
                    # transformers would follow the name to any place of this machine.
                    if shard in ("", ".", "..") or re.search(r"[\\/:\0]", shard):
                        raise ValueError(f"{name}.index.json lists {shard[:60]!r}, which is not a file next to it")
                paths = {shard: self.path(shard) for shard in sorted(set(shards.values()))}
                if missing := [shard for shard, path in paths.items() if path is None]:
                    raise ModelError(
                        f"{self.place}: of the {counted(len(paths), 'file')} of weights that {name}.index.json names, "
                        f"{len(missing)} cannot be found: {listed(missing)}.",
                        "Copy or download all of them.",
                    )
                return [path for path in paths.values() if path is not None]
        return []

    def settings_hash(self) -> str:
        """Returns a hash of the files of a folder that say how its weights are used and how text is cut into tokens.

        On the hub a revision tells the same.
        """
        files = {path.name: path for pattern in _SETTINGS for path in Path(self.place).glob(pattern)}
        return hashlib.sha256(repr(sorted(file_hashes(files).items())).encode()).hexdigest()

    def read_json(self, name: str) -> Any:
        """Returns the content of a JSON file; None where there is none, or one that cannot be read."""
        file = self.path(name)
        with suppress(OSError, ValueError):
            return None if file is None else parse_json(file.read_text(encoding="utf-8"))
        return None
