"""Parallel text: sentences and their translations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from headlens.corpora.sentence import Corpus, Example, Sentence
from headlens.corpora.text import TextCorpus, full_examples
from headlens.errors import CorpusError, counted


@dataclass(frozen=True)
class ParallelCorpus:
    """Two corpora of the same length, sentence by sentence; a table of pairs is a `TableCorpus`.

    Pairs of plain text files are read line by line, blank lines too, so that one missing line does not shift all that
    follow; a pair with a blank side is left out (and logged, if the other is not blank). Blank lines at the end of
    the longer file do not count.
    """

    source: Corpus
    target: Corpus

    @property
    def name(self) -> str:
        """Names of the source and the target corpus, joined by a plus sign."""
        return f"{self.source.name}+{self.target.name}"

    def __iter__(self) -> Iterator[Example]:
        """Read both sides from the start.

        Raises:
            CorpusError: if one side ends before the other.
        """
        return full_examples(self._pairs(), self.name)

    def _pairs(self) -> Iterator[tuple[Sentence, Sentence]]:
        sides = _rows(self.source), _rows(self.target)
        for common, (source, target) in enumerate(zip_longest(*sides)):
            if source is not None and target is not None:
                yield source, target
                continue
            left = chain([s for s in (source, target) if s is not None], *sides)
            rest = max((i for i, sentence in enumerate(left, 1) if sentence.words), default=0)
            if rest:
                raise self._unequal(common, rest, source_is_shorter=source is None)

    def _unequal(self, common: int, rest: int, *, source_is_shorter: bool) -> CorpusError:
        shorter, longer = (self.source, self.target) if source_is_shorter else (self.target, self.source)
        return CorpusError(
            f"the sides differ in length: {shorter.name} has {counted(common, 'sentence')}, "
            f"{longer.name} has {common + rest}.",
            "Line N of one file must be the translation of line N of the other.",
            path=longer.path if isinstance(longer, TextCorpus) else self.name,
            line=common + 1 if isinstance(longer, TextCorpus) else None,
        )


def _rows(corpus: Corpus) -> Iterator[Sentence]:
    if isinstance(corpus, TextCorpus):
        return corpus.rows()
    return (example.source for example in corpus)
