"""Cache of the word graphs of many texts, by the tokens of a text, as attention masks for whole batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headlens.corpora.encoding import EncodedSequence, TokenKind
from headlens.corpora.word_graphs import Allowed
from headlens.errors import OptionError, read_errors
from headlens.nested_text import parse_json

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

    @property
    def sparsity(self) -> float:
        """Share of the n x n positions of a text that is masked, mean over texts."""
        shares = []
        for text in self._texts.values():
            n, special, alone = len(text.words), int((text.words == SPECIAL).sum()), int((text.words == NO_WORD).sum())
            pieces = np.bincount(text.words[text.words >= 0], minlength=1)  # tokens of every word
            edges = 2 * int(pieces[text.edges].prod(axis=1).sum())
            # Rows and columns of special tokens, blocks of single words and of pairs of words, lone tokens.
            allowed = special * (2 * n - special) + int((pieces**2).sum()) + edges + alone
            shares.append(1 - allowed / n**2)
        return float(np.mean(shares)) if shares else 0.0

    @property
    def diagonal(self) -> float:
        """Share of positions on the diagonal, mean over texts."""
        return float(np.mean([1 / len(text.words) for text in self._texts.values()])) if self._texts else 0.0

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
