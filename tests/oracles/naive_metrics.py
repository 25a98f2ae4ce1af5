"""Every head metric of tokens, the slow and obvious way: the oracle of the streaming metrics.

Loops over sentences and tokens in float64, written from the definitions alone; nothing here is shared with
the package. A corpus is a sequence of samples of one stack; layers and heads count from 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from naive_samples import KEY_CLASSES, Array, Corpus, Sample, rows
from naive_statistics import mean

LARGEST_OFFSET = 8
KEPT_OFFSETS = range(-LARGEST_OFFSET, LARGEST_OFFSET + 1)


def best_keys(sample: Sample, layer: int, head: int) -> dict[int, int]:
    """The first non-special key of largest weight, for every non-special query that gives one of them any."""
    candidates = [k for k in range(len(sample.keys)) if not sample.keys.special[k]]
    best = {}
    for _, query, row in rows([sample], layer, head):
        if not sample.queries.special[query] and any(row[k] > 0 for k in candidates):
            best[query] = max(candidates, key=row.__getitem__)
    return best


def confidence(corpus: Corpus, layer: int, head: int) -> float:
    """Mean largest weight, separators left out of the queries and the keys, nothing renormalised."""
    peaks = []
    for sample, query, row in rows(corpus, layer, head):
        weights = [row[k] for k in range(len(row)) if not sample.keys.is_separator(k)]
        if weights and not sample.queries.is_separator(query):
            peaks.append(float(max(weights)))
    return mean(peaks)


def confidence_all(corpus: Corpus, layer: int, head: int) -> float:
    """Mean largest weight over all queries and all keys."""
    return mean(float(max(row)) for _, _, row in rows(corpus, layer, head))


class Position(NamedTuple):
    """Where the best keys lie; `histogram` counts "<-8", -8 … 8 and ">8"."""

    histogram: dict[int | str, int]
    counted: int
    positional_offset: float
    positional_share: float
    self_share: float


def position(corpus: Corpus, layer: int, head: int) -> Position:
    """Histogram of the offsets best key - query, and the most frequent kept offset other than 0.

    Of equally frequent offsets the smaller |offset| counts, then the negative one; so a head that never
    points at a kept offset other than 0 has offset -1 with share 0. All are NaN if no query counts.
    """
    offsets = [k - q for sample in corpus for q, k in best_keys(sample, layer, head).items()]
    histogram: dict[int | str, int] = {f"<-{LARGEST_OFFSET}": sum(d < -LARGEST_OFFSET for d in offsets)}
    histogram |= {d: offsets.count(d) for d in KEPT_OFFSETS}
    histogram[f">{LARGEST_OFFSET}"] = sum(d > LARGEST_OFFSET for d in offsets)
    if not offsets:
        return Position(histogram, 0, math.nan, math.nan, math.nan)
    offset = most_frequent([d for d in offsets if d != 0 and d in KEPT_OFFSETS] or [-1])
    n = len(offsets)
    return Position(histogram, n, offset, histogram[offset] / n, histogram[0] / n)


def uniform_position(corpus: Corpus, layer: int, head: int) -> dict[str, float]:
    """Shares of the offsets of a head that is uniform over what its queries may see: every such key is its best one."""
    names = [f"<-{LARGEST_OFFSET}", *map(str, KEPT_OFFSETS), f">{LARGEST_OFFSET}"]
    shares = dict.fromkeys(names, 0.0)
    for sample in corpus:
        for _, query, row in rows([sample], layer, head):
            seen = [k for k in range(len(row)) if row[k] > 0 and not sample.keys.special[k]]
            for k in [] if sample.queries.special[query] else seen:
                shares[names[min(max(k - query, -LARGEST_OFFSET - 1), LARGEST_OFFSET + 1) + LARGEST_OFFSET + 1]] += (
                    1 / len(seen)
                )
    total = sum(shares.values())
    return {name: share / total if total else math.nan for name, share in shares.items()}


def most_frequent(offsets: Iterable[int]) -> int:
    """The most frequent offset; of equally frequent ones the smaller |offset|, then the negative one."""
    counts = Counter(offsets)
    return min(counts, key=lambda d: (-counts[d], abs(d), d))


def steps(corpus: Corpus, layer: int, head: int) -> list[int]:
    """By how many tokens the best key moves between neighbouring queries, none special; none for self-attention."""
    moves = []
    for sample in corpus:
        best = best_keys(sample, layer, head)
        if not sample.is_self:
            moves += [best[b] - best[a] for a, b in pairwise(sorted(best)) if b == a + 1]
    return moves


def row_entropy(row: Iterable[float]) -> float:
    """-sum p ln p in nats, with 0 ln 0 = 0."""
    return -math.fsum(p * math.log(p) for p in row if p > 0)


def entropy(corpus: Corpus, layer: int, head: int) -> float:
    """Mean entropy of the queries' weights, in nats."""
    return mean(row_entropy(row) for _, _, row in rows(corpus, layer, head))


def entropy_norm(corpus: Corpus, layer: int, head: int) -> float:
    """Mean of entropy / ln(keys the query may see), over the queries that may see more than one."""
    return mean(
        row_entropy(row) / math.log(sample.available(query))
        for sample, query, row in rows(corpus, layer, head)
        if sample.available(query) > 1
    )


def mass(corpus: Corpus, layer: int, head: int, goes: Callable[[Sample, int, int], bool]) -> float:
    """Mean over the queries of the weight on the keys for which `goes(sample, query, key)` holds."""
    return mean(
        math.fsum(row[key] for key in range(len(row)) if goes(sample, query, key))
        for sample, query, row in rows(corpus, layer, head)
    )


def class_mass(corpus: Corpus, layer: int, head: int, name: str) -> float:
    """Mean weight on the keys of a class (cls, sep, bos, eos, punct); NaN if the corpus has no such key."""
    if not any(any(getattr(sample.keys, name)) for sample in corpus):
        return math.nan
    return mass(corpus, layer, head, lambda sample, _, key: bool(getattr(sample.keys, name)[key]))


def rests(sample: Sample, key: int) -> bool:
    """Whether a key is one that heads attend mainly to: the first token, a special one of a class, or punctuation."""
    return key == 0 or any(getattr(sample.keys, name)[key] for name in KEY_CLASSES)


def punct_chance(corpus: Corpus) -> float:
    """Mean share of punctuation among the keys that a query may see; NaN if the corpus has none."""
    if not any(any(sample.keys.punct) for sample in corpus):
        return math.nan
    return mean(
        sum(map(bool, sample.keys.punct[: sample.available(query)])) / sample.available(query)
        for sample in corpus
        for query in range(len(sample.queries))
    )


def offset_mass(corpus: Corpus, layer: int, head: int, offset: int) -> float:
    """Mean weight on the key at that offset; a query without one contributes 0. NaN for cross-attention."""
    if not all(sample.is_self for sample in corpus):
        return math.nan
    return mass(corpus, layer, head, lambda _, query, key: key == query + offset)


def distance(corpus: Corpus, layer: int, head: int) -> float:
    """Mean over the queries of sum_k weight |k - q|, in tokens; NaN for cross-attention."""
    if not all(sample.is_self for sample in corpus):
        return math.nan
    return mean(math.fsum(p * abs(k - q) for k, p in enumerate(row)) for _, q, row in rows(corpus, layer, head))


def head_metrics(corpus: Corpus, layer: int, head: int) -> dict[str, float]:
    """One row of the table of heads; `tokens` counts all query tokens."""
    where = position(corpus, layer, head)
    return {
        "tokens": sum(len(sample.queries) for sample in corpus),
        "confidence": confidence(corpus, layer, head),
        "confidence_all": confidence_all(corpus, layer, head),
        "positional_offset": where.positional_offset,
        "positional_share": where.positional_share,
        "self_share": where.self_share,
        "entropy": entropy(corpus, layer, head),
        "entropy_norm": entropy_norm(corpus, layer, head),
        "to_first": mass(corpus, layer, head, lambda _sample, _query, key: key == 0),
        **{f"to_{name}": class_mass(corpus, layer, head, name) for name in KEY_CLASSES},
        "punct_chance": punct_chance(corpus),
        "mass_left": mass(corpus, layer, head, lambda sample, _query, key: not rests(sample, key)),
        "to_self": offset_mass(corpus, layer, head, 0),
        "to_prev": offset_mass(corpus, layer, head, -1),
        "to_next": offset_mass(corpus, layer, head, +1),
        "distance": distance(corpus, layer, head),
        "monotonicity": mean([move >= 0 for move in steps(corpus, layer, head)]),
        "monotonicity_stays": mean([move == 0 for move in steps(corpus, layer, head)]),
    }


def norms(corpus: Corpus, layer: int, head: int) -> dict[str, float]:
    """Shares of the norms of weighted projected values by kind of key, of the output in its layer, and idle weight."""
    read: Counter[str] = Counter()
    outputs = np.zeros(corpus[0].weights.shape[1])
    idle = []
    for sample in corpus:
        assert sample.values is not None
        outputs += np.linalg.norm(sample.weights[layer].astype(float) @ sample.values[layer], axis=-1).sum(1)
        values = sample.values[layer, head]
        lengths = [math.sqrt(math.fsum(x * x for x in value)) for value in values]
        nothing = [length < 0.1 * mean(lengths) for length in lengths]
        for query, row in enumerate(sample.matrix(layer, head)):
            idle.append(math.fsum(row[k] for k in range(len(row)) if nothing[k]))
            for key in range(len(row)):
                kinds = {"first"} if key == 0 else set()
                kinds |= {name for name in ("special", "punct") if getattr(sample.keys, name)[key]}
                kinds |= {{0: "self", -1: "prev", 1: "next"}.get(key - query, "")} - {""} if sample.is_self else set()
                for kind in {*(kinds or {"other"}), "all"}:
                    read[kind] += float(np.linalg.norm(row[key] * values[key]))
    names = ("first", "special", "punct", *(("self", "prev", "next") if corpus[0].is_self else ()), "other")
    shares = {f"norm_to_{name}": read[name] / read["all"] for name in names}
    return shares | {"norm_share": outputs[head] / outputs.sum(), "idle": mean(idle)}


def divergences(first: Array, second: Array) -> Array:
    """Jensen–Shannon divergence of each row of one matrix from the same row of the other, in nats."""
    middle = (first + second) / 2
    return (relative_entropies(first, middle) + relative_entropies(second, middle)) / 2


def relative_entropies(rows_p: Array, rows_q: Array) -> Array:
    """sum p ln (p / q) of every row, with 0 ln 0 = 0."""
    ratios = np.ones_like(rows_p)
    np.divide(rows_p, rows_q, out=ratios, where=rows_p > 0)
    return np.asarray((rows_p * np.log(ratios)).sum(axis=1))


def jensen_shannon(corpus: Corpus) -> Array:
    """Root of the mean divergence of all pairs of heads, layer by layer: (layers * heads, layers * heads)."""
    heads = list(np.ndindex(corpus[0].weights.shape[:2]))
    distances = np.zeros((len(heads), len(heads)))
    for i, first in enumerate(heads):
        for j, second in enumerate(heads):
            values = [d for s in corpus for d in divergences(s.matrix(*first), s.matrix(*second))]
            distances[i, j] = math.sqrt(max(0.0, mean(values)))
    return distances
