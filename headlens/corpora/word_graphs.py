"""Graphs over the words of sentences, and the attention masks that they give (Brahma et al. 2022).

A graph ranks the pairs of words of each sentence, and the first pairs are its edges. So graphs of every kind can have
the same number of edges in every sentence, and masks are compared at equal sparsity. A cache keeps the graphs of many
texts by their tokens, and makes masks for whole batches of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from headlens.corpora.encoding import EncodedSequence, TokenKind
from headlens.errors import OptionError, read_errors
from headlens.nested_text import parse_json
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


SPECIAL, NO_WORD = -2, -1
Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class _Text:
    """Word of every token, (n,), `SPECIAL` or `NO_WORD` for others, and the edges between words, (edges, 2)."""

    words: Numbers
    edges: Numbers


@dataclass(eq=False)
class GraphCache:
    """The graphs of the texts of a corpus, as one model reads them.

    What is kept of a text is the word of every token and the edges between words, some hundred bytes; masks are made
    for a batch at a time: tokens look at those of connected words and of their own word, special tokens at all and all
    at them; a token that belongs to no word looks at itself and the special ones. It is a `TextMaskSource` for
    `MaskEdit`: its `stack` is None, the encoder or the decoder of a model without an encoder, and its `shape` (1, 1),
    since all layers and heads share the mask of a text.

    Args:
        name: name of the graph, such as `syntax`.
        about: further facts about the graphs, as numbers and words.
    """

    stack: ClassVar[None] = None
    shape: ClassVar[tuple[int, int]] = (1, 1)
    name: str = "graph"
    about: Mapping[str, Any] = field(default_factory=dict)
    _texts: dict[bytes, _Text] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, ids: tuple[int, ...]) -> bool:
        return _key(np.asarray(ids)) in self._texts

    def add(self, sequence: EncodedSequence, graph: Allowed) -> None:
        """Keeps the graph of a text, see `word_graph`; the first of two texts with the same tokens counts."""
        special = (np.asarray(sequence.kinds) & int(TokenKind.SPECIAL)) > 0
        words = np.where(special, SPECIAL, np.asarray(sequence.units)).astype(np.int32)
        edges = np.argwhere(np.triu(graph, k=1)).astype(np.int32)
        self._texts.setdefault(_key(np.asarray(sequence.ids)), _Text(words, edges))

    def rows(self, ids: Tensor, real: Tensor) -> Tensor:
        """Makes the masks of a batch, True where a query may look: (batch, query, key), on the device of the ids.

        Args:
            ids: vocabulary ids, (batch, length).
            real: True for tokens, (batch, length); masks of padding mean nothing.

        Raises:
            OptionError: if a text is not in the cache.
        """
        inside = real.cpu().numpy().astype(bool)
        texts = []
        for row, tokens in zip(ids.cpu().numpy(), inside, strict=True):
            text = self._texts.get(_key(row[tokens]))
            if text is None:
                raise OptionError(
                    f"A text of {tokens.sum()} tokens has no graph.",
                    "Graphs are built from the trees of the run's own examples; other texts have none.",
                )
            texts.append(text)
        words = np.full(inside.shape, NO_WORD, dtype=np.int64)
        words[inside] = _joined([t.words for t in texts])
        edges = _joined([t.edges for t in texts], 2).astype(np.int64)
        row_of_edge = np.repeat(np.arange(len(texts)), [len(t.edges) for t in texts])
        return _expanded(*(torch.from_numpy(a).to(ids.device) for a in (words, row_of_edge, edges)))

    def sparsity(self, *, diagonal: bool = True, causal: bool = False) -> float:
        """Share of the n x n positions of a text that is masked, mean over texts.

        Args:
            diagonal: whether tokens see themselves.
            causal: whether only positions up to each query's own count; graphs have no direction.
        """
        shares = []
        for text in self._texts.values():
            n, special, alone = len(text.words), int((text.words == SPECIAL).sum()), int((text.words == NO_WORD).sum())
            pieces = np.bincount(text.words[text.words >= 0], minlength=1)  # tokens of every word
            edges = 2 * int(pieces[text.edges].prod(axis=1).sum())
            # Rows and columns of special tokens, blocks of single words and of pairs of words, lone tokens.
            allowed = special * (2 * n - special) + int((pieces**2).sum()) + edges + alone
            allowed, visible = ((allowed + n) // 2, n * (n + 1) // 2) if causal else (allowed, n**2)
            shares.append(1 - (allowed if diagonal else allowed - n) / visible)
        return float(np.mean(shares)) if shares else 0.0

    @property
    def sha256(self) -> str:
        """Hash of the content of all texts, whatever their order."""
        digest = hashlib.sha256()
        for key in sorted(self._texts):
            text = self._texts[key]
            for part in (key, text.words.tobytes(), text.edges.tobytes()):
                digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Writes all texts into one file."""
        about = json.dumps({"name": self.name, "about": dict(self.about)}, sort_keys=True)
        texts = list(self._texts.values())
        np.savez_compressed(
            path,
            about=np.frombuffer(about.encode(), np.uint8),
            lengths=np.array([len(t.words) for t in texts], np.int64),
            counts=np.array([len(t.edges) for t in texts], np.int64),
            ids=_joined([np.frombuffer(key, np.int32) for key in self._texts]),
            words=_joined([t.words for t in texts]),
            edges=_joined([t.edges for t in texts], 2),
        )

    @classmethod
    def load(cls, path: Path) -> GraphCache:
        """Reads a file that `save` wrote.

        Raises:
            OptionError: if the file cannot be read, or holds something else.
        """
        with read_errors(path, "cannot be read as graphs", "Make them again.", OptionError):
            # numpy leaves the handle of a file that it cannot read open, unless the file was opened before.
            with path.open("rb") as handle, np.load(handle) as file:
                parts = {name: file[name] for name in ("about", "lengths", "counts", "ids", "words", "edges")}
            about = parse_json(parts["about"].tobytes())
            ends = np.cumsum(parts["lengths"])[:-1]
            ids, words = (np.split(parts[name].astype(np.int32), ends) for name in ("ids", "words"))
            edges = np.split(parts["edges"].astype(np.int32).reshape(-1, 2), np.cumsum(parts["counts"])[:-1])
            texts = list(zip(ids, words, edges, strict=True)) if len(parts["lengths"]) else []
            if any(len(e) and not 0 <= e.min() <= e.max() <= w.max(initial=-1) for _, w, e in texts):
                raise ValueError("an edge refers to words that do not exist")
            # Masks have a row and a column for every word; few have no token of their own.
            if any(w.max(initial=-1) > 10 * len(w) + 100 for _, w, _ in texts):
                raise ValueError("a text has far more words than tokens")
            return cls(about["name"], about["about"], {_key(i): _Text(w, e) for i, w, e in texts})


def _expanded(words: Tensor, row: Tensor, edges: Tensor) -> Tensor:
    """Expands edges between words to masks of tokens: (batch, length, length).

    Args:
        words: word of every token, (batch, length).
        row: row of the batch of every edge, (edges,).
        edges: the two words of every edge, (edges, 2).
    """
    batch, length = words.shape
    most = max(int(words.max()) + 1, 0) if words.numel() else 0
    # One word more than there are, which is connected to nothing: that of tokens without a word.
    graph = torch.zeros(batch, most + 1, most + 1, dtype=torch.bool, device=words.device)
    graph.diagonal(dim1=1, dim2=2)[:, :most] = True
    graph[row, edges[:, 0], edges[:, 1]] = True
    graph[row, edges[:, 1], edges[:, 0]] = True
    place = torch.where(words >= 0, words, most)
    batch_index = torch.arange(batch, device=words.device)[:, None, None]
    mask = graph[batch_index, place[:, :, None], place[:, None, :]]  # (batch, query, key)
    special = words == SPECIAL
    diagonal = torch.eye(length, dtype=torch.bool, device=words.device)
    return mask | special[:, :, None] | special[:, None, :] | diagonal


def _joined(arrays: Sequence[Numbers], *columns: int) -> Numbers:
    """Concatenates arrays; none make an empty array of this number of columns."""
    return np.concatenate([np.zeros((0, *columns), np.int32), *arrays])


def _key(ids: npt.NDArray[Any]) -> bytes:
    """Returns the key of a text in the cache: its token ids as bytes."""
    return np.ascontiguousarray(ids, dtype=np.int32).tobytes()
