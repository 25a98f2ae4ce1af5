"""Parallel text: sentences and their translations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from headlens.corpora.sentence import Corpus, Example, Sentence
from headlens.corpora.text import TextCorpus
from headlens.errors import CorpusError


@dataclass(frozen=True)
class ParallelCorpus:
    """Two corpora of the same length, sentence by sentence.

    Pairs of plain text files are read line by line, blank lines too, so that one missing line does not shift all that
    follow; a pair with a blank side is left out.
    """

    source: Corpus
    target: Corpus

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.source.name}+{self.target.name}"

    def __iter__(self) -> Iterator[Example]:
        """Read both sides from the start.

        Raises:
            CorpusError: if one side ends before the other.
        """
        sides = _rows(self.source), _rows(self.target)
        for number, (source, target) in enumerate(zip_longest(*sides), start=1):
            if source is None or target is None:
                raise self._unequal(number - 1, rest=1 + sum(1 for side in sides for _ in side))
            if source.words and target.words:
                yield Example(source, target)

    def _unequal(self, common: int, rest: int) -> CorpusError:
        shorter = self.source if sum(1 for _ in _rows(self.source)) == common else self.target
        longer = self.target if shorter is self.source else self.source
        return CorpusError(
            f"the sides differ in length: {shorter.name} has {common} sentences, {longer.name} has {common + rest}.",
            "Line N of one file must be the translation of line N of the other.",
            path=self.name,
        )


def _rows(corpus: Corpus) -> Iterator[Sentence]:
    if isinstance(corpus, TextCorpus):
        return corpus.rows()
    return (example.source for example in corpus)
