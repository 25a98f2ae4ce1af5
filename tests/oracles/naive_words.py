"""Word-level head metrics, the slow and obvious way: attention between units, syntax, rare words.

The counterpart of naive_metrics for whatever is about words: a unit is a word, special tokens are none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from naive_metrics import most_frequent
from naive_samples import Array, Corpus, Sample, make_seq
from naive_statistics import holm, mean, paired_p_value, wilson

DIRECTIONS = ("dep->head", "head->dep")


def word_map(sample: Sample, layer: int, head: int) -> Array:
    """Attention between units, (query units, key units): the mean from a unit's tokens, the sum to them.

    Raises:
        ValueError: if a query unit has no token, so that it has no attention.
    """
    matrix = sample.matrix(layer, head)
    words = np.zeros((sample.queries.n_words, sample.keys.n_words))
    for i in range(sample.queries.n_words):
        sources = sample.queries.tokens_of(i)
        if not sources:
            raise ValueError(f"unit {i} has no token")
        for j in range(sample.keys.n_words):
            targets = sample.keys.tokens_of(j)
            words[i, j] = mean(math.fsum(matrix[q, k] for k in targets) for q in sources)
    return words


def word_level(sample: Sample) -> Sample:
    """The sentence as if its units were its tokens, so that the functions for tokens can be used on words."""
    layers, heads = sample.weights.shape[:2]
    weights = np.array([[word_map(sample, layer, head) for head in range(heads)] for layer in range(layers)])
    queries, keys = (make_seq(range(seq.n_words)) for seq in (sample.queries, sample.keys))
    return replace(sample, queries=queries, keys=keys, weights=weights)


class SyntaxRow(NamedTuple):
    """How well a head finds the other end of one relation, in one direction."""

    n: int
    correct: int
    accuracy: float
    offset: int
    baseline: float
    only_head: int
    only_baseline: int
    p_value: float
    ci_low: float
    ci_high: float


def instances(sample: Sample, relation: str, direction: str) -> list[tuple[int, int]]:
    """(source, target) units of a relation in a direction."""
    ends = [(dependent, head) for dependent, head, name in sample.arcs if name == relation]
    return ends if direction == "dep->head" else [(head, dependent) for dependent, head in ends]


def pointed_unit(row: Array, source: int, *, exclude_self: bool) -> int:
    """The first unit of largest weight, the source itself left out on request; -1 if all get exactly 0."""
    candidates = [j for j in range(len(row)) if not (exclude_self and j == source) and row[j] > 0]
    return max(candidates, key=row.__getitem__, default=-1)


def baseline_offset(corpus: Corpus, relation: str, direction: str) -> int:
    """The most frequent offset target - source, in units."""
    return most_frequent(t - s for sample in corpus for s, t in instances(sample, relation, direction))


def syntax(
    corpus: Corpus,
    layer: int,
    head: int,
    *,
    exclude_self: bool = False,
    baseline_corpus: Corpus | None = None,
) -> dict[tuple[str, str], SyntaxRow]:
    """By (relation, direction), for every relation that occurs in the corpus.

    The baseline's offset comes from the same corpus, or from `baseline_corpus`, which must have every relation.
    """
    relations = sorted({relation for sample in corpus for _, _, relation in sample.arcs})
    maps = [word_map(sample, layer, head) if sample.arcs else np.zeros((0, 0)) for sample in corpus]
    table = {}
    for relation, direction in ((r, d) for r in relations for d in DIRECTIONS):
        offset = baseline_offset(baseline_corpus or corpus, relation, direction)
        right = [
            (pointed_unit(words[s], s, exclude_self=exclude_self) == t, s + offset == t)
            for sample, words in zip(corpus, maps, strict=True)
            for s, t in instances(sample, relation, direction)
        ]
        table[relation, direction] = syntax_row(right, offset)
    return table


def syntax_row(right: Sequence[tuple[bool, bool]], offset: int) -> SyntaxRow:
    """From (head is right, baseline is right) of every instance."""
    n = len(right)
    correct = sum(by_head for by_head, _ in right)
    only_head = sum(by_head and not by_baseline for by_head, by_baseline in right)
    only_baseline = sum(by_baseline and not by_head for by_head, by_baseline in right)
    baseline = sum(by_baseline for _, by_baseline in right) / n
    p_value = paired_p_value(only_head, only_baseline)
    return SyntaxRow(n, correct, correct / n, offset, baseline, only_head, only_baseline, p_value, *wilson(correct, n))


ModelSyntax = dict[tuple[str, int, int, str, str], tuple[SyntaxRow, float]]


def model_syntax(corpora: Sequence[Corpus], *, exclude_self: bool = False) -> ModelSyntax:
    """By (stack, layer, head, relation, direction): the row and its p-value after Holm's correction.

    One corpus per self-attention stack; the correction runs over every row of the result.
    """
    found = {
        (corpus[0].stack, layer, head, relation, direction): row
        for corpus in corpora
        for layer, head in np.ndindex(corpus[0].weights.shape[:2])
        for (relation, direction), row in syntax(corpus, layer, head, exclude_self=exclude_self).items()
    }
    adjusted = holm([row.p_value for row in found.values()])
    return {key: (row, p) for (key, row), p in zip(found.items(), adjusted, strict=True)}


def rare(corpus: Corpus, layer: int, head: int) -> dict[str, float]:
    """Share of query units that point at a rare key unit, and the share if they pointed at random."""
    columns: dict[str, list[float]] = {name: [] for name in ("top1", "top2", "chance", "chance2")}
    for sample in corpus:
        if not any(sample.rare1):
            continue
        for unit, row in enumerate(word_map(sample, layer, head)):
            best = pointed_unit(row, source=-1, exclude_self=False)
            seen = unit + 1 if sample.causal else len(row)
            columns["top1"].append(best >= 0 and bool(sample.rare1[best]))
            columns["top2"].append(best >= 0 and bool(sample.rare2[best]))
            columns["chance"].append(sum(map(bool, sample.rare1[:seen])) / seen)
            columns["chance2"].append(sum(map(bool, sample.rare2[:seen])) / seen)
    return {f"rare_{name}": mean(values) for name, values in columns.items()}


def same_word(corpus: Corpus, layer: int, head: int) -> dict[str, float]:
    """Share of repeated units that point at another unit of their form, and the share if they pointed at random."""
    found: list[bool] = []
    chance: list[float] = []
    for sample in corpus:
        words = word_map(sample, layer, head) if sample.forms else ()
        for unit, row in enumerate(words):
            seen = range(unit + 1) if sample.causal else range(len(row))
            others = [o for o in seen if o != unit and sample.forms[o] == sample.forms[unit] >= 0]
            if others:
                found.append(pointed_unit(row, unit, exclude_self=False) in others)
                chance.append(len(others) / len(seen))
    return {"repeated_words": len(found), "same_word": mean(found), "same_word_chance": mean(chance)}


def coreference(corpus: Corpus, layer: int, head: int) -> dict[str, float]:
    """Share of mentions with an antecedent whose head unit points at one's, what both baselines find, and a test."""
    found: dict[str, list[bool]] = {"": [], "_nearest": [], "_same_word": []}
    for sample in corpus:
        words = word_map(sample, layer, head) if sample.mentions else np.zeros((0, 0))
        for unit, entity in set(sample.mentions):
            antecedents = {other for other, own in sample.mentions if own == entity and other < unit}
            if not antecedents:
                continue
            earlier = [other for other, _ in sample.mentions if other < unit]
            same = [o for o in range(unit) if sample.forms[o] == sample.forms[unit] and sample.forms[o] >= 0]
            found[""].append(pointed_unit(words[unit], unit, exclude_self=False) in antecedents)
            found["_nearest"].append(max(earlier) in antecedents)
            found["_same_word"].append(bool(same) and max(same) in antecedents)
    columns = {f"coreference{name}": mean(values) for name, values in found.items()} | {"mentions": len(found[""])}
    better = max(list(found)[1:], key=lambda name: sum(found[name]))
    pairs = list(zip(found[""], found[better], strict=True))
    test = paired_p_value(pairs.count((True, False)), pairs.count((False, True)))
    return columns | {"coreference_p_value": test if pairs else np.nan}


def text_pair(corpus: Corpus, layer: int, head: int) -> dict[str, float]:
    """Mean weight of tokens on the other text of a pair, and how often they point there at an equal token."""
    columns: dict[str, list[float]] = {name: [] for name in ("to_pair", "first_to_second", "second_to_first")}
    equal: list[bool] = []
    chance: list[float] = []
    for sample in corpus:
        matrix = sample.matrix(layer, head)
        for query, side in enumerate(sample.segment):
            seen = range(query + 1 if sample.causal else len(sample.segment))
            other = [k for k in seen if {side, sample.segment[k]} == {0, 1}]
            if not other:
                continue
            weight = math.fsum(matrix[query, k] for k in other)
            columns["to_pair"].append(weight)
            columns["second_to_first" if side else "first_to_second"].append(weight)
            same = [k for k in other if sample.ids[k] == sample.ids[query]]
            if same and not sample.queries.punct[query]:
                best = max(other, key=lambda k: matrix[query, k])
                equal.append(best in same and matrix[query, best] > 0)
                chance.append(len(same) / len(other))
    found = {name: mean(values) for name, values in columns.items()}
    found |= {"to_equal": mean(equal), "to_equal_chance": mean(chance)}
    return found | {"pair_tokens": len(columns["to_pair"]), "equal_tokens": len(equal)}


def linked_unit(sample: Sample, matrix: Array, words: Sequence[int], unit: int) -> tuple[int | None, list[int]]:
    """The unit of the other text that a unit points at, None for none, and all units of the other text."""
    units: list[int] = list(range(sample.keys.n_words))
    if sample.is_self:
        side = sample.segment[words.index(unit)]
        units = [other for other in units if {side, sample.segment[words.index(other)]} == {0, 1}]
    tokens = [t for t, own in enumerate(words) if own == unit]
    weights = {other: math.fsum(matrix[q, k] for q in tokens for k in sample.keys.tokens_of(other)) for other in units}
    return max((other for other in units if weights[other] > 0), key=weights.__getitem__, default=None), units


def alignment(corpus: Corpus, layer: int, head: int) -> dict[str, float]:
    """Share of linked units that point at a gold partner, and the error rates of Och and Ney (2003)."""
    hits: list[bool] = []
    chance: list[float] = []
    counts: dict[str, list[int]] = {}
    for sample in corpus:
        possible, sure = ({(s, t) for s, t, is_sure in sample.links if is_sure or all_of} for all_of in (True, False))
        read = list(sample.queries.word)
        written = [] if sample.is_self else [*read[1:], -1]
        found: dict[str, set[tuple[int, int]]] = {
            "aer": set(),
            "aer_reverse" if sample.is_self else "aer_written": set(),
        }
        for words, unit in ((own, unit) for own in (read, written) for unit in sorted(set(own) - {-1})):
            best, units = linked_unit(sample, sample.matrix(layer, head), words, unit)
            is_first = sample.is_self and sample.segment[words.index(unit)] == 0
            links = {other: (unit, other) if is_first else (other, unit) for other in units}
            if possible and best is not None:
                found["aer_written" if words is written else "aer_reverse" if is_first else "aer"].add(links[best])
            partners = [other for other in units if links[other] in possible]
            if words is read and partners:
                hits.append(best in partners)
                chance.append(len(partners) / len(units))
        for way, links_of_way in found.items() if possible else ():
            sizes = (len(links_of_way & sure), len(links_of_way & possible), len(links_of_way), len(sure))
            counts[way] = [a + b for a, b in zip(counts.get(way, [0] * 4), sizes, strict=True)]
    rates = {
        way: 1 - (right + likely) / (n + sure) if n + sure else math.nan
        for way, (right, likely, n, sure) in counts.items()
    }
    return {"aligned": mean(hits), "aligned_chance": mean(chance), "aligned_words": len(hits), **rates}


def parts_of_speech(corpus: Corpus, layer: int, head: int) -> dict[tuple[str, str], float]:
    """Mean weight from the tokens of a part of speech to those of another, or of none ("other"); by both."""
    found: dict[tuple[str, str], list[float]] = {}
    to_all = {"other", *(name for sample in corpus for name in sample.upos if name)}
    for sample in corpus:
        matrix = sample.matrix(layer, head)
        own = [sample.query_upos[word] if word >= 0 else "" for word in sample.queries.word]
        keys = [(sample.upos[word] if word >= 0 else "") or "other" for word in sample.keys.word]
        for row, start in zip(matrix, own, strict=True):
            for end in to_all if start else ():
                found.setdefault((start, end), []).append(
                    math.fsum(row[k] for k, name in enumerate(keys) if name == end)
                )
    return {pair: mean(values) for pair, values in found.items()}
