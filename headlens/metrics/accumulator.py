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


def stays(device: torch.device) -> bool:
    """Whether sums are added up on a device, so that nobody waits for it: it has to add float64."""
    return device.type == "cuda"


class _DeviceTotals:
    """Totals of some sums on a device, behind each other in one tensor of float64 and one of integers.

    Args:
        layout: key and shape of every sum, and whether it is of float64.
        totals: by whether they are of float64.
    """

    def __init__(self, layout: Sequence[tuple[Key, torch.Size, bool]], done: Mapping[Key, Array], device: Any) -> None:
        self.layout = layout
        parts: dict[bool, list[Array]] = {True: [], False: []}
        for key, shape, is_float in layout:
            before = done.get(key)
            _check_shape(key, shape, before)
            parts[is_float].append(np.zeros(shape) if before is None else before)
        kinds = {True: np.float64, False: np.int64}
        self.totals = {
            is_float: torch.from_numpy(np.concatenate([a.ravel() for a in arrays]).astype(kinds[is_float])).to(device)
            for is_float, arrays in parts.items()
            if arrays
        }

    def flat(self, values: Sequence[Tensor]) -> dict[bool, Tensor]:
        """The values of the layout as they are added to the totals."""
        kinds = {True: torch.float64, False: torch.int64}
        return {
            kind: torch.cat(
                [
                    v.reshape(-1).to(kinds[kind])
                    for v, (*_, is_float) in zip(values, self.layout, strict=True)
                    if is_float is kind
                ]
            )
            for kind in self.totals
        }

    def arrays(self) -> dict[Key, Array]:
        """The totals by key, after waiting for the device."""
        arrays: dict[Key, Array] = {}
        for kind, total in self.totals.items():
            parts = [(key, shape) for key, shape, is_float in self.layout if is_float is kind]
            pieces = torch.split(total.to("cpu", copy=True), [shape.numel() for _, shape in parts])
            arrays |= {key: piece.view(shape).numpy() for (key, shape), piece in zip(parts, pieces, strict=True)}
        return arrays


class Accumulator:
    """Named sums, float64 or int64, that only ever grow by addition.

    What is added stays pending until `commit`; `discard` forgets it. Merging adds: shards of a corpus may be
    measured apart, in any order. On some devices (`stays`) totals grow where the sums are, and come to the processor
    when somebody reads them: in the same order and precision, so that it does not matter when that is.
    """

    def __init__(self) -> None:
        self._done: dict[Key, Array] = {}
        self._pending: list[tuple[Key, Tensor]] = []
        self._next: dict[Key, Array] = {}
        self._on_device: _DeviceTotals | None = None
        # What `commit` adds to the totals on the device, and whether these have grown since they were read.
        self._flat: dict[bool, Tensor] | None = None
        self._has_grown = False

    def add(self, metric: str, place: str, sums: Mapping[str, Tensor]) -> None:
        """Add sums, on any device; they are fetched later."""
        self._pending += [((metric, place, name), value) for name, value in sums.items()]

    def fetch(self) -> None:
        """Do what may fail of adding: fetch the sums from their device and add them up, or do so there."""
        devices = {value.device for _, value in self._pending}
        if self._flat is None and not self._next and len(devices) == 1 and stays(*devices):
            together: dict[Key, Tensor] = {}
            for key, value in self._pending:
                together[key] = value.detach() if key not in together else together[key] + value.detach()
            layout = [(key, value.shape, value.is_floating_point()) for key, value in together.items()]
            if self._on_device is None or self._on_device.layout != layout:
                self._read()
                self._on_device = _DeviceTotals(layout, self._done, *devices)
            self._flat, self._pending = self._on_device.flat(list(together.values())), []
        elif self._pending:
            self._read()
            grown = dict(self._next)
            for (key, _), array in zip(self._pending, fetched([value for _, value in self._pending]), strict=True):
                kind = np.float64 if np.issubdtype(array.dtype, np.floating) else np.int64
                _grow(grown, key, array.astype(kind), self._done)
            self._next, self._pending = grown, []

    def commit(self) -> None:
        """Adds the pending sums to the committed ones, so that `discard` no longer removes them."""
        self.fetch()
        if self._flat is not None and self._on_device is not None:
            for kind, total in self._on_device.totals.items():
                total.add_(self._flat[kind])
            self._flat, self._has_grown = None, True
        if self._next:
            self._read()
            self._done.update(self._next)
            self._next, self._on_device = {}, None

    def discard(self) -> None:
        """Forgets what was added since the last commit."""
        self._pending, self._next, self._flat = [], {}, None

    def _read(self) -> None:
        """Brings the committed totals to the processor, if they have grown on a device."""
        if self._on_device is not None and self._has_grown:
            self._done.update(self._on_device.arrays())
            self._has_grown = False

    def of(self, metric: str) -> dict[str, dict[str, Array]]:
        """Sums of one metric: place -> name -> array."""
        self._read()
        sums: dict[str, dict[str, Array]] = {}
        for (owner, place, name), value in self._done.items():
            if owner == metric:
                sums.setdefault(place, {})[name] = value
        return sums

    def arrays(self) -> dict[str, Array]:
        """The committed sums by one name each, as `add_arrays` takes them."""
        self._read()
        return {"|".join(key): value for key, value in self._done.items()}

    def add_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Add what `arrays` of another part of the corpus gave."""
        self._read()
        grown: dict[Key, Array] = {}
        for name, value in arrays.items():
            metric, place, part = name.split("|")
            _grow(grown, (metric, place, part), value, self._done)
        self._done.update(grown)
        self._on_device = None

    def clear(self) -> None:
        """Removes all sums, both the committed and the pending ones."""
        self._done, self._on_device, self._has_grown = {}, None, False
        self.discard()

    def __iter__(self) -> Iterator[Key]:
        self._read()
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
    _check_shape(key, value.shape, before)
    grown[key] = value.copy() if before is None else before + value


def _check_shape(key: Key, shape: tuple[int, ...], before: Array | None) -> None:
    if before is not None and before.shape != shape:
        raise ExtensionError(
            f"The metric {key[0]} measures {key[2]} of shape {tuple(shape)} after {before.shape}.",
            "measure sums over everything that differs between batches: texts, queries and keys.",
        )
