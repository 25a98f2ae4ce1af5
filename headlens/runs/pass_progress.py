"""How far a pass has come, in sentences of the corpus and not in what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.sentence import Example
from headlens.runs.progress import Advance


class PassProgress:
    """Turns rows that were run into sentences of the corpus.

    A sentence may be cut into many rows, and others are left out, so rows would never add up to the corpus. Rows are
    read ahead of being run; the share that was run of those read tells how much of what was read is done.

    Args:
        advance: told by how many sentences it goes on; never back, and never beyond the end.
        counts: what has become of the sentences read so far.
    """

    def __init__(self, advance: Advance, counts: EncodingCounts) -> None:
        self._advance = advance
        self._counts = counts
        self._read = self._rows = self._told = 0

    def reading(self, corpus: Iterable[Example]) -> Iterator[Example]:
        """The same examples, counted as they are read."""
        for example in corpus:
            self._read += 1
            yield example

    def ran(self, rows: int) -> None:
        """So many more rows were run."""
        self._rows += rows
        known = max(self._rows, self._counts.sentences - self._counts.unmaskable)
        done = self._read * self._rows // known
        if done > self._told:
            self._advance(done - self._told)
            self._told = done
