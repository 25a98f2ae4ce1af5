"""Queries, keys and the weights of pairs, of many sentences: on disk, read a layer at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headlens.analyses.sparsefinder.measures import allowed_pairs
from headlens.analyses.sparsefinder.predictors import QueryKeyVectors
from headlens.attention.contract import AttentionCall, Observer
from headlens.attention.sites import Site
from headlens.errors import OptionError, SelfCheckError
from headlens.files import atomic_path, output_errors
from headlens.heads import STACKS

RECORD = "record.json"  # what was read, and what was left out; written last
SPECIAL, UNKNOWN = "special", "unknown"  # tags of tokens without a part of speech
_LEAST_HALF = 2.0**-24  # the smallest number above 0
_ROOM = 2**25  # bytes that are held back before a part of the store is written
Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class StoredBatch:
    """Some sentences at one site, padded at their ends, on the processor.

    Args:
        queries: (batch, heads, query, d), float32.
        keys: (batch, heads, key, d), float32.
        weights: of attention, float32, (batch, heads, query, key).
        real_queries: which are tokens, (batch, query).
        real_keys: the same, (batch, key).
        causal: whether a query looks at no key behind it.
    """

    queries: Tensor
    keys: Tensor
    weights: Tensor
    real_queries: Tensor
    real_keys: Tensor
    causal: bool

    @property
    def gold(self) -> Tensor:
        """Pairs with weight: bool, (batch, heads, query, key)."""
        return self.weights > 0

    @property
    def vectors(self) -> QueryKeyVectors:
        """What graphs are predicted from."""
        return QueryKeyVectors(self.queries, self.keys, self.real_queries, self.real_keys, causal=self.causal)

    @property
    def allowed(self) -> Tensor:
        """Pairs that could have weight: bool, (batch, 1, query, key)."""
        return allowed_pairs(self.real_queries, self.real_keys, causal=self.causal)


@dataclass(frozen=True, eq=False)
class _Sentence:
    """Of one sentence at one site, without padding.

    Args:
        queries, keys: (tokens, heads, d).
        gold: which pairs have weight, the bits of (heads, query, key).
        weights: of these, one after the other.
    """

    queries: Tensor
    keys: Tensor
    gold: Bits
    weights: Tensor

    @property
    def size(self) -> int:
        """Memory that the queries, keys, gold bits and weights of the sentence take, in bytes."""
        return self.queries.nbytes + self.keys.nbytes + self.gold.nbytes + self.weights.nbytes


@dataclass
class QueryKeyCollector(Observer):
    """Writes what attention has to do with queries and keys into a folder while a model runs.

    Sentences stand without padding, vectors and weights in half precision, which pairs have weight as bits; what is not
    on disk yet is bounded. Grouped keys are repeated for each head.

    Args:
        folder: of the store; made, and empty.
    """

    folder: Path
    needs_weights = True
    _pending: list[tuple[Site, list[_Sentence]]] = field(default_factory=list)
    _kept: dict[Site, list[_Sentence]] = field(default_factory=dict)
    _parts: dict[Site, int] = field(default_factory=dict)
    _held: int = 0

    def observe(self, call: AttentionCall) -> None:
        """Cuts one call into sentences without padding, in half precision; they are pending until `commit`."""
        if call.weights is None or call.queries is None or call.keys is None:
            raise SelfCheckError(f"{call.site}: queries and keys are collected of declared tokens, with weights.")
        rows = zip(call.query, call.key_of_heads, call.weights, call.queries.real, call.keys.real, strict=True)
        self._pending.append((call.site, [_sentence(*row) for row in rows]))

    def commit(self) -> None:
        """Take what the pass brought; write if it has become much."""
        for site, sentences in self._pending:
            self._kept.setdefault(site, []).extend(sentences)
            self._held += sum(s.size for s in sentences)
        self._pending = []
        if self._held >= _ROOM:
            self.flush()

    def discard(self) -> None:
        """Drops the sentences of a forward pass that failed: all those collected since the last `commit`."""
        self._pending = []

    def flush(self) -> None:
        """Write what is held.

        Raises:
            OutputError: if the folder cannot be written.
        """
        for site, sentences in self._kept.items():
            number = self._parts.get(site, 0)
            self._parts[site] = number + 1
            _write(self.folder / str(site) / f"{number:05}.safetensors", sentences)
        self._kept, self._held = {}, 0


def _sentence(query: Tensor, key: Tensor, weights: Tensor, real_queries: Tensor, real_keys: Tensor) -> _Sentence:
    ours, theirs = real_queries.bool(), real_keys.bool()
    own = weights.detach()[:, ours][:, :, theirs].float().cpu()
    gold = own > 0
    # The least weight stays one in half precision, too.
    values = own[gold].clamp(min=_LEAST_HALF).to(torch.float16)
    return _Sentence(_flat(query[:, ours]), _flat(key[:, theirs]), np.packbits(gold.numpy()), values)


def _flat(vectors: Tensor) -> Tensor:
    """(tokens, heads, d) in half precision, of (heads, tokens, d)."""
    return vectors.detach().transpose(0, 1).to(torch.float16).cpu().contiguous()


def _write(path: Path, sentences: list[_Sentence]) -> None:
    parts = {
        "queries": torch.cat([s.queries for s in sentences]),
        "keys": torch.cat([s.keys for s in sentences]),
        "gold": torch.from_numpy(np.concatenate([s.gold for s in sentences])),
        "weights": torch.cat([s.weights for s in sentences]),
        "lengths": torch.tensor([[len(s.queries), len(s.keys)] for s in sentences]),
    }
    with output_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        save_file(parts, temporary)


def write_tags(folder: Path, side: str, sentences: Iterable[Sequence[str]]) -> None:
    """Add what the tokens of some more sentences are, in the order in which they are collected.

    Args:
        folder: of the store.
        side: `source` or `target`.
        sentences: a word without white space for every token, such as its part of speech.

    Raises:
        OutputError: if the folder cannot be written.
    """
    path = folder / f"{side}.tags"
    with output_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(" ".join(tags) + "\n" for tags in sentences)


@dataclass(frozen=True)
class QueryKeyStore:
    """What a `QueryKeyCollector` wrote.

    Args:
        folder: of the store.
    """

    folder: Path

    def sites(self) -> list[str]:
        """The sites that were collected, such as `encoder.0`, by stack and layer."""
        found = (path.name for path in self.folder.iterdir() if path.is_dir())
        order: tuple[str, ...] = STACKS
        return sorted(found, key=lambda name: (order.index(name.partition(".")[0]), int(name.partition(".")[2])))

    @property
    def size(self) -> int:
        """Size of all files in the folder of the store, in bytes."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    @property
    def whole(self) -> bool:
        """Whether the pass that collected it came to its end."""
        return (self.folder / RECORD).is_file()

    @property
    def notes(self) -> list[str]:
        """What became of sentences that could not be read."""
        return list(self._record["notes"])

    @property
    def sentences(self) -> int:
        """How many were read; of those that were cut into windows each window."""
        return int(self._record["sentences"])

    @property
    def _record(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / RECORD).read_text(encoding="utf-8")))

    def tags(self, site: str) -> Iterator[tuple[list[str], list[str]]]:
        """What the queries and the keys of every sentence at a site are, see `write_tags`; nothing without any."""
        stack = site.partition(".")[0]
        sides = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}[stack]
        # The only text of a model without an encoder is its source.
        own = [self.folder / f"{side}.tags" for side in sides]
        paths = [path if path.is_file() else self.folder / "source.tags" for path in own]
        if not all(path.is_file() for path in paths):
            return
        with paths[0].open(encoding="utf-8") as first, paths[1].open(encoding="utf-8") as second:
            for queries, keys in zip(first, second, strict=True):
                yield queries.split(), keys.split()

    def batches(self, site: str, sentences: int = 16) -> Iterator[StoredBatch]:
        """The sentences of a site, so many at a time, in the order in which they were collected.

        Raises:
            OptionError: if a part of the store cannot be read.
        """
        causal = site.startswith("decoder")
        waiting: list[_Sentence] = []
        for path in sorted((self.folder / site).glob("[0-9]*.safetensors")):
            for sentence in _read(path):
                waiting.append(sentence)
                if len(waiting) == sentences:
                    yield _padded(waiting, causal=causal)
                    waiting = []
        if waiting:
            yield _padded(waiting, causal=causal)


def _read(path: Path) -> Iterator[_Sentence]:
    try:
        parts = load_file(path)
        names = ("queries", "keys", "gold", "weights", "lengths")
        queries, keys, gold, weights, lengths = (parts[name] for name in names)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise OptionError(f"{path} cannot be read as queries and keys: {error}", "Collect them again.") from error
    starts, begun = [0, 0, 0], 0
    heads = queries.shape[1]
    for n, m in lengths.tolist():
        sizes = n, m, -(-heads * n * m // 8)
        own = (t[a : a + size] for t, a, size in zip((queries, keys, gold), starts, sizes, strict=True))
        ours, theirs, bits = own
        ended = begun + int(np.unpackbits(bits.numpy()).sum())
        yield _Sentence(ours, theirs, bits.numpy(), weights[begun:ended])
        begun = ended
        starts = [a + size for a, size in zip(starts, sizes, strict=True)]


def _padded(sentences: list[_Sentence], *, causal: bool) -> StoredBatch:
    batch, heads, size = len(sentences), sentences[0].queries.shape[1], sentences[0].queries.shape[2]
    n, m = max(len(s.queries) for s in sentences), max(len(s.keys) for s in sentences)
    queries, keys = torch.zeros(batch, heads, n, size), torch.zeros(batch, heads, m, size)
    weights = torch.zeros(batch, heads, n, m)
    real_queries, real_keys = (torch.zeros(batch, length, dtype=torch.bool) for length in (n, m))
    for row, own in enumerate(sentences):
        i, j = len(own.queries), len(own.keys)
        queries[row, :, :i], keys[row, :, :j] = own.queries.transpose(0, 1), own.keys.transpose(0, 1)
        bits = np.unpackbits(own.gold, count=heads * i * j).reshape(heads, i, j)
        gold = torch.from_numpy(bits.astype(bool))
        weights[row, :, :i, :j] = torch.zeros(gold.shape).masked_scatter(gold, own.weights.float())
        real_queries[row, :i], real_keys[row, :j] = True, True
    return StoredBatch(queries, keys, weights, real_queries, real_keys, causal)
