"""The attention maps of given sentences: the recipe of `headlens attend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headlens.attention.capture import Capture
from headlens.attention.contract import BatchTokens
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.corpora.batches import Batch, collate
from headlens.corpora.encoding import EncodedSequence
from headlens.corpora.frequency import unit_forms
from headlens.corpora.sentence import Corpus, Example
from headlens.corpora.text import plain_sentence
from headlens.errors import CorpusError, OptionError
from headlens.heads import Head, Stack
from headlens.metrics.attention_view import Level
from headlens.metrics.words import WordLevel, word_level, word_weights
from headlens.models.loading import LoadedModel
from headlens.runs.corpus_reader import CorpusReader

_SHORTEST, _LONGEST = 8, 20  # tokens of a sentence that can be looked at


@dataclass(frozen=True)
class AttentionMaps:
    """The maps of one sentence.

    Args:
        example: the sentence, or the sentence and its translation.
        weights: by stack, (layers, heads, query, key); NaN in place of heads that were cut out of the model.
        labels: by stack, the texts of the queries and of the keys.
    """

    example: Example
    weights: dict[Stack, Tensor]
    labels: dict[Stack, tuple[list[str], list[str]]]


@dataclass(frozen=True)
class Selection:
    """Which heads to look at; None takes all.

    Args:
        stack: one stack.
        layer: one layer of every stack looked at.
        head: one head of that layer.
    """

    stack: Stack | None = None
    layer: int | None = None
    head: int | None = None

    def check(self, heads: Sequence[Head]) -> None:
        """Refuse a selection that no head fits.

        Raises:
            OptionError: with the range that would do.
        """
        stacks = list(dict.fromkeys(h.stack for h in heads))
        if self.stack is not None and self.stack not in stacks:
            raise OptionError(
                f"--stack {self.stack}: the model was run on: {', '.join(stacks)}.",
                "Choose one of these; decoder and cross need a translation (--target-text).",
            )
        own = [h for h in heads if self.stack in (None, h.stack)]
        for name, wanted, found in (
            ("layer", self.layer, {h.layer for h in own}),
            ("head", self.head, {h.head for h in own if self.layer in (None, h.layer)}),
        ):
            if wanted is not None and wanted not in found:
                raise OptionError(f"--{name} {wanted} is out of range.", f"Choose {_span(found)}; both count from 0.")

    def takes(self, stack: Stack) -> bool:
        """Whether heads of this stack are selected; without a selected stack all are."""
        return self.stack in (None, stack)


def attend(
    loaded: LoadedModel, examples: Sequence[Example], selection: Selection | None = None, *, level: Level = "token"
) -> list[AttentionMaps]:
    """Run a few sentences, one at a time, and keep their attention maps.

    Args:
        loaded: a model with its tokenizer.
        examples: sentences; in pairs for decoder and cross-attention, which is teacher-forced.
        selection: only this stack (layers and heads are not cut out here).
        level: tokens, or words (to a word the sum over its pieces, from it the mean; Clark et al. 2019).

    Raises:
        CorpusError: if a sentence is longer than the model reads.
        OptionError: if the selection fits no head.
    """
    if not examples:
        return []
    selection = selection or Selection()
    feed = CorpusReader.of(loaded, examples[0])
    selection.check([h for s in feed.sites for h in s.heads])
    capture = Capture()
    session = AttentionSession(feed.model, observers=[capture])
    found = []
    with session, torch.inference_mode():
        for example in examples:
            batch = batch_of_one(feed, example)
            feed.model(**batch.inputs, **feed.arguments)
            stacks: dict[Stack, dict[Site, Tensor]] = {}
            for site in session.sites:
                if selection.takes(site.stack):
                    stacks.setdefault(site.stack, {})[site] = capture.weights[site][0]
            weights = {stack: _stacked(maps) for stack, maps in stacks.items()}
            found.append(_maps(loaded, feed, batch, weights, level))
    return found


def examples_of(texts: Sequence[str], translations: Sequence[str] = ()) -> list[Example]:
    """Given sentences, with or without their translations; they have words, but no trees.

    Raises:
        OptionError: if a sentence has no words or the numbers of sentences and translations differ.
    """
    if translations and len(translations) != len(texts):
        raise OptionError(
            f"--target-text: {len(translations)} translations for {len(texts)} sentences.",
            "Give one translation for each sentence.",
        )
    sources = [plain_sentence(t, f"sentence-{i}") for i, t in enumerate(texts, 1)]
    targets = [plain_sentence(t, f"target-{i}") for i, t in enumerate(translations, 1)]
    if not all(s.words for s in [*sources, *targets]):
        raise OptionError("--text: a sentence has no words.", "Give some text.")
    return [Example(s, targets[i] if targets else None) for i, s in enumerate(sources)]


def shown_example(corpus: Corpus, loaded: LoadedModel) -> Example | None:
    """The first sentence of 8 to 20 tokens that the model can read, with its translation; None if there is none."""
    feed = None
    for example in corpus:
        feed = feed or CorpusReader.of(loaded, example)
        encoded = feed.encoder.encode(example)
        if encoded is not None and _SHORTEST <= len(encoded.source.ids) <= _LONGEST:
            return example
    return None


def label_lists(maps: AttentionMaps) -> dict[str, dict[str, list[str]]]:
    """The texts of queries and keys by stack."""
    return {stack: {"queries": queries, "keys": keys} for stack, (queries, keys) in maps.labels.items()}


def _span(numbers: set[int]) -> str:
    """What can be chosen: `0 to 11`, or `0, 2, 3` where heads were cut out."""
    return f"0 to {max(numbers)}" if len(numbers) == max(numbers) + 1 else ", ".join(map(str, sorted(numbers)))


def _stacked(maps: Mapping[Site, Tensor]) -> Tensor:
    """(layers, heads, query, key) by number, with NaN for layers without attention and heads that were cut out."""
    if all(site.left is None and site.layer == i for i, site in enumerate(maps)):
        return torch.stack(list(maps.values()))
    heads = [h for site in maps for h in site.heads]
    queries_keys = next(iter(maps.values())).shape[1:]
    whole = torch.full((max(h.layer for h in heads) + 1, max(h.head for h in heads) + 1, *queries_keys), torch.nan)
    for site, own in maps.items():
        whole[site.layer, [h.head for h in site.heads]] = own.float().cpu()
    return whole


def batch_of_one(feed: CorpusReader, example: Example) -> Batch:
    """A sentence as the model reads it.

    Raises:
        CorpusError: if it is longer than the model reads.
    """
    encoded = feed.encoder.encode(example)
    if encoded is None:
        raise CorpusError(
            f"The sentence {example.source.text[:40]!r} … is longer than the model's {feed.encoder.limit} tokens.",
            "Shorten it; it is not cut in silence.",
        )
    return collate([encoded], pad_id=feed.pad_id, device=feed.model.device)


def _maps(
    loaded: LoadedModel, feed: CorpusReader, batch: Batch, weights: dict[Stack, Tensor], level: Level
) -> AttentionMaps:
    example = batch.examples[0]
    tokens = BatchTokens(decoder=batch.source) if feed.decoder_only else BatchTokens(batch.source, batch.target)
    rows = {id(batch.source): example.source} | ({id(batch.target): example.target} if example.target else {})
    labels: dict[Stack, tuple[list[str], list[str]]] = {}
    for stack, maps in list(weights.items()):
        site = next(s for s in feed.sites if s.stack == stack)
        sides = [side for side in tokens.of(site) if side is not None]
        words = [word_level(side.to("cpu")) for side in sides]
        if level == "word":
            weights[stack] = word_weights(maps, words[0], words[1])
        names = [_labels(loaded, rows[id(side)], word, level) for side, word in zip(sides, words, strict=True)]
        labels[stack] = (names[0], names[1])
    source = example.source.sentence
    return AttentionMaps(Example(source, example.target.sentence if example.target else None), weights, labels)


def _labels(loaded: LoadedModel, row: EncodedSequence, words: WordLevel, level: Level) -> list[str]:
    assert loaded.tokenizer is not None
    names = [str(n) for n in loaded.tokenizer.convert_ids_to_tokens(list(row.ids))]
    if level == "token":
        return names
    forms = unit_forms(row)
    first = {int(u): i for i, u in reversed(list(enumerate(words.unit[0])))}
    word = words.tokens.word[0].tolist()
    return [forms[w] if w >= 0 else names[first[u]] for u, w in enumerate(word)]
