"""What a corpus is made of: words with character spans, sentences, examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

ROOT = -1
OUTSIDE = -2


@dataclass(frozen=True, slots=True)
class Word:
    """A syntactic word.

    Args:
        form: the word as the treebank or parser spells it ("n't"; "dem" inside German "zum").
        start: first character in the sentence's text.
        end: one past the last character; several words of a multiword token may share one span.
        head: index of the governing word in the sentence, `ROOT` for the root, None without a tree; in a window of a
            longer sentence `OUTSIDE` where the governing word is in another window.
        relation: UD label with its subtype ("nsubj:pass"), None without a tree.
        upos: universal part of speech, None if unknown.
    """

    form: str
    start: int
    end: int
    head: int | None = None
    relation: str | None = None
    upos: str | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence as raw text, with its words in order of their spans."""

    text: str
    words: tuple[Word, ...]
    id: str = ""

    @property
    def has_tree(self) -> bool:
        """Whether every word has a head."""
        return bool(self.words) and all(w.head is not None for w in self.words)


@dataclass(frozen=True, slots=True)
class Example:
    """What a model reads at once: a sentence, or a sentence and its translation."""

    source: Sentence
    target: Sentence | None = None


class Corpus(Protocol):
    """Examples that can be read again and again without being held in memory."""

    @property
    def name(self) -> str:
        """Short name for run folders and titles."""

    def __iter__(self) -> Iterator[Example]:
        """Yields all examples of the corpus in order, starting from the first one on every call."""
