"""Sums over a corpus: how they are added, merged and saved, once for all metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[Any]
# (metric, place such as "encoder.3", name of the sum)
Key = tuple[str, str, str]


class Totals:
    """Named sums, float64 or int64, that only ever grow by addition.

    What is added stays pending until `commit`; `discard` forgets it. Merging adds: shards of a corpus may be
    measured apart, in any order.
    """

    def __init__(self) -> None:
        self._done: dict[Key, Array] = {}
        self._pending: list[tuple[Key, Tensor]] = []

    def add(self, metric: str, place: str, sums: Mapping[str, Tensor]) -> None:
        """Add sums, on any device; they are fetched when committed."""
        self._pending += [((metric, place, name), value) for name, value in sums.items()]

    def commit(self) -> None:
        """What was added counts."""
        pending, self._pending = self._pending, []
        for key, value in pending:
            self._grow(key, _array(value))

    def discard(self) -> None:
        """What was added since the last commit is forgotten."""
        self._pending = []

    def merge(self, other: Totals) -> None:
        """Add what another part of the corpus gave."""
        self.add_arrays(other.arrays())

    def of(self, metric: str) -> dict[str, dict[str, Array]]:
        """Sums of one metric: place -> name -> array."""
        found: dict[str, dict[str, Array]] = {}
        for (owner, place, name), value in self._done.items():
            if owner == metric:
                found.setdefault(place, {})[name] = value
        return found

    def arrays(self) -> dict[str, Array]:
        """The committed sums by one name each, as `add_arrays` takes them."""
        return {"|".join(key): value for key, value in self._done.items()}

    def add_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Add what `arrays` of another part of the corpus gave."""
        for name, value in arrays.items():
            metric, place, part = name.split("|")
            self._grow((metric, place, part), value)

    def clear(self) -> None:
        """Forget everything."""
        self._done, self._pending = {}, []

    def __iter__(self) -> Iterator[Key]:
        return iter(self._done)

    def _grow(self, key: Key, value: Array) -> None:
        before = self._done.get(key)
        self._done[key] = value.copy() if before is None else before + value


def _array(value: Tensor) -> Array:
    kind = np.float64 if value.is_floating_point() else np.int64
    array: Array = value.detach().cpu().numpy().astype(kind)
    return array
