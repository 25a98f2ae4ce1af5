"""A part of the examples that is not trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headlens.corpora.sentence import Corpus, Example


def stride(share: float, examples: int) -> int | None:
    """Every how manieth example is held out; None where a share is less than one example.

    Args:
        share: of the examples that are held out.
        examples: how many there are.
    """
    every = max(2, round(1 / share)) if share else examples + 1
    return every if every <= examples else None


def is_held_out(number: int, every: int) -> bool:
    """Whether an example is, by its number from 1."""
    return number % every == 0


@dataclass(frozen=True)
class Part:
    """A corpus without what is held out of it, or this alone."""

    corpus: Corpus
    every: int
    held_out: bool

    @property
    def name(self) -> str:
        """The corpus's own name."""
        return self.corpus.name

    def __iter__(self) -> Iterator[Example]:
        """Read from the start."""
        return (e for number, e in enumerate(self.corpus, 1) if is_held_out(number, self.every) == self.held_out)


def split_corpus(corpus: Corpus, share: float, sentences: int) -> tuple[Corpus, Corpus | None]:
    """What is trained on and what is held out: nothing of a corpus of fewer than 1 / share sentences."""
    every = stride(share, sentences)
    if every is None:
        return corpus, None
    return Part(corpus, every, held_out=False), Part(corpus, every, held_out=True)
