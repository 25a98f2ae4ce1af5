"""What the naive metrics read: one sentence's tokens, attention weights, tree and rare words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Arc = tuple[int, int, str]

KEY_CLASSES = ("cls", "sep", "bos", "eos", "punct")


@dataclass(frozen=True)
class Seq:
    """What the tokens of one sentence are; one entry per token, no padding.

    Args:
        special: any special token, whichever it is.
        cls, sep, bos, eos, punct: tokens of that class.
        word: index of the token's unit, -1 for none.
        n_words: units of the sentence.
    """

    special: Sequence[bool]
    cls: Sequence[bool]
    sep: Sequence[bool]
    bos: Sequence[bool]
    eos: Sequence[bool]
    punct: Sequence[bool]
    word: Sequence[int]
    n_words: int

    def __len__(self) -> int:
        return len(self.word)

    def is_separator(self, token: int) -> bool:
        """A separator or end-of-sentence token."""
        return bool(self.sep[token] or self.eos[token])

    def tokens_of(self, unit: int) -> list[int]:
        """Positions of the tokens of a unit; special tokens belong to none."""
        return [t for t in range(len(self)) if self.word[t] == unit and not self.special[t]]


def make_seq(
    word: Sequence[int],
    *,
    cls: Sequence[int] = (),
    sep: Sequence[int] = (),
    bos: Sequence[int] = (),
    eos: Sequence[int] = (),
    punct: Sequence[int] = (),
    special: Sequence[int] = (),
) -> Seq:
    """Describe a sentence by the positions of its classes: `make_seq([-1, 0, 0, -1], cls=[0], sep=[3])`.

    `special` is for the special tokens of no class; those of cls, sep, bos and eos are special anyway.
    """
    n = len(word)
    return Seq(
        special=[t in {*cls, *sep, *bos, *eos, *special} for t in range(n)],
        cls=[t in cls for t in range(n)],
        sep=[t in sep for t in range(n)],
        bos=[t in bos for t in range(n)],
        eos=[t in eos for t in range(n)],
        punct=[t in punct for t in range(n)],
        word=list(word),
        n_words=max([-1, *word]) + 1,
    )


@dataclass(frozen=True)
class Sample:
    """The attention of one sentence in one stack.

    Args:
        stack: "encoder", "decoder" or "cross".
        queries, keys: the tokens; the same object for self-attention.
        weights: attention after softmax, (layers, heads, queries, keys).
        causal: queries see only the keys up to themselves.
        arcs: (dependent unit, head unit, relation) for every arc of the tree.
        rare1, rare2: whether a key unit is the rarest, or among the two rarest; all False (or empty) if the
            sentence does not count.
        forms: number of the form of every key unit, -1 for none; empty if unknown.
        segment: which of two texts every token is of, -1 for neither; empty for one text.
        ids: vocabulary id of every token; empty if unknown.
        links: (source unit, target unit, whether it is sure) of a gold alignment.
        mentions: (unit of its head word, entity) of every mention.
        values: projected values of every key, (layers, heads, keys, features); None if unknown.
        upos, query_upos: part of speech of every key and query unit, "" for none; empty if unknown.
    """

    stack: str
    queries: Seq
    keys: Seq
    weights: npt.NDArray[np.floating]
    causal: bool = False
    arcs: Sequence[Arc] = ()
    rare1: Sequence[bool] = ()
    rare2: Sequence[bool] = ()
    forms: Sequence[int] = ()
    upos: Sequence[str] = ()
    query_upos: Sequence[str] = ()
    segment: Sequence[int] = ()
    ids: Sequence[int] = ()
    links: Sequence[tuple[int, int, int]] = ()
    mentions: Sequence[tuple[int, int]] = ()
    values: Array | None = None

    def __post_init__(self) -> None:
        if self.weights.shape[2:] != (len(self.queries), len(self.keys)):
            raise ValueError(f"weights {self.weights.shape} for {len(self.queries)} queries and {len(self.keys)} keys")

    @property
    def is_self(self) -> bool:
        """Queries and keys are the same tokens."""
        return self.stack != "cross"

    def matrix(self, layer: int, head: int) -> Array:
        """The weights of one head, (queries, keys)."""
        return np.asarray(self.weights[layer, head], dtype=np.float64)

    def available(self, query: int) -> int:
        """How many keys the query may see."""
        return query + 1 if self.causal and self.is_self else len(self.keys)


Corpus = Sequence[Sample]


def rows(corpus: Corpus, layer: int, head: int) -> Iterator[tuple[Sample, int, Array]]:
    """Every query token of the corpus: its sample, its position, its weights over the keys."""
    for sample in corpus:
        matrix = sample.matrix(layer, head)
        for query in range(len(sample.queries)):
            yield sample, query, matrix[query]
