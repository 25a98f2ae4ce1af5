"""Sums over a corpus: how they are added, merged and saved, once for all metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headlens.errors import ExtensionError

Array = npt.NDArray[Any]
# (metric, place such as "encoder.3", name of the sum)
Key = tuple[str, str, str]


class Accumulator:
    """Named sums, float64 or int64, that only ever grow by addition.

    What is added stays pending until `commit`; `discard` forgets it. Merging adds: shards of a corpus may be
    measured apart, in any order.
    """

    def __init__(self) -> None:
        self._done: dict[Key, Array] = {}
        self._pending: list[tuple[Key, Tensor]] = []
        self._next: dict[Key, Array] = {}

    def add(self, metric: str, place: str, sums: Mapping[str, Tensor]) -> None:
        """Add sums, on any device; they are fetched later."""
        self._pending += [((metric, place, name), value) for name, value in sums.items()]

    def fetch(self) -> None:
        """Do what may fail of adding: fetch the sums from their device and add them up."""
        grown = dict(self._next)
        for (key, _), value in zip(self._pending, fetched([value for _, value in self._pending]), strict=True):
            kind = np.float64 if np.issubdtype(value.dtype, np.floating) else np.int64
            _grow(grown, key, value.astype(kind), self._done)
        self._next, self._pending = grown, []

    def commit(self) -> None:
        """Fetches the pending sums and adds them to the committed ones, so that `discard` no longer removes them."""
        self.fetch()
        self._done.update(self._next)
        self._next = {}

    def discard(self) -> None:
        """Forgets what was added since the last commit."""
        self._pending, self._next = [], {}

    def of(self, metric: str) -> dict[str, dict[str, Array]]:
        """Sums of one metric: place -> name -> array."""
        sums: dict[str, dict[str, Array]] = {}
        for (owner, place, name), value in self._done.items():
            if owner == metric:
                sums.setdefault(place, {})[name] = value
        return sums

    def arrays(self) -> dict[str, Array]:
        """The committed sums by one name each, as `add_arrays` takes them."""
        return {"|".join(key): value for key, value in self._done.items()}

    def add_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Add what `arrays` of another part of the corpus gave."""
        grown: dict[Key, Array] = {}
        for name, value in arrays.items():
            metric, place, part = name.split("|")
            _grow(grown, (metric, place, part), value, self._done)
        self._done.update(grown)

    def clear(self) -> None:
        """Removes all sums, both the committed and the pending ones."""
        self._done, self._pending, self._next = {}, [], {}

    def __iter__(self) -> Iterator[Key]:
        return iter(self._done)


def fetched(tensors: Sequence[Tensor]) -> list[Array]:
    """Copies tensors from their devices, all of one type together: a copy for each would wait for a GPU each time."""
    together: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, tensor in enumerate(tensors):
        together.setdefault((tensor.device, tensor.dtype), []).append(number)
    arrays: dict[int, Array] = {}
    for numbers in together.values():
        parts = [tensors[i].detach() for i in numbers]
        pieces = torch.split(torch.cat([part.reshape(-1) for part in parts]).cpu(), [part.numel() for part in parts])
        arrays |= {i: piece.view(part.shape).numpy() for i, part, piece in zip(numbers, parts, pieces, strict=True)}
    return [arrays[i] for i in range(len(tensors))]


def _grow(grown: dict[Key, Array], key: Key, value: Array, done: Mapping[Key, Array]) -> None:
    """Add a value to the pending sums, or else to the committed ones.

    Raises:
        ExtensionError: if it has another shape.
    """
    before = grown.get(key, done.get(key))
    if before is not None and before.shape != value.shape:
        raise ExtensionError(
            f"The metric {key[0]} measures {key[2]} of shape {value.shape} after {before.shape}.",
            "measure sums over everything that differs between batches: texts, queries and keys.",
        )
    grown[key] = value.copy() if before is None else before + value
