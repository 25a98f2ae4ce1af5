"""Annotations of batches for metrics: dependency arcs, rare words, a sample of queries."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headlens.attention.edits_and_observers import PARTS_OF_SPEECH, BatchTokens, Tokens
from headlens.corpora.alignment import UNALIGNED
from headlens.corpora.batches import Batch, padded
from headlens.corpora.encoding import EncodedExample, EncodedSequence, TokenKind
from headlens.corpora.frequency import Frequency, rarity, unit_forms, word_key
from headlens.corpora.relations import normalise, relation_of
from headlens.corpora.sentence import OUTSIDE, ROOT

# Of the first 148 sentences of German PUD that are long enough, 9 have such a tie under a German list of frequencies,
# 138 under an English one.
MOST_TIES = 0.25
_PART_NUMBERS = {name: number for number, name in enumerate(PARTS_OF_SPEECH)}


@dataclass
class AnnotationCounts:
    """Counts of dependency arcs and rare words in a corpus, and of what could not be measured.

    Args:
        arcs: instances of the relations, by relation, that were measured.
        lost_arcs: instances whose two words share a unit or are in different windows, or one of which has no token.
        trees: sentences with a tree, of both sides.
        no_tree: sentences, or windows of such, without one; `EncodingCounts.no_tree` counts whole sentences.
        rare_sentences: sentences long enough for the rare-word metric.
        tied_sentences: those in which several words tie for the rarest, as words unknown to the list do.
        pairs: sequences of two texts.
        no_pair: sequences of one text, which were to be two.
        links: gold links between words of two texts that were measured.
        lost_links: those of which a word has no token.
        lost_mentions: mentions of entities whose head word has no token.
        labels: words with a head, by their label as the trees write it, in lower case.
    """

    arcs: dict[str, int] = field(default_factory=dict)
    lost_arcs: int = 0
    trees: int = 0
    no_tree: int = 0
    rare_sentences: int = 0
    tied_sentences: int = 0
    pairs: int = 0
    no_pair: int = 0
    links: int = 0
    lost_links: int = 0
    lost_mentions: int = 0
    labels: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def rarity_is_vague(self) -> bool:
        """Whether so many words tie for the rarest that pointing at one of them means little."""
        return self.tied_sentences > MOST_TIES * self.rare_sentences


@dataclass(frozen=True)
class Annotator:
    """Adds trees, rare words, repeated words, parts of speech and sampled queries to the tokens of batches.

    Args:
        relations: which relations to look for, UD names; see `relation_of`.
        frequency: word frequencies of the source language; None for no rare words.
        target_frequency: the same for the target side of pairs.
        words: number the forms and the parts of speech of words, and list the mentions of entities.
        pairs: tell the two texts of a sequence apart.
        sample: choose one query token per sentence for costly statistics.
        seed: another seed chooses other tokens.
    """

    relations: tuple[str, ...] = ()
    frequency: Frequency | None = None
    target_frequency: Frequency | None = None
    words: bool = False
    pairs: bool = False
    sample: bool = True
    seed: int = 0

    def annotate(self, batch: Batch, counts: AnnotationCounts, *, decoder_only: bool) -> BatchTokens:
        """Annotates the tokens of a batch by stack; the only sequence of a decoder-only model is that of its decoder.

        Args:
            batch: examples and their tokens.
            counts: grows by the arcs, trees and rare words of the batch.
            decoder_only: whether the model has a decoder and no encoder.
        """
        source = self._side(batch.source, [e.source for e in batch.examples], self.frequency, counts)
        links = _links(batch.examples, counts)
        if batch.target is None:
            source = source if links is None else source.annotated(links=links)
            return BatchTokens(decoder=source) if decoder_only else BatchTokens(encoder=source)
        rows = [e.target for e in batch.examples if e.target is not None]
        target = self._side(batch.target, rows, self.target_frequency, counts)
        return BatchTokens(source, target if links is None else target.annotated(links=links))

    def _side(
        self, tokens: Tokens, rows: Sequence[EncodedSequence], frequency: Frequency | None, counts: AnnotationCounts
    ) -> Tokens:
        """Annotates the tokens of one side, on their device."""
        annotations: dict[str, Tensor] = {}
        if self.relations:
            annotations["arcs"] = self._arcs(rows, counts)
        forms = [unit_forms(row) for row in rows] if frequency is not None or self.words else []
        if frequency is not None:
            ranks = rarity(forms, frequency)  # (batch, units)
            counts.rare_sentences += int(ranks.any(1).sum())
            counts.tied_sentences += int(((ranks == 2).sum(1) > 1).sum())
            annotations["rarity"] = torch.from_numpy(ranks)
        if self.words:
            keys = (np.array(list(map(_form_key, row)), dtype=object) for row in forms)
            annotations["forms"] = padded([pd.factorize(row)[0] for row in keys], -1)
            if any(word.upos for row in rows for word in row.sentence.words):
                annotations["upos"] = _parts_of_speech(rows)
            if any(word.entities for row in rows for word in row.sentence.words):
                annotations["mentions"] = _mentions(rows, annotations["forms"], counts)
        if self.pairs:
            annotations["segment"] = _segments(rows, counts)
        if self.sample:
            # One token per sentence by a hash of its text, so that batch, order and shard do not matter: (batch,).
            draws = [zlib.crc32(row.sentence.text.encode(), self.seed) % len(row) for row in rows]
            annotations["sampled"] = torch.tensor(draws, dtype=torch.int64)
        return tokens.annotated(**annotations)

    def _arcs(self, rows: Sequence[EncodedSequence], counts: AnnotationCounts) -> Tensor:
        """Lists the arcs of the relations: (arcs, 4), of row, unit of the dependent, unit of the head, relation."""
        arcs: list[tuple[int, int, int, int]] = []
        numbers = {normalise(name): number for number, name in enumerate(self.relations)}
        relation = cache(lambda label: relation_of(label, numbers))
        labels: Counter[str] = Counter()
        for sentence, row in enumerate(rows):
            if not row.sentence.has_tree:
                counts.no_tree += 1
                continue
            counts.trees += 1
            for unit, word in zip(row.unit_of_word, row.sentence.words, strict=True):
                if word.head is None or word.head == ROOT or not word.relation:
                    continue
                label = word.relation.lower()
                labels[label] += 1
                if (name := relation(label)) is None:
                    continue
                head = UNALIGNED if word.head == OUTSIDE else row.unit_of_word[word.head]
                if unit == head or UNALIGNED in (unit, head):
                    counts.lost_arcs += 1
                else:
                    arcs.append((sentence, unit, head, numbers[name]))
        counts.labels = dict(Counter(counts.labels) + labels)
        counts.arcs = dict(Counter(counts.arcs) + Counter(self.relations[arc[3]] for arc in arcs))
        return torch.tensor(arcs, dtype=torch.int64).view(-1, 4)


def _segments(rows: Sequence[EncodedSequence], counts: AnnotationCounts) -> Tensor:
    """Numbers the tokens of two texts, see `Tokens.segment`; -1 where one of the texts has no token."""
    segments = []
    for row in rows:
        begin, end = row.between or (-1, -1)
        starts, ends = np.array(row.spans).T
        is_text = (np.array(row.kinds) & int(TokenKind.SPECIAL)) == 0
        sides = np.select([is_text & (ends <= begin), is_text & (starts >= end)], [0, 1], -1)
        is_pair = {0, 1} <= set(sides.tolist())
        segments.append(sides if is_pair else np.full(len(row), -1))
        counts.pairs += is_pair
        counts.no_pair += not is_pair
    return padded(segments, -1)


def _links(examples: Sequence[EncodedExample], counts: AnnotationCounts) -> Tensor | None:
    """Lists gold links between units, see `Tokens.links`; None where no example has any."""
    if all(example.links is None for example in examples):
        return None
    links: dict[tuple[int, int, int], bool] = {}
    for sentence, example in enumerate(examples):
        of_source, of_target = example.sides[0].unit_of_word, example.sides[-1].unit_of_word
        for link in example.links or ():
            units = of_source[link.source], of_target[link.target]
            if UNALIGNED in units:
                counts.lost_links += 1
                continue
            # Words of one unit are one word, and surely linked if one of them is.
            links[(sentence, *units)] = links.get((sentence, *units), False) or link.sure
    counts.links += len(links)
    return torch.tensor([(*place, int(sure)) for place, sure in links.items()], dtype=torch.int64).view(-1, 4)


@lru_cache(maxsize=2**16)
def _form_key(form: str) -> str | None:
    """Returns the form under which a unit is counted, None for one without a letter or digit."""
    return word_key(form) if any(map(str.isalnum, form)) else None


def _mentions(rows: Sequence[EncodedSequence], forms: Tensor, counts: AnnotationCounts) -> Tensor:
    """Lists the mentions of entities, see `Tokens.mentions`; the two texts of a pair name their entities apart."""
    mention_rows: list[tuple[int, ...]] = []
    for sentence, (row, own_forms) in enumerate(zip(rows, forms.tolist(), strict=True)):
        last = row.between[0] if row.between else len(row.sentence.text)
        entities: dict[tuple[str, bool], int] = {}
        mentions: dict[tuple[int, int], None] = {}
        for word, unit in zip(row.sentence.words, row.unit_of_word, strict=True):
            for name in word.entities:
                if unit == UNALIGNED:
                    counts.lost_mentions += 1
                else:
                    mentions[unit, entities.setdefault((name, word.start > last), len(entities))] = None
        before = _same_before(own_forms)
        units = sorted({unit for unit, _ in mentions})
        firsts: dict[int, int] = {}  # the first mention of every entity
        for unit, entity in mentions:
            firsts[entity] = min(unit, firsts.get(entity, unit))
        for unit, entity in mentions:
            place = bisect_left(units, unit)
            earlier = units[place - 1] if place else -1
            hits = [(other, entity) in mentions for other in (earlier, before[unit])]
            mention_rows.append((sentence, unit, entity, firsts[entity] < unit, *hits))
    return torch.tensor(mention_rows, dtype=torch.int64).view(-1, 6)


def _same_before(forms: Sequence[int]) -> list[int]:
    """Lists for every unit the last one before it that has the same form, -1 for none and for punctuation."""
    last: dict[int, int] = {}
    previous = []
    for unit, form in enumerate(forms):
        previous.append(last.get(form, -1) if form >= 0 else -1)
        last[form] = unit
    return previous


def _parts_of_speech(rows: Sequence[EncodedSequence]) -> Tensor:
    """Numbers the part of speech of every unit, that of its first word, see `Tokens.upos`."""
    words = [dict(zip(reversed(row.unit_of_word), reversed(row.sentence.words), strict=True)) for row in rows]
    return padded(
        [
            [_PART_NUMBERS.get(words_of_row[unit].upos or "", -1) for unit in range(max(words_of_row, default=-1) + 1)]
            for words_of_row in words
        ],
        -1,
    )
