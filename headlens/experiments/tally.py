"""What a pass over a corpus has added up: kept for --resume, and sent between processes."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from headlens.corpora.annotations import AnnotationCounts
from headlens.corpora.counts import add_counts
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.errors import ResumeError
from headlens.metrics.totals import Array, Totals
from headlens.report.files import atomic_path

_RECORD = "record"


@dataclass
class Tally:
    """Sums and counts of the batches that are done.

    Args:
        totals: sums by the name of who adds them up; the objects stay the same, their contents grow.
        encoding: what became of the sentences.
        annotation: what became of their trees and rare words.
        batches: how many batches are in the sums.
        complete: whether the corpus has been read to its end.
    """

    totals: Mapping[str, Totals]
    encoding: EncodingCounts = field(default_factory=EncodingCounts)
    annotation: AnnotationCounts = field(default_factory=AnnotationCounts)
    batches: int = 0
    complete: bool = False

    def dump(self, identity: Mapping[str, str] | None = None) -> bytes:
        """The tally as the content of an .npz file."""
        record = {
            "identity": dict(identity or {}),
            "encoding": asdict(self.encoding),
            "annotation": asdict(self.annotation),
            "batches": self.batches,
            "complete": self.complete,
        }
        arrays = {f"{owner}|{key}": a for owner, t in self.totals.items() for key, a in t.arrays().items()}
        content = BytesIO()
        np.savez(content, **{_RECORD: np.frombuffer(json.dumps(record).encode(), np.uint8)}, **arrays)  # type: ignore[arg-type]
        return content.getvalue()

    def fill(self, parts: Sequence[bytes]) -> None:
        """Take the sum of what `dump` gave, in the order given, in place of what is there."""
        opened = [_open(part) for part in parts]
        self.encoding, self.annotation = EncodingCounts(), AnnotationCounts()
        for record, _ in opened:
            add_counts(self.encoding, EncodingCounts(**record["encoding"]))
            add_counts(self.annotation, AnnotationCounts(**record["annotation"]))
        self.batches = sum(record["batches"] for record, _ in opened)
        self.complete = all(record["complete"] for record, _ in opened)
        for owner, totals in self.totals.items():
            totals.clear()
            for _, arrays in opened:
                totals.add_arrays({k.partition("|")[2]: v for k, v in arrays.items() if k.startswith(f"{owner}|")})


class Keeper:
    """Keeps the tally of a pass in a file, as often as costs next to nothing.

    Args:
        path: the file.
        identity: what the sums depend on, in words fit for a message ("the corpus" -> its hash).
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path = path
        self.identity = dict(identity)
        self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to save: every second, less often if saving takes more than a fiftieth of that."""
        return time.monotonic() >= self._next

    def save(self, tally: Tally) -> None:
        """Replace the file as a whole.

        Raises:
            OutputError: if the folder cannot be written or the disk is full.
        """
        begun = time.monotonic()
        with atomic_path(self.path) as temporary:
            temporary.write_bytes(tally.dump(self.identity))
        ended = time.monotonic()
        self._next = ended + max(1.0, 50 * (ended - begun))

    def restore(self, tally: Tally) -> None:
        """Go on from the file, if there is one.

        Raises:
            OutputError: if its sums belong to something else, or cannot be read.
        """
        if not self.path.exists():
            return
        try:
            content = self.path.read_bytes()
            found = _open(content)[0]["identity"]
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ResumeError(f"{self.path} cannot be read: {error}.", "Start again with --overwrite.") from error
        differing = [name for name, value in self.identity.items() if found.get(name) != value]
        if differing:
            raise ResumeError(
                f"{' and '.join(differing)} changed since the run was interrupted.",
                "Resume with what it began with, or start again with --overwrite.",
            )
        tally.fill([content])
        if not tally.complete:
            # Sentences are encoded again from the start, to come to the batches that are left: they count anew.
            tally.encoding = EncodingCounts()


def _open(content: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    with np.load(BytesIO(content), allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files}
    return json.loads(arrays.pop(_RECORD).tobytes()), arrays
