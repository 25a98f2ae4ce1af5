"""Attention written down by hand: sentences, maps and calls without any model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from naive_samples import Seq, make_seq
from torch import Tensor

from headlens.attention.edits_and_observers import AttentionCall, Tokens
from headlens.attention.sites import Site
from headlens.heads import Stack
from headlens.metrics.metric import Metric, Statistics, Sums
from headlens.options import Level

Matrix = npt.NDArray[np.float64]
FLAGS = ("special", "cls", "sep", "bos", "eos", "punct")
PROJECTION = torch.tensor([[1.0, 0.5], [0.0, 2.0]])
# [CLS] un ##believ ##able cats sleep . [SEP]
SENTENCE = make_seq([-1, 0, 0, 0, 1, 2, 3, -1], cls=[0], sep=[7], punct=[6])


@dataclass(frozen=True)
class Row:
    """One sentence of a batch, or a pair in cross-attention.

    Args:
        weights: (heads, queries, keys).
        queries: the tokens that attend.
        keys: the tokens attended to; the queries themselves by default.
        arcs: (dependent word, head word, relation number).
        rarity: rank of every word of the keys: 2, 1 or 0.
        forms: number of the form of every word of the keys, -1 for none.
        upos: number of the part of speech of every word of the keys.
        query_upos: the same of the queries, where these are others.
        segment: which of two texts every token is of, -1 for neither; None for one text.
        ids: vocabulary ids.
        links: (source word, target word, 1 if sure) of a gold alignment.
        mentions: (word, entity, whether it has an antecedent, whether both baselines find one), see `Tokens.mentions`.
        values: (heads, keys, d), of which the outputs are made; the output projection is `PROJECTION`.
        sampled: one query token, -1 for none; None when nobody asked.
    """

    weights: Any
    queries: Seq = SENTENCE
    keys: Seq | None = None
    arcs: Sequence[tuple[int, int, int]] | None = None
    rarity: Sequence[int] | None = None
    forms: Sequence[int] | None = None
    upos: Sequence[int] | None = None
    query_upos: Sequence[int] | None = None
    segment: Sequence[int] | None = None
    ids: Sequence[int] | None = None
    links: Sequence[tuple[int, int, int]] | None = None
    mentions: Sequence[tuple[int, ...]] | None = None
    values: Any = None
    sampled: int | None = None


@dataclass(frozen=True)
class Padding:
    """How many columns of padding to add, and what stands in the rows of padding queries."""

    queries: int = 0
    keys: int = 0
    words: int = 0
    garbage: float = 0.7


@dataclass(frozen=True)
class Setting:
    """Everything about a call but its sentences."""

    stack: Stack = "encoder"
    layer: int = 0
    dtype: torch.dtype = torch.float32
    padding: Padding = field(default_factory=Padding)


def tokens(seqs: Sequence[Seq], rows: Sequence[Row], *, extra: int, extra_words: int, words: bool = True) -> Tokens:
    """What is known of a batch, with padding on the right; trees and rare words on request."""
    length = max(map(len, seqs)) + extra
    n_words = max(1, *(s.n_words for s in seqs)) + extra_words

    def padded(values: Sequence[Sequence[int]], fill: int, width: int = length) -> Tensor:
        return torch.tensor([[*map(int, v), *[fill] * (width - len(v))] for v in values])

    flags = {name: padded([getattr(s, name) for s in seqs], int(name == "special")).bool() for name in FLAGS}
    pieces = [[list(s.word).count(w) for w in range(s.n_words)] for s in seqs]
    arcs = [(i, *arc) for i, row in enumerate(rows) for arc in row.arcs or ()]
    mentions = [(i, *mention) for i, row in enumerate(rows) for mention in row.mentions or ()]
    links = [(i, *link) for i, row in enumerate(rows) for link in row.links or ()]

    def of_tokens(name: str, fill: int) -> Tensor | None:
        values = [getattr(row, name) for row in rows]
        return None if values[0] is None else padded(values, fill)

    def of_words(name: str, fill: int) -> Tensor | None:
        values = [getattr(row, name) for row in rows]
        return None if values[0] is None else padded([value or () for value in values], fill, n_words)

    return Tokens(
        real=padded([[1] * len(s) for s in seqs], 0).bool(),
        **flags,
        word=padded([s.word for s in seqs], -1),
        n_words=torch.tensor([s.n_words for s in seqs]),
        n_pieces=padded(pieces, 0, n_words),
        arcs=None if rows[0].arcs is None or not words else torch.tensor(arcs, dtype=torch.int64).view(-1, 4),
        rarity=of_words("rarity", 0) if words else None,
        forms=of_words("forms", -1) if words else None,
        upos=of_words("upos" if words else "query_upos", -1),
        segment=of_tokens("segment", -1),
        ids=of_tokens("ids", 0),
        links=None if rows[0].links is None else torch.tensor(links, dtype=torch.int64).view(-1, 4),
        mentions=None if rows[0].mentions is None or not words else torch.tensor(mentions).long().view(-1, 6),
        sampled=None if rows[0].sampled is None else torch.tensor([r.sampled for r in rows]),
    )


def call(rows: Sequence[Row], setting: Setting | None = None) -> AttentionCall:
    """One attention call over a padded batch; padding keys get nothing, padding queries get garbage."""
    setting = setting or Setting()
    padding = setting.padding
    cross = setting.stack == "cross"
    queries = [r.queries for r in rows]
    keys = [r.keys or r.queries for r in rows]
    key_tokens = query_tokens = tokens(keys, rows, extra=padding.keys, extra_words=padding.words)
    if cross:
        query_tokens = tokens(queries, rows, extra=padding.queries, extra_words=padding.words, words=False)
    heads = np.asarray(rows[0].weights).shape[0]
    weights = torch.full((len(rows), heads, query_tokens.shape[1], key_tokens.shape[1]), padding.garbage)
    for i, row in enumerate(rows):
        own = torch.as_tensor(np.asarray(row.weights), dtype=torch.float64)
        weights[i, :, : own.shape[1]] = 0
        weights[i, :, : own.shape[1], : own.shape[2]] = own.float()
    empty = value = output = torch.zeros(len(rows), heads, 1, 1)
    if rows[0].values is not None:
        value = torch.full((len(rows), heads, key_tokens.shape[1], PROJECTION.shape[1]), padding.garbage)
        for i, row in enumerate(rows):
            value[i, :, : np.asarray(row.values).shape[1]] = torch.as_tensor(np.asarray(row.values)).float()
        output = (weights @ value).transpose(1, 2)
    return AttentionCall(
        site=Site(setting.stack, setting.layer, heads, f"layers.{setting.layer}"),
        query=empty,
        key=empty,
        value=value,
        queries=query_tokens,
        keys=key_tokens,
        causal=setting.stack == "decoder",
        weights=weights.to(setting.dtype),
        output=output,
        gram=None if rows[0].values is None else (PROJECTION.T @ PROJECTION).expand(heads, 2, 2),
    )


def measured(metric: Metric, *calls: AttentionCall, level: Level = "token") -> Sums:
    """The sums of one metric over calls of one site."""
    statistics = observed([metric], calls, level=level)
    return statistics.sums(metric)[calls[0].site]


def columns(metric: Metric, *calls: AttentionCall, level: Level = "token") -> dict[str, Any]:
    """The columns of the first head."""
    return {name: value[0] for name, value in metric.compute(measured(metric, *calls, level=level)).items()}


def observed(metrics: Sequence[Metric], calls: Sequence[AttentionCall], *, level: Level = "token") -> Statistics:
    """Every call a pass of its own."""
    sites = list(dict.fromkeys(c.site for c in calls))
    statistics = Statistics(metrics, sites, level=level)
    for one in calls:
        statistics.observe(one)
        statistics.commit()
    return statistics


def one_hot(choose: Callable[[int], int], n_queries: int = len(SENTENCE), n_keys: int | None = None) -> Matrix:
    """One head that looks at one key per query: (1, queries, keys); keys out of range are taken to the edge."""
    n_keys = n_queries if n_keys is None else n_keys
    weights = np.zeros((1, n_queries, n_keys))
    for query in range(n_queries):
        weights[0, query, min(max(choose(query), 0), n_keys - 1)] = 1
    return weights


def uniform(n_queries: int = len(SENTENCE), n_keys: int | None = None, *, causal: bool = False) -> Matrix:
    """One head that looks everywhere alike, or at everything up to itself."""
    weights = np.ones((1, n_queries, n_queries if n_keys is None else n_keys))
    if causal:
        weights = np.tril(weights)
    return weights / weights.sum(-1, keepdims=True)


def heads(*maps: Matrix) -> Matrix:
    """Several heads from one each."""
    return np.concatenate(maps)


def random_maps(
    rng: np.random.Generator, n_heads: int, n_queries: int, n_keys: int | None = None, *, causal: bool = False
) -> Matrix:
    """Random attention, sharp for some queries and broad for others, rounded so that ties happen."""
    shape = (n_heads, n_queries, n_queries if n_keys is None else n_keys)
    weights = np.round(rng.exponential(size=shape) ** 3 * 4) + 1e-6
    if causal:
        weights = np.tril(weights)
    found: Matrix = weights / weights.sum(-1, keepdims=True)
    return found


def assert_same_sums(first: Mapping[Any, Any], second: Mapping[Any, Any], *, within: float) -> None:
    """Counts equal, everything else up to rounding."""
    assert set(first) == set(second)
    for key, value in first.items():
        if np.asarray(value).dtype.kind == "i":
            np.testing.assert_array_equal(value, second[key], err_msg=str(key))
        else:
            np.testing.assert_allclose(value, second[key], rtol=within, atol=within, err_msg=str(key))
