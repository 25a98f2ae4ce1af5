"""What a pass over a corpus has added up: kept for --resume, and sent between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from headlens.corpora.annotations import AnnotationCounts
from headlens.corpora.encoded_corpus import EncodingCounts, add_counts
from headlens.metrics.accumulator import Accumulator
from headlens.runs.checkpoint import IDENTITY, packed, unpacked


@dataclass
class PassState:
    """Sums and counts of the batches that are done.

    Args:
        totals: sums by the name of who adds them up; the objects stay the same, their contents grow.
        encoding: what became of the sentences.
        annotation: what became of their trees and rare words.
        batches: how many batches are in the sums.
        complete: whether the corpus has been read to its end.
    """

    totals: Mapping[str, Accumulator]
    encoding: EncodingCounts = field(default_factory=EncodingCounts)
    annotation: AnnotationCounts = field(default_factory=AnnotationCounts)
    batches: int = 0
    complete: bool = False

    def dump(self, identity: Mapping[str, str] | None = None) -> bytes:
        """Serialises the sums and counts as the content of an .npz file, with `identity` in its record."""
        record = {
            IDENTITY: dict(identity or {}),
            "encoding": asdict(self.encoding),
            "annotation": asdict(self.annotation),
            "batches": self.batches,
            "complete": self.complete,
        }
        arrays = {f"{owner}|{key}": a for owner, t in self.totals.items() for key, a in t.arrays().items()}
        return packed(record, arrays)

    def take(self, content: bytes) -> None:
        """Go on from what `dump` gave."""
        self.fill([content])
        if not self.complete:
            # Sentences are encoded again from the start, to come to the batches that are left: they count anew.
            self.encoding = EncodingCounts()

    def fill(self, parts: Sequence[bytes]) -> None:
        """Take the sum of what `dump` gave, in the order given, in place of what is there."""
        opened = [unpacked(part) for part in parts]
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
