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

from headlens.corpora.encoding import EncodedSequence
from headlens.errors import OptionError
from headlens.statistics.seeding import generator_of

GraphKind = Literal["syntax", "lexical", "neighbour", "random"]
Vectors = Literal["model", "spacy"]
Allowed = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
_FORM = "Write a graph such as syntax or lexical:degree=4,seed=1."
_TYPES: dict[str, Callable[[str], Any]] = {
    "degree": float,
    "seed": int,
    "nearest": int,
    "threshold": float,
    "vectors": str,
}
_ROUNDING = 1e-9  # error of a cosine
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GraphWords:
    """The m words of a text that graphs connect; words that share a token are one (see `align`).

    Args:
        sentence: number of the sentence that each word is in, (m,); words of different sentences are never connected.
        key: key that tells the text from others.
        arcs: dependent and governor of every arc of the trees, (arcs, 2); None without trees.
        vectors: vector of every word, (m, d); None for graphs that need none.
    """

    sentence: Ints
    key: str
    arcs: Ints | None = None
    vectors: Floats | None = None

    @classmethod
    def of(
        cls, sequence: EncodedSequence, key: str, second: int | None = None, embeddings: Floats | None = None
    ) -> GraphWords:
        """Collects the words of a sequence of tokens.

        Args:
            sequence: a sentence, or two as one sequence.
            key: key that tells the text from others.
            second: first character of the second of two sentences; None for a single sentence.
            embeddings: embedding of every vocabulary id, (vocabulary, d); a word has the mean of its tokens.
        """
        words, units = sequence.sentence.words, np.asarray(sequence.unit_of_word, dtype=np.int64)
        sentence = np.zeros(sequence.n_units, dtype=np.int64)
        if second is not None:
            in_second = np.array([word.start >= second for word in words], dtype=np.int64)
            sentence[units[units >= 0]] = in_second[units >= 0]
        arcs = None
        if all(word.head is not None for word in words):
            heads = [(i, word.head) for i, word in enumerate(words) if word.head is not None and word.head >= 0]
            pairs = units[np.array(heads, dtype=np.int64).reshape(-1, 2)]  # units of dependent and head, (arcs, 2)
            # Words without a token have no unit; words of one unit need no arc.
            arcs = pairs[(pairs >= 0).all(axis=1) & (pairs[:, 0] != pairs[:, 1])]
        vectors = None
        if embeddings is not None:
            vectors = _unit_means(np.asarray(sequence.units), embeddings[np.asarray(sequence.ids)], sequence.n_units)
        return cls(sentence, key, arcs, vectors)

    def __len__(self) -> int:
        return len(self.sentence)


def form_means(sequence: EncodedSequence, vectors: Floats) -> Floats:
    """Computes the mean vector of the written words of every word, which are several where they share a token: (m, d).

    Args:
        sequence: the tokens of a text.
        vectors: vectors of the written words in order, (words, d).
    """
    return _unit_means(np.asarray(sequence.unit_of_word, dtype=np.int64), vectors, sequence.n_units)


def _unit_means(units: Ints, vectors: Floats, n_units: int) -> Floats:
    """Computes the mean of the vectors of every unit: (units, d); vectors of unit -1 count for none."""
    aligned = units >= 0
    sums, counts = np.zeros((n_units, vectors.shape[1])), np.zeros((n_units, 1))
    np.add.at(sums, units[aligned], vectors[aligned])
    np.add.at(counts, units[aligned], 1)
    return sums / np.maximum(counts, 1)


@dataclass(frozen=True)
class GraphOptions:
    """Kind of a graph, and how many of the pairs that it ranks are edges.

    Pairs that rank equally are taken at random, the same ones whenever the text is read.

    Args:
        kind: how pairs are ranked: `syntax` by their distance in the dependency tree, `lexical` by the cosine of their
            vectors, `neighbour` by their distance in the sentence, `random` not at all.
        degree: edges of a word on average; None for as many edges as the tree of the sentence has: one less than words.
        seed: seed of the draws among equal pairs.
        nearest: for lexical graphs, edges from every word to this many words most like it, instead of a degree; words
            that are among the nearest of many others have more edges.
        threshold: for lexical graphs, edges between words with at least this cosine, instead of a degree.
        vectors: for lexical graphs, the input embeddings of the `model` that reads the texts, or the static word
            vectors of the `spacy` model that parses them.

    Raises:
        OptionError: for an unknown kind, numbers out of range, or numbers that do not go together.
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
            raise OptionError(f"{self.kind}: threshold={self.threshold} is not a cosine.", "Give -1 to 1.")
        if self.vectors not in get_args(Vectors):
            raise OptionError(f"{self.kind}: vectors={self.vectors} is unknown.", "Choose model or spacy.")
        if self.kind != "lexical" and (self.nearest, self.threshold, self.vectors) != (None, None, "model"):
            raise OptionError(f"{self.kind}: nearest, threshold and vectors only apply to lexical graphs.", _FORM)
        if sum(number is not None for number in (self.degree, self.nearest, self.threshold)) > 1:
            raise OptionError(f"{self.kind}: degree, nearest and threshold each set the number of edges.", "Give one.")

    def edges(self, words: int) -> int:
        """Returns the number of edges of a sentence of this many words."""
        edges = words - 1 if self.degree is None else round(self.degree * words / 2)
        return max(0, min(edges, words * (words - 1) // 2))


def parse_graph(text: str) -> GraphOptions:
    """Reads a graph in words: `syntax`, `random:degree=2,seed=1`, `lexical:nearest=2,vectors=spacy`.

    Raises:
        OptionError: if the text names no graph.
    """
    kind, _, values = (part.strip() for part in text.partition(":"))
    if kind not in get_args(GraphKind):
        raise OptionError(f"There is no graph {kind!r}.", f"Graphs: {', '.join(get_args(GraphKind))}.")
    options: dict[str, Any] = {}
    for part in values.split(",") if values else ():
        name, _, value = (side.strip() for side in part.partition("="))
        if name not in _TYPES or name in options:
            raise OptionError(f"--graph {text!r}: {part.strip()!r} cannot be understood.", _FORM)
        try:
            options[name] = _TYPES[name](value)
        except ValueError as error:
            raise OptionError(f"--graph {text!r}: {name} is {value!r}, which is not a number.", _FORM) from error
    return GraphOptions(kind, **options)  # type: ignore[arg-type]  # kind was checked above


def word_graph(words: GraphWords, options: GraphOptions) -> Allowed:
    """Builds a graph: True for connected words, (m, m), symmetric, False on the diagonal.

    Raises:
        OptionError: if the graph needs trees or vectors, and there are none.
    """
    graph = np.zeros((len(words), len(words)), dtype=bool)
    if options.kind == "syntax" and words.arcs is None:
        raise OptionError("A syntax graph needs dependency trees.", "Give a treebank, or a parser with --parser.")
    if options.kind == "lexical" and words.vectors is None:
        raise OptionError("A lexical graph needs vectors of words.", "Give the embeddings of a model.")
    for sentence in np.unique(words.sentence):
        members = np.flatnonzero(words.sentence == sentence)
        first, second = np.triu_indices(len(members), k=1)
        draws = generator_of(f"{words.key}\x1f{sentence}", options.seed).random(len(first))  # break ties
        ranks = _ranks(words, members, options.kind)
        if options.threshold is not None:
            chosen = np.flatnonzero(ranks[first, second] <= -options.threshold + _ROUNDING)
        elif options.nearest is not None:
            chosen = _nearest(ranks, draws, options.nearest)
        else:
            chosen = np.lexsort((draws, ranks[first, second]))[: options.edges(len(members))]
        graph[members[first[chosen]], members[second[chosen]]] = True
    return graph | graph.T


def _nearest(ranks: Floats, draws: Floats, count: int) -> Ints:
    """Finds the pairs of a word and one of those that rank first for it, by row of the upper triangle."""
    size = len(ranks)
    upper = np.triu_indices(size, k=1)
    ties = np.zeros((size, size))
    ties[upper] = draws
    others = np.where(np.eye(size, dtype=bool), np.inf, ranks)  # no word is a neighbour of itself
    order = np.lexsort((ties + ties.T, others), axis=-1)[:, : max(0, min(count, size - 1))]
    is_nearest = np.zeros((size, size), dtype=bool)
    np.put_along_axis(is_nearest, order, values=True, axis=1)
    pairs: Ints = np.flatnonzero((is_nearest | is_nearest.T)[upper])
    return pairs


def _ranks(words: GraphWords, members: Ints, kind: GraphKind) -> Floats:
    """Computes the values by which the pairs of a sentence's words are ordered, the smallest first: (s, s)."""
    size = len(members)
    if kind == "neighbour":
        places = np.arange(size, dtype=np.float64)
        return np.abs(places[:, None] - places)
    if kind == "syntax":
        assert words.arcs is not None
        place = np.full(len(words), -1)
        place[members] = np.arange(size)
        arcs = place[words.arcs]
        arcs = arcs[(arcs >= 0).all(axis=1)]
        tree = coo_array((np.ones(len(arcs)), (arcs[:, 0], arcs[:, 1])), shape=(size, size)).tocsr()
        # Words in no tree with each other, as where a word between them has no token, are infinitely far away.
        distances: Floats = shortest_path(tree, directed=False, unweighted=True)
        return distances
    if kind == "lexical":
        assert words.vectors is not None
        vectors = words.vectors[members]
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(norms == 0, 1.0, norms)
        cosines: Floats = vectors @ vectors.T
        return -cosines
    return np.zeros((size, size))
