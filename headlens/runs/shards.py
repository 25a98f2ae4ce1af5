"""A corpus dealt out to several processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from headlens.corpora.sentence import Corpus, Example


@dataclass(frozen=True)
class Shard:
    """Every `of`-th example of a corpus, from the `number`-th on: shards differ by one example at most.

    Args:
        corpus: the whole.
        number: which shard, from 0.
        of: how many shards there are.
    """

    corpus: Corpus
    number: int
    of: int

    @property
    def name(self) -> str:
        """Name of the whole corpus, the same for all of its shards."""
        return self.corpus.name

    def __iter__(self) -> Iterator[Example]:
        """Read the whole corpus, and give every `of`-th example."""
        return islice(iter(self.corpus), self.number, None, self.of)

    def size(self, examples: int) -> int:
        """How many examples of a corpus of that size fall to this shard."""
        return len(range(self.number, examples, self.of))
