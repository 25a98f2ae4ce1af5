"""A part of the examples that is not trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from headlens.corpora.sentence import Corpus, Example


def held_out_of(share: float, examples: int) -> int:
    """How many examples are held out: the share of them, rounded down."""
    return math.floor(examples * _exact(share))


def is_held_out(number: int, share: float) -> bool:
    """Whether an example is, by its number from 1: evenly spread, every fifth for a share of 0.2."""
    return held_out_of(share, number) > held_out_of(share, number - 1)


def _exact(share: float) -> Fraction:
    # As it was written: 0.29 of 100 examples are 29, though the float is a little less.
    return Fraction(repr(share))


@dataclass(frozen=True)
class CorpusPart:
    """A corpus without what is held out of it, or this alone."""

    corpus: Corpus
    share: float
    held_out: bool

    @property
    def name(self) -> str:
        """Name of the whole corpus, the same for the part that is trained on and the part that is held out."""
        return self.corpus.name

    def __iter__(self) -> Iterator[Example]:
        """Yields the examples of this part in the order of the whole corpus, from the first one on."""
        return (e for number, e in enumerate(self.corpus, 1) if is_held_out(number, self.share) == self.held_out)


def split_corpus(corpus: Corpus, share: float, sentences: int) -> tuple[Corpus, Corpus | None]:
    """What is trained on and what is held out: nothing of a corpus of fewer than 1 / share sentences."""
    if not held_out_of(share, sentences):
        return corpus, None
    return CorpusPart(corpus, share, held_out=False), CorpusPart(corpus, share, held_out=True)
