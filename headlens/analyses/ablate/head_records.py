"""What a model did on every example, with all its heads and without each: kept for --resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headlens.analyses.ablate.replay.head_sweep import SweepRecords
from headlens.heads import Head
from headlens.runs.checkpoint import IDENTITY, packed, unpacked
from headlens.tasks.task import Floats


class HeadRecords:
    """Records of a task's examples, filled batch by batch.

    Args:
        heads: which are taken out.
        examples: how many.
        columns: numbers of a record.

    `intact` is (examples, columns), with all heads.
    """

    def __init__(self, heads: Sequence[Head], examples: int, columns: int) -> None:
        self.heads = tuple(heads)
        self.intact: Floats = np.full((examples, columns), np.nan)
        self._without: Floats = np.full((len(self.heads), examples, columns), np.nan)
        self._there: npt.NDArray[np.bool_] = np.zeros(examples, np.bool_)

    @property
    def complete(self) -> bool:
        """Whether every example is there."""
        return bool(self._there.all())

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """Which examples are there, (examples,)."""
        return self._there

    def has(self, places: Sequence[int]) -> bool:
        """Whether these examples are there."""
        return bool(self._there[list(places)].all())

    def put(self, places: Sequence[int], swept: SweepRecords) -> None:
        """Stores the records of a batch, those of the intact model and those without each head.

        Args:
            places: indices of the batch's examples.
            swept: records of these examples, (examples, columns) for the intact model and for each head.
        """
        at = list(places)
        self.intact[at] = swept.intact
        for number, head in enumerate(self.heads):
            self._without[number, at] = swept.without[head]
        self._there[at] = True

    def without(self, head: Head) -> Floats:
        """Records of all examples without a head, or with it alone in its layer: (examples, columns)."""
        records: Floats = self._without[self.heads.index(head)]
        return records

    def items(self) -> Iterator[tuple[Head, Floats]]:
        """All heads with their records."""
        return zip(self.heads, self._without, strict=True)

    def dump(self, identity: Mapping[str, str] | None = None) -> bytes:
        """What is there as the content of an .npz file."""
        record = {IDENTITY: dict(identity or {}), "heads": [str(h) for h in self.heads]}
        there = self._there
        arrays = {"places": np.flatnonzero(there), "intact": self.intact[there], "without": self._without[:, there]}
        return packed(record, arrays)

    def take(self, content: bytes) -> None:
        """Add what `dump` gave, here or in another process."""
        _, arrays = unpacked(content)
        places = arrays["places"]
        self.intact[places], self._without[:, places] = arrays["intact"], arrays["without"]
        self._there[places] = True
