"""Graphs of many texts, found again by the tokens of a text, as masks for whole batches; kept in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headlens.corpora.encoding import EncodedSequence, TokenKind
from headlens.corpora.word_graphs import Allowed
from headlens.errors import OptionError

SPECIAL, NO_WORD = -2, -1
Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class _Text:
    """The word of every token, (n,), and the edges between words, (edges, 2)."""

    words: Numbers
    edges: Numbers


@dataclass(eq=False)
class GraphCache:
    """The graphs of the texts of a corpus, as one model reads them.

    What is kept of a text is the word of every token and the edges between words, some hundred bytes; masks are made
    for a batch at a time, as `token_mask` makes them for a text. It is a `TextMaskSource` for `MaskEdit`.

    Args:
        name: of the graph, such as `syntax`.
        about: what else the graphs are, as numbers and words.
    """

    name: str = "graph"
    about: Mapping[str, Any] = field(default_factory=dict)
    _texts: dict[bytes, _Text] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def stack(self) -> None:
        """Texts are read by the encoder, or by the decoder of a model without one."""
        return None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of layers and heads that the masks tell apart, always `(1, 1)`: all share the mask of a text."""
        return 1, 1

    def __contains__(self, ids: tuple[int, ...]) -> bool:
        return _key(np.asarray(ids)) in self._texts

    def add(self, sequence: EncodedSequence, graph: Allowed) -> None:
        """Keep the graph of a text, see `word_graph`; the first of two texts with the same tokens counts."""
        special = (np.asarray(sequence.kinds) & int(TokenKind.SPECIAL)) > 0
        words = np.where(special, SPECIAL, np.asarray(sequence.units)).astype(np.int32)
        edges = np.argwhere(np.triu(graph, k=1)).astype(np.int32)
        self._texts.setdefault(_key(np.asarray(sequence.ids)), _Text(words, edges))

    def rows(self, ids: Tensor, real: Tensor) -> Tensor:
        """Where the tokens of a batch may look: (batch, query, key), on the device of the ids.

        Args:
            ids: vocabulary ids, (batch, length).
            real: which are tokens, (batch, length); what padding gets means nothing.

        Raises:
            OptionError: if a text is not in the book.
        """
        texts = list(self._found(ids, real))
        words = np.full(tuple(real.shape), NO_WORD, dtype=np.int64)
        words[real.cpu().numpy().astype(bool)] = np.concatenate([t.words for t in texts] or [np.zeros(0, np.int32)])
        counts = [len(t.edges) for t in texts]
        edges = np.concatenate([t.edges for t in texts] or [np.zeros((0, 2), np.int32)]).astype(np.int64)
        row = np.repeat(np.arange(len(texts)), counts)
        made = (torch.from_numpy(a).to(ids.device) for a in (words, row, edges))
        return _expanded(*made)

    def _found(self, ids: Tensor, real: Tensor) -> Iterator[_Text]:
        for own, inside in zip(ids.cpu().numpy(), real.cpu().numpy().astype(bool), strict=True):
            text = self._texts.get(_key(own[inside]))
            if text is None:
                raise OptionError(
                    f"A text of {int(inside.sum())} tokens has no graph.",
                    "Graphs are made for the examples of a run, from their trees; texts that come later have none.",
                )
            yield text

    @property
    def sparsity(self) -> float:
        """The share of the n x n positions of a text that is masked, mean over texts."""
        shares = []
        for text in self._texts.values():
            n, special = len(text.words), int((text.words == SPECIAL).sum())
            pieces = np.bincount(text.words[text.words >= 0], minlength=1)
            alone = int((text.words == NO_WORD).sum())
            edges = 2 * int((pieces[text.edges[:, 0]] * pieces[text.edges[:, 1]]).sum()) if len(text.edges) else 0
            allowed = special * (2 * n - special) + int((pieces**2).sum()) + edges + alone
            shares.append(1 - allowed / n**2)
        return float(np.mean(shares)) if shares else 0.0

    @property
    def diagonal(self) -> float:
        """The share of positions on the diagonal, mean over texts."""
        return float(np.mean([1 / len(text.words) for text in self._texts.values()])) if self._texts else 0.0

    @property
    def sha256(self) -> str:
        """Of all texts, whatever their order."""
        digest = hashlib.sha256()
        for key in sorted(self._texts):
            text = self._texts[key]
            for part in (key, text.words.tobytes(), text.edges.tobytes()):
                digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write all texts into one file."""
        about = json.dumps({"name": self.name, "about": dict(self.about)}, sort_keys=True)
        keys = [np.frombuffer(key, np.int32) for key in self._texts]
        texts = list(self._texts.values())
        np.savez_compressed(
            path,
            about=np.frombuffer(about.encode(), np.uint8),
            lengths=np.array([len(t.words) for t in texts], np.int64),
            counts=np.array([len(t.edges) for t in texts], np.int64),
            ids=np.concatenate(keys or [np.zeros(0, np.int32)]),
            words=np.concatenate([t.words for t in texts] or [np.zeros(0, np.int32)]),
            edges=np.concatenate([t.edges for t in texts] or [np.zeros((0, 2), np.int32)]),
        )

    @classmethod
    def load(cls, path: Path) -> GraphCache:
        """Read what `save` wrote.

        Raises:
            OptionError: if the file cannot be read, or holds something else.
        """
        try:
            # Of a file that numpy cannot read it leaves the handle open, where it opened it itself.
            with path.open("rb") as opened, np.load(opened) as file:
                parts = {name: file[name] for name in ("about", "lengths", "counts", "ids", "words", "edges")}
            about = json.loads(parts["about"].tobytes())
            ends = np.cumsum(parts["lengths"])[:-1]
            ids, words = (np.split(parts[name].astype(np.int32), ends) for name in ("ids", "words"))
            edges = np.split(parts["edges"].astype(np.int32).reshape(-1, 2), np.cumsum(parts["counts"])[:-1])
            own = zip(ids, words, edges, strict=True) if len(parts["lengths"]) else ()
            return cls(about["name"], about["about"], {_key(i): _Text(w, e) for i, w, e in own})
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise OptionError(f"{path} cannot be read as graphs: {error}.", "Make them again.") from error


def _expanded(words: Tensor, row: Tensor, edges: Tensor) -> Tensor:
    """Edges between words as a mask of tokens: (batch, length, length)."""
    batch, length = words.shape
    most = int(words.max()) + 1 if words.numel() else 0
    most = max(most, 0)
    # One word more than there are, which is connected to nothing: that of tokens without a word.
    graph = torch.zeros(batch, most + 1, most + 1, dtype=torch.bool, device=words.device)
    own = torch.arange(most, device=words.device)
    graph[:, own, own] = True
    graph[row, edges[:, 0], edges[:, 1]] = True
    graph[row, edges[:, 1], edges[:, 0]] = True
    place = torch.where(words >= 0, words, most)
    each = torch.arange(batch, device=words.device)[:, None, None]
    found = graph[each, place[:, :, None], place[:, None, :]]
    special = words == SPECIAL
    itself = torch.eye(length, dtype=torch.bool, device=words.device)
    return found | special[:, :, None] | special[:, None, :] | itself


def _key(ids: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(ids, dtype=np.int32).tobytes()
