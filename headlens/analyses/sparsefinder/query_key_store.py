"""Queries, keys and weights of pairs, of many sentences: collected of a corpus, on disk, read a layer at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headlens.analyses.sparsefinder.measures import allowed_pairs
from headlens.analyses.sparsefinder.predictors import QueryKeyVectors
from headlens.attention.edits_and_observers import AttentionCall, Observer
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.batches import Batch
from headlens.corpora.corpus_options import LongSentences
from headlens.corpora.encoding import EncodedSequence, TokenKind
from headlens.corpora.sentence import Corpus
from headlens.errors import CorpusError, OptionError, SelfCheckError, UnsupportedModelError, read_errors
from headlens.files import atomic_path, output_errors, write_json
from headlens.findings.result_notes import reading_notes
from headlens.heads import STACKS
from headlens.models.loading import LoadedModel
from headlens.nested_text import conform, parse_json
from headlens.runs.corpus_pass import CorpusPass, CorpusReader, PassState

RECORD = "record.json"  # what was read, and what was left out; written last
SPECIAL, UNKNOWN = "special", "unknown"  # tags of tokens without a part of speech
_SMALLEST_HALF = 2.0**-24  # the smallest number above 0 in half precision
_BUFFER_BYTES = 2**25  # collected in memory before a part of the store is written
_PARTS = ("queries", "keys", "gold", "weights", "lengths")  # tensors of a file


@dataclass(frozen=True, eq=False)
class StoredBatch(QueryKeyVectors):
    """Some sentences at one site, padded at their ends, in float32 on the processor.

    Args:
        weights: of attention, `(batch, heads, query, key)`.
    """

    weights: Tensor = field(kw_only=True)

    @property
    def gold(self) -> Tensor:
        """Pairs with weight: bool, `(batch, heads, query, key)`."""
        return self.weights > 0


class _Sentence(NamedTuple):
    """One sentence at one site, without padding.

    Args:
        queries, keys: `(tokens, heads, d)`, half precision.
        gold: which pairs have weight, the bits of `(heads, query, key)`.
        weights: of these pairs, one after the other.
    """

    queries: Tensor
    keys: Tensor
    gold: npt.NDArray[np.uint8]
    weights: Tensor


@dataclass
class QueryKeyCollector(Observer):
    """Writes queries, keys and weights of attention into a folder while a model runs.

    Sentences stand without padding, vectors and weights in half precision, which pairs have weight as bits; what is not
    on disk yet is bounded. Grouped keys are repeated for each head.

    Args:
        folder: of the store; made, and empty.
    """

    folder: Path
    needs_weights = True
    _pending: list[tuple[Site, list[_Sentence]]] = field(default_factory=list)
    _buffer: dict[Site, list[_Sentence]] = field(default_factory=dict)

    def observe(self, call: AttentionCall) -> None:
        """Cuts one call into sentences without padding, in half precision; they are pending until `commit`."""
        if call.weights is None or call.queries is None or call.keys is None:
            raise SelfCheckError(
                f"{call.site}: queries and keys can only be collected for declared tokens, and with attention weights."
            )
        pairs = allowed_pairs(call.queries.real, call.keys.real, causal=call.causal)
        if call.allowed is not None and (pairs & ~call.allowed).any():
            raise UnsupportedModelError(
                f"{call.site} has local attention and sees a part of a text of {pairs.shape[2]} tokens; what it does "
                "not see would count as pairs whose weight was predicted.",
                "Leave such long texts out of --corpus and --dev.",
            )
        rows = zip(call.query, call.key_of_heads, call.weights, call.queries.real, call.keys.real, strict=True)
        self._pending.append((call.site, [_sentence(*row) for row in rows]))

    def commit(self) -> None:
        """Takes the sentences of the pass over; writes if they have become much."""
        for site, sentences in self._pending:
            self._buffer.setdefault(site, []).extend(sentences)
        self._pending = []
        if self.buffered_bytes >= _BUFFER_BYTES:
            self.flush()

    def discard(self) -> None:
        """Drops the sentences of a forward pass that failed: all those collected since the last `commit`."""
        self._pending = []

    def flush(self) -> None:
        """Writes the sentences that are in memory.

        Raises:
            OutputError: if the folder cannot be written.
        """
        for site, sentences in self._buffer.items():
            folder = self.folder / str(site)
            _write(folder / f"{len(list(folder.glob('*.safetensors'))):05}.safetensors", sentences)
        self._buffer = {}

    @property
    def buffered_bytes(self) -> int:
        """Memory of the sentences that are not written yet, in bytes."""
        return sum(part.nbytes for sentences in self._buffer.values() for s in sentences for part in s)


def _sentence(query: Tensor, key: Tensor, weights: Tensor, real_queries: Tensor, real_keys: Tensor) -> _Sentence:
    """Cuts the padding off; see `StoredBatch` for the shapes, here without the batch."""
    inside_queries, inside_keys = real_queries.bool(), real_keys.bool()
    # Weights of real pairs: (heads, query, key).
    inside = weights.detach()[:, inside_queries][:, :, inside_keys].float().cpu()
    gold = inside > 0
    # The least weight stays above 0 in half precision, too.
    values = inside[gold].clamp(min=_SMALLEST_HALF).to(torch.float16)
    queries, keys = (  # (tokens, heads, d)
        tokens.detach().transpose(0, 1).to(torch.float16).cpu().contiguous()
        for tokens in (query[:, inside_queries], key[:, inside_keys])
    )
    return _Sentence(queries, keys, np.packbits(gold.numpy()), values)


def _write(path: Path, sentences: list[_Sentence]) -> None:
    queries, keys, gold, weights = zip(*sentences, strict=True)
    lengths = torch.tensor([[len(s.queries), len(s.keys)] for s in sentences])
    parts = torch.cat(queries), torch.cat(keys), torch.from_numpy(np.concatenate(gold)), torch.cat(weights), lengths
    with output_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        save_file(dict(zip(_PARTS, parts, strict=True)), temporary)


def write_tags(folder: Path, side: str, sentences: Iterable[Sequence[str]]) -> None:
    """Adds the tags of the tokens of some more sentences, in the order in which they are collected.

    Args:
        folder: of the store.
        side: `source` or `target`.
        sentences: a word without white space for every token, such as its part of speech.

    Raises:
        OutputError: if the folder cannot be written.
    """
    _append(folder / f"{side}.tags", (" ".join(tags) for tags in sentences))


def _append(path: Path, lines: Iterable[str]) -> None:
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


@dataclass(frozen=True)
class AntecedentPair:
    """A mention of an entity and the nearest earlier one in the same sentence, by their head words.

    Args:
        sentence: its number in the order in which sentences are collected, from 0.
        query: first and last token of the mention's head word.
        key: the same of the antecedent's.
        mention, antecedent: these words.
    """

    sentence: int
    query: tuple[int, int]
    key: tuple[int, int]
    mention: str
    antecedent: str


def antecedent_pairs(row: EncodedSequence, sentence: int) -> list[AntecedentPair]:
    """The mentions of a sentence that have an antecedent there; two texts in one sequence name entities apart."""
    tokens: dict[int, tuple[int, int]] = {}  # first and last, by unit
    for place, unit in enumerate(row.units):
        tokens[unit] = (tokens.get(unit, (place, place))[0], place)
    last = row.between[0] if row.between else len(row.sentence.text)
    latest: dict[tuple[str, bool], tuple[int, str]] = {}
    pairs = []
    for word, unit in zip(row.sentence.words, row.unit_of_word, strict=True):
        for name in word.entities if unit >= 0 else ():
            entity = name, word.start > last
            earlier, form = latest.get(entity, (unit, ""))
            if earlier != unit:
                pairs.append(AntecedentPair(sentence, tokens[unit], tokens[earlier], word.form, form))
            latest[entity] = unit, word.form
    return pairs


@dataclass(frozen=True)
class QueryKeyStore:
    """Reads what a `QueryKeyCollector` wrote.

    Args:
        folder: of the store.
    """

    folder: Path

    def sites(self) -> list[str]:
        """The sites that were collected, such as `encoder.0`, by stack and layer."""
        sites = (path.name.split(".") for path in self.folder.iterdir() if path.is_dir())
        order: tuple[str, ...] = STACKS
        return [".".join(site) for site in sorted(sites, key=lambda site: (order.index(site[0]), int(site[1])))]

    @property
    def size(self) -> int:
        """Size of all files in the folder of the store, in bytes."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    @property
    def complete(self) -> bool:
        """Whether the pass that collected the sentences came to its end."""
        return (self.folder / RECORD).is_file()

    @property
    def record(self) -> dict[str, Any]:
        """The number of `sentences` that were read, and `notes` on those that could not be.

        Of those that were cut into windows each window counts.
        """
        path = self.folder / RECORD
        with read_errors(path, "cannot be read", "Collect queries and keys again.", OptionError):
            return dict(parse_json(path.read_text(encoding="utf-8")))

    def _sides(self, site: str) -> list[str]:
        """Whose tokens queries and keys are; the only text of a model without an encoder is its source."""
        stack = site.partition(".")[0]
        sides = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}[stack]
        return [side if (self.folder / f"{side}.tags").is_file() else "source" for side in sides]

    def tags(self, site: str) -> Iterator[tuple[list[str], list[str]]]:
        """Yields the tags of the queries and of the keys of every sentence at a site, if any; see `write_tags`."""
        query_path, key_path = (self.folder / f"{side}.tags" for side in self._sides(site))
        if not (query_path.is_file() and key_path.is_file()):
            return
        with query_path.open(encoding="utf-8") as query_file, key_path.open(encoding="utf-8") as key_file:
            for queries, keys in zip(query_file, key_file, strict=True):
                yield queries.split(), keys.split()

    def antecedents(self, site: str) -> Iterator[AntecedentPair]:
        """Yields the mentions that have antecedents, of the text whose tokens are queries and keys of a site, if any.

        Raises:
            OptionError: if they cannot be read.
        """
        path = self.folder / f"{self._sides(site)[0]}.antecedents"
        if path.is_file() and not site.startswith("cross"):
            with read_errors(path, "cannot be read", "Collect queries and keys again.", OptionError):
                for line in path.read_text(encoding="utf-8").splitlines():
                    yield conform(parse_json(line), AntecedentPair)

    def batches(self, site: str, sentences: int = 16) -> Iterator[StoredBatch]:
        """Yields the sentences of a site, so many at a time, in the order in which they were collected.

        Raises:
            OptionError: if a part of the store cannot be read.
        """
        paths = sorted((self.folder / site).glob("[0-9]*.safetensors"))
        stored = chain.from_iterable(map(_read, paths))
        while batch := list(islice(stored, sentences)):
            yield _padded(batch, causal=site.startswith("decoder"))


def _read(path: Path) -> Iterator[_Sentence]:
    with read_errors(path, "cannot be read as queries and keys", "Collect them again.", OptionError):
        tensors = load_file(path)
        queries, keys, gold, weights, lengths = (tensors[name] for name in _PARTS)
        query_lengths, key_lengths = lengths.T.tolist()
        # Each sentence begins with a byte of its own, so that the last one of the sentence before may be part empty.
        gold_bytes = [-(-queries.shape[1] * n * m // 8) for n, m in lengths.tolist()]
        bits = np.split(gold.numpy(), np.cumsum(gold_bytes)[:-1])
        pairs = [int(np.unpackbits(part).sum()) for part in bits]
        parts = torch.split(queries, query_lengths), torch.split(keys, key_lengths), bits, torch.split(weights, pairs)
    yield from map(_Sentence._make, zip(*parts, strict=True))


def _padded(sentences: list[_Sentence], *, causal: bool) -> StoredBatch:
    vectors = ([s.queries.float() for s in sentences], [s.keys.float() for s in sentences])
    # (batch, tokens, heads, d) to (batch, heads, tokens, d)
    queries, keys = (pad_sequence(side, batch_first=True).transpose(1, 2).contiguous() for side in vectors)
    real_queries, real_keys = (
        pad_sequence([torch.ones(len(tokens), dtype=torch.bool) for tokens in side], batch_first=True)
        for side in vectors
    )
    weights = torch.zeros(*queries.shape[:3], keys.shape[2])
    for row, sentence in enumerate(sentences):
        shape = queries.shape[1], len(sentence.queries), len(sentence.keys)
        gold = torch.from_numpy(np.unpackbits(sentence.gold, count=math.prod(shape)).astype(bool).reshape(shape))
        weights[row, :, : shape[1], : shape[2]][gold] = sentence.weights.float()
    return StoredBatch(queries, keys, real_queries, real_keys, causal=causal, weights=weights)


def collect(
    loaded: LoadedModel,
    corpus: Corpus,
    folder: Path,
    batch_tokens: int = 2048,
    long_sentences: LongSentences = "skip",
    corpus_pass: CorpusPass | None = None,
) -> QueryKeyStore:
    """Runs a model over a corpus and keeps queries, keys and the pairs that have weight, of every site, in a folder.

    Parts of speech are kept too, where the corpus has any. Memory does not grow with the corpus.

    Args:
        loaded: an encoder, decoder or encoder-decoder with its tokenizer.
        corpus: sentences, in pairs for decoder and cross-attention.
        folder: of the store; made, and empty.
        batch_tokens: tokens of a batch, padding included.
        long_sentences: what becomes of sentences that are longer than the model reads.
        corpus_pass: progress.

    Raises:
        ModelError: if the model has no tokenizer.
        CorpusError: if nothing of the corpus can be used.
        OutputError: if the folder cannot be written.
    """
    first = next(iter(corpus), None)
    if first is None:
        raise CorpusError("the corpus is empty.", "It must hold at least one sentence.", path=corpus.name)
    reader = CorpusReader.of(loaded, first, long_sentences)
    annotator, collector, state = Annotator(()), QueryKeyCollector(folder), PassState({})
    session = AttentionSession(reader.model, observers=[collector])
    collected = count()

    def step(batch: Batch) -> AnnotationCounts:
        counts = AnnotationCounts()
        with session.batch(annotator.annotate(batch, counts, decoder_only=reader.decoder_only)):
            reader.model(**batch.inputs, **reader.arguments)
        texts = {"source": [example.source for example in batch.examples]}
        if batch.target is not None:
            texts["target"] = [example.target for example in batch.examples if example.target is not None]
        numbers = [next(collected) for _ in batch.examples]
        for side, rows in texts.items():
            write_tags(folder, side, map(token_tags, rows))
            if pairs := list(chain.from_iterable(map(antecedent_pairs, rows, numbers))):
                _append(folder / f"{side}.antecedents", (json.dumps(asdict(pair)) for pair in pairs))
        return counts

    with session, torch.inference_mode():
        (corpus_pass or CorpusPass()).run(reader, corpus, step, state, batch_tokens)
    collector.flush()
    if not state.encoding.sentences:
        raise CorpusError("the model can read no sentence.", "Give shorter ones.", path=corpus.name)
    record = {"sentences": state.encoding.sentences, "notes": reading_notes(reader, state.encoding)}
    write_json(record, folder / RECORD)
    return QueryKeyStore(folder)


def token_tags(row: EncodedSequence) -> list[str]:
    """Universal part of speech of the word that every token is of; `special`, and `unknown` without a tag."""
    tag_of_unit: dict[int, str] = {}
    for word, unit in zip(row.sentence.words, row.unit_of_word, strict=True):
        # Of several words in one unit, as in German "zum", the first counts.
        tag_of_unit.setdefault(unit, word.upos or UNKNOWN)
    return [
        SPECIAL if kind & TokenKind.SPECIAL else tag_of_unit.get(unit, UNKNOWN)
        for kind, unit in zip(row.kinds, row.units, strict=True)
    ]
