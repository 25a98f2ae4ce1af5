"""Graphs over the words of a sentence, and the attention masks that they give (Brahma et al. 2022).

A graph ranks the pairs of words of each sentence, and the first pairs are its edges. So graphs of every kind can have
the same number of edges in every sentence, and masks are compared at equal sparsity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path

from headlens.corpora.encoding import EncodedSequence, TokenKind
from headlens.errors import OptionError
from headlens.statistics.seeding import generator_of

GraphKind = Literal["syntax", "lexical", "neighbour", "random"]
Vectors = Literal["model", "spacy"]
Allowed = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
_FORM = "Write a graph such as syntax or lexical:degree=4,seed=1."
_READ: dict[str, Callable[[str], Any]] = {
    "degree": float,
    "seed": int,
    "nearest": int,
    "threshold": float,
    "vectors": str,
}
_ROUNDING = 1e-9  # of a cosine
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GraphWords:
    """The m words of a text, as far as graphs look at them; words that share a token are one (see `align`).

    Args:
        sentence: which sentence of the text each word is in, (m,); words of different sentences are never connected.
        key: what tells the text from others.
        arcs: dependent and governor of every arc of the trees, (arcs, 2); None without trees.
        vectors: of every word, (m, d); None where nobody asked.
    """

    sentence: Ints
    key: str
    arcs: Ints | None = None
    vectors: Floats | None = None

    @classmethod
    def of(
        cls, sequence: EncodedSequence, key: str, second: int | None = None, embeddings: Floats | None = None
    ) -> GraphWords:
        """The words of what a model reads.

        Args:
            sequence: a sentence, or two as one sequence.
            key: what tells the text from others.
            second: of two sentences the first character of the second one; None for a single sentence.
            embeddings: of every vocabulary id, (vocabulary, d); a word has the mean of its tokens.
        """
        words, units = sequence.sentence.words, np.asarray(sequence.unit_of_word, dtype=np.int64)
        sentence = np.zeros(sequence.n_units, dtype=np.int64)
        for word, unit in zip(words, units, strict=True):
            if unit >= 0 and second is not None:
                sentence[unit] = int(word.start >= second)
        arcs = None
        if all(word.head is not None for word in words):
            heads = np.array([-1 if word.head is None else word.head for word in words], dtype=np.int64)
            inside = heads >= 0
            pairs = np.stack([units[inside], units[heads[inside]]], axis=1)
            # Words without a token have no unit; words of one unit need no arc.
            arcs = pairs[(pairs >= 0).all(axis=1) & (pairs[:, 0] != pairs[:, 1])]
        vectors = None if embeddings is None else token_means(sequence, embeddings)
        return cls(sentence, key, arcs, vectors)

    def __len__(self) -> int:
        return len(self.sentence)


def token_means(sequence: EncodedSequence, embeddings: Floats) -> Floats:
    """The mean of the tokens of every word: (m, d).

    Args:
        sequence: what a model reads.
        embeddings: of every vocabulary id, (vocabulary, d).
    """
    units = np.asarray(sequence.units)
    own = units >= 0
    found = np.zeros((sequence.n_units, embeddings.shape[1]))
    np.add.at(found, units[own], embeddings[np.asarray(sequence.ids)[own]])
    counts = np.bincount(units[own], minlength=sequence.n_units)
    means: Floats = found / counts[:, None]
    return means


def form_means(sequence: EncodedSequence, vectors: Floats) -> Floats:
    """The mean of the written words of every word, which is several where they share a token: (m, d).

    Args:
        sequence: what a model reads.
        vectors: of the written words in order, (words, d).
    """
    units = np.asarray(sequence.unit_of_word, dtype=np.int64)
    own = units >= 0
    found = np.zeros((sequence.n_units, vectors.shape[1]))
    np.add.at(found, units[own], vectors[own])
    counts = np.bincount(units[own], minlength=sequence.n_units)
    means: Floats = found / np.maximum(counts, 1)[:, None]
    return means


@dataclass(frozen=True)
class GraphOptions:
    """Which words are connected.

    Pairs that rank equally are taken at random, the same ones whenever the text is read.

    Args:
        kind: how pairs are ranked: `syntax` by their distance in the dependency tree, `lexical` by the cosine of their
            vectors, `neighbour` by their distance in the sentence, `random` not at all.
        degree: edges of a word on average; None for as many edges as the tree of the sentence has: one less than words.
        seed: of the draws.
        nearest: of a lexical graph, edges from every word to so many that are most like it, instead of a degree; where
            these look elsewhere a word has more.
        threshold: of a lexical graph, edges between words with at least this cosine, instead of a degree.
        vectors: of a lexical graph, whose: the input embeddings of the `model` that reads the texts, or the static word
            vectors of the `spacy` model that parses them.

    Raises:
        OptionError: for a kind that there is none, numbers out of range, or numbers that do not go together.
    """

    kind: GraphKind = "syntax"
    degree: float | None = None
    seed: int = 0
    nearest: int | None = None
    threshold: float | None = None
    vectors: Vectors = "model"

    def __post_init__(self) -> None:
        if self.kind not in get_args(GraphKind):
            raise OptionError(f"{self.kind}: there is no such graph.", f"Graphs: {', '.join(get_args(GraphKind))}.")
        if self.degree is not None and not 0 < self.degree < math.inf:
            raise OptionError(f"{self.kind}: degree={self.degree} connects nothing.", "Give a number above 0.")
        if self.nearest is not None and self.nearest < 1:
            raise OptionError(f"{self.kind}: nearest={self.nearest} connects nothing.", "Give 1 or more.")
        if self.threshold is not None and not -1 <= self.threshold <= 1:
            raise OptionError(f"{self.kind}: threshold={self.threshold} is no cosine.", "Give -1 to 1.")
        if self.vectors not in get_args(Vectors):
            raise OptionError(f"{self.kind}: vectors={self.vectors} are none.", "Choose model or spacy.")
        if self.kind != "lexical" and (self.nearest, self.threshold, self.vectors) != (None, None, "model"):
            raise OptionError(f"{self.kind}: nearest, threshold and vectors are those of lexical graphs.", _FORM)
        if sum(number is not None for number in (self.degree, self.nearest, self.threshold)) > 1:
            raise OptionError(f"{self.kind}: degree, nearest and threshold each say how many edges.", "Give one.")

    def edges(self, words: int) -> int:
        """How many edges a sentence of so many words has."""
        wanted = words - 1 if self.degree is None else round(self.degree * words / 2)
        return max(0, min(wanted, words * (words - 1) // 2))


def parse_graph(text: str) -> GraphOptions:
    """Read a graph in words: `syntax`, `lexical:degree=4`, `random:degree=2,seed=1`, `lexical:nearest=2,vectors=spacy`.

    Raises:
        OptionError: if it is none.
    """
    kind, _, values = (part.strip() for part in text.partition(":"))
    if kind not in get_args(GraphKind):
        raise OptionError(f"There is no graph {kind!r}.", f"Graphs: {', '.join(get_args(GraphKind))}.")
    given: dict[str, Any] = {}
    for part in values.split(",") if values else ():
        name, _, value = (own.strip() for own in part.partition("="))
        if name not in _READ or name in given:
            raise OptionError(f"--graph {text!r}: {part.strip()!r} cannot be meant.", _FORM)
        try:
            given[name] = _READ[name](value)
        except ValueError as error:
            raise OptionError(f"--graph {text!r}: {name} is {value!r}, which is no number.", _FORM) from error
    return GraphOptions(kind, **given)  # type: ignore[arg-type]  # looked at


def word_graph(words: GraphWords, options: GraphOptions) -> Allowed:
    """Which words are connected: (m, m), symmetric, nothing on the diagonal.

    Raises:
        OptionError: if the graph needs trees or vectors, and there are none.
    """
    found = np.zeros((len(words), len(words)), dtype=bool)
    if options.kind == "syntax" and words.arcs is None:
        raise OptionError("A syntax graph needs dependency trees.", "Give a treebank, or a parser with --parser.")
    if options.kind == "lexical" and words.vectors is None:
        raise OptionError("A lexical graph needs vectors of words.", "Give the embeddings of a model.")
    for sentence in np.unique(words.sentence):
        own = np.flatnonzero(words.sentence == sentence)
        first, second = np.triu_indices(len(own), k=1)
        draws = generator_of(f"{words.key}\x1f{sentence}", options.seed).random(len(first))
        ranks = _ranks(words, own, options.kind)
        if options.threshold is not None:
            chosen = np.flatnonzero(ranks[first, second] <= -options.threshold + _ROUNDING)
        elif options.nearest is not None:
            chosen = _nearest(ranks, draws, options.nearest)
        else:
            chosen = np.lexsort((draws, ranks[first, second]))[: options.edges(len(own))]
        found[own[first[chosen]], own[second[chosen]]] = True
    return found | found.T


def _nearest(ranks: Floats, draws: Floats, count: int) -> Ints:
    """Which pairs, row by row of the upper triangle, are of a word and one of those that rank first for it."""
    size = len(ranks)
    upper = np.triu_indices(size, k=1)
    drawn = np.zeros((size, size))
    drawn[upper] = draws
    apart = np.where(np.eye(size, dtype=bool), np.inf, ranks)
    order = np.lexsort((drawn + drawn.T, apart), axis=-1)[:, : max(0, min(count, size - 1))]
    wanted = np.zeros((size, size), dtype=bool)
    np.put_along_axis(wanted, order, values=True, axis=1)
    pairs: Ints = np.flatnonzero((wanted | wanted.T)[upper])
    return pairs


def _ranks(words: GraphWords, own: Ints, kind: GraphKind) -> Floats:
    """What the pairs of a sentence's words are ordered by, the smallest first: (s, s)."""
    size = len(own)
    if kind == "neighbour":
        offsets: Floats = np.abs(np.arange(size)[:, None] - np.arange(size)[None, :]).astype(np.float64)
        return offsets
    if kind == "syntax":
        assert words.arcs is not None
        place = np.full(len(words), -1)
        place[own] = np.arange(size)
        arcs = place[words.arcs]
        arcs = arcs[(arcs >= 0).all(axis=1)]
        tree = coo_array((np.ones(len(arcs)), (arcs[:, 0], arcs[:, 1])), shape=(size, size)).tocsr()
        # Words in no tree with each other, as where a word between them has no token, are infinitely far away.
        distances: Floats = shortest_path(tree, directed=False, unweighted=True)
        return distances
    if kind == "lexical":
        assert words.vectors is not None
        vectors = words.vectors[own]
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(norms == 0, 1.0, norms)
        cosines: Floats = vectors @ vectors.T
        return -cosines
    return np.zeros((size, size))


def token_mask(graph: Allowed, sequence: EncodedSequence) -> Allowed:
    """Where the tokens of a sequence may look: (n, n), symmetric.

    Tokens look at those of connected words and of their own word, special tokens at all and all at them. A token that
    belongs to no word looks at itself and the special ones.

    Args:
        graph: over the words, see `word_graph`.
        sequence: what the model reads.
    """
    unit = np.asarray(sequence.units, dtype=np.int64)
    special = (np.asarray(sequence.kinds) & int(TokenKind.SPECIAL)) > 0
    looped = graph | np.eye(len(graph), dtype=bool)
    n = len(unit)
    found = np.eye(n, dtype=bool)
    inside = np.flatnonzero(unit >= 0)
    found[np.ix_(inside, inside)] = looped[np.ix_(unit[inside], unit[inside])]
    found |= np.eye(n, dtype=bool) | special[:, None] | special[None, :]
    return found
