"""The attention maps of given sentences: what `headlens attend` measures, in one state of a model or in several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headlens.attention.capture import Capture
from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, Tokens
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.corpora.batches import Batch, collate
from headlens.corpora.encoding import EncodedSequence
from headlens.corpora.frequency import Frequency, rarity, unit_forms
from headlens.corpora.sentence import Corpus, Example
from headlens.errors import CorpusError
from headlens.heads import Head, Stack
from headlens.interventions.gates import HeadGates
from headlens.maps.selection import Selection
from headlens.metrics.words import WordLevel, word_level, word_weights
from headlens.models.loading import LoadedModel
from headlens.options import Level
from headlens.pages.head_cards import SentenceMap, TokenGroups
from headlens.pages.score_parts import ScoreParts
from headlens.runs.corpus_pass import CorpusReader

Lists = tuple[Frequency | None, Frequency | None]  # of words of the source and of the target side
_SINGLE, _FEW_DIGITS = 4, 2e-2  # bytes of a number of single precision; by how much weights of half of it are off
_SHORTEST, _LONGEST = 8, 20  # tokens of a sentence that can be looked at


@dataclass(frozen=True)
class AttentionMaps:
    """The maps of one sentence.

    Args:
        example: the sentence, or the sentence and its translation.
        weights: by stack, (layers, heads, query, key); NaN in place of heads that were cut out of the model.
        labels: by stack, the texts of the queries and of the keys.
        groups: by stack, words and special tokens among the queries and among the keys.
        scores: by stack, what the weights of some heads are made of, where somebody asked for it.
    """

    example: Example
    weights: dict[Stack, Tensor]
    labels: dict[Stack, tuple[list[str], list[str]]]
    groups: dict[Stack, tuple[TokenGroups, TokenGroups]]
    scores: dict[Stack, list[ScoreParts]] = field(default_factory=dict)

    def sentence_maps(self, name: str, state: int = 0, sentence: int = 0) -> list[SentenceMap]:
        """The maps by stack, as pages and figures show them, under a name; see `SentenceMap`."""
        text = self.example.source.text.replace("\n", " ")  # between two texts that were read as one sequence
        return [
            SentenceMap(
                *(name, stack, *self.labels[stack], w.float().numpy(), text, state, *self.groups[stack], sentence),
                scores=self.scores.get(stack),
            )
            for stack, w in self.weights.items()
        ]


def collect_attention(
    loaded: LoadedModel,
    examples: Sequence[Example],
    selection: Selection | None = None,
    *,
    level: Level = "token",
    without: Sequence[Head] = (),
    frequencies: Lists = (None, None),
    score_room: int = 0,
) -> list[AttentionMaps]:
    """Run a few sentences, one at a time, and keep their attention maps.

    Args:
        loaded: a model with its tokenizer.
        examples: sentences; in pairs for decoder and cross-attention, which is teacher-forced.
        selection: only this stack (layers and heads are not cut out here, but only theirs are the scores).
        level: tokens, or words (to a word the sum over its pieces, from it the mean; Clark et al. 2019).
        without: heads whose output is zero; their maps are NaN.
        frequencies: of words of the source and of the target side, which tell the rarest word of each sentence.
        score_room: bytes for queries and keys of the selected heads: what the weights are made of is kept for the first
            sentences, as long as they fit. At the level of words there is none.

    Raises:
        CorpusError: if a sentence is longer than the model reads.
        OptionError: if the selection fits no head, or there is no such head to go without.
    """
    if not examples:
        return []
    selection = selection or Selection()
    reader = CorpusReader.of(loaded, examples[0])
    selection.check([h for s in reader.sites for h in s.heads])
    capture = _ScoreCapture(selection, 0 if level == "word" else score_room)
    gates = [HeadGates(dict.fromkeys(without, 0.0))] if without else []
    session = AttentionSession(reader.model, observers=[capture], edits=gates)
    collected = []
    with session, torch.inference_mode():
        for example in examples:
            batch = batch_of_one(reader, example)
            reader.model(**batch.inputs, **reader.arguments)
            stacks: dict[Stack, dict[Site, Tensor]] = {}
            for site in session.sites:
                if selection.takes(site.stack):
                    site_weights = stacks.setdefault(site.stack, {})[site] = capture.weights[site][0]
                    site_weights[[head in without for head in site.heads]] = torch.nan
            stacked = {stack: _stacked(maps) for stack, maps in stacks.items()}
            maps = _maps(loaded, reader, batch, stacked, level, frequencies)
            maps.scores.update({stack: [] for stack in stacked if capture.asked})
            for site, parts in capture.scores.items():
                if present := [
                    i for i, head in enumerate(parts.heads) if Head(site.stack, site.layer, head) not in without
                ]:
                    maps.scores[site.stack].append(parts.of_heads(present))
            collected.append(maps)
    return collected


class _ScoreCapture(Capture):
    """Keeps what scores of the selected heads are made of beside all weights, where there is room for all of them."""

    def __init__(self, selection: Selection, room: int) -> None:
        super().__init__()
        self.selection, self.asked, self.left, self._left = selection, room > 0, room, room
        self.scores: dict[Site, ScoreParts] = {}
        self._new: dict[Site, ScoreParts] = {}

    def observe(self, call: AttentionCall) -> None:
        """Keeps weights and, while there is room, what they are made of."""
        super().observe(call)
        site, wanted = call.site, self.selection
        numbers = [head.head for head in site.heads]
        allowed = {*numbers} & ({wanted.head} if wanted.head is not None else {*(wanted.heads or numbers)})
        if self._left <= 0 or not wanted.takes(site.stack) or wanted.layer not in (None, site.layer) or not allowed:
            return
        chosen = [place for place, number in enumerate(numbers) if number in allowed]
        queries, keys = (t[0, chosen].detach().float().cpu() for t in (call.query, call.key_of_heads))
        self._left -= 4 * (queries.numel() + keys.numel())
        if self._left > 0:
            assert call.weights is not None
            # A factor of another kind is part of the rest.
            scaling = call.scaling if isinstance(call.scaling, float) else queries.shape[-1] ** -0.5
            heads, vectors = [numbers[place] for place in chosen], (queries.numpy(), keys.numpy())
            parts = ScoreParts(site.layer, heads, scaling, *vectors, shared_by=site.shared_by)
            # Weights of few digits are off by as much.
            agrees = {} if call.weights.dtype.itemsize >= _SINGLE else {"agrees": _FEW_DIGITS}
            self._new[site] = parts.fitted(self._pending[site][0, chosen].numpy(), **agrees)

    def commit(self) -> None:
        """Replaces what was kept; what does not fit into the room of all sentences is dropped as a whole."""
        super().commit()
        fits = self._left > 0
        self.scores, self._new = self._new if fits else {}, {}
        self.left = self._left = self._left if fits else self.left

    def discard(self) -> None:
        """Drops what was kept of the pass that failed."""
        super().discard()
        self._new, self._left = {}, self.left


def sink_notes(maps: Iterable[npt.ArrayLike]) -> list[str]:
    """The note that rows of maps, (..., query, key) with NaN for missing heads, add up to less than 1."""
    least = min(
        (float(np.nan_to_num(np.sum(weights, -1), nan=1).min()) for weights in map(np.asarray, maps)), default=1.0
    )
    if least > 1 - 1e-2:
        return []
    return [
        f"Rows of these maps add up to less than 1 (to {least:.2f} at the least): the rest of the attention goes to no "
        "token, as with a learned sink."
    ]


def shown_examples(corpus: Corpus, loaded: LoadedModel, most: int = 1) -> list[Example]:
    """The first sentences of 8 to 20 tokens that the model can read, with their translations."""
    if (first := next(iter(corpus), None)) is None:
        return []
    encode = CorpusReader.of(loaded, first).encoder.encode
    encoded = ((example, encode(example)) for example in corpus)
    fitting = (example for example, row in encoded if row and _SHORTEST <= len(row.source.ids) <= _LONGEST)
    return list(islice(fitting, most))


def _stacked(maps: Mapping[Site, Tensor]) -> Tensor:
    """(layers, heads, query, key) by number, with NaN for layers without attention and heads that were cut out."""
    if all(site.left is None and site.layer == i for i, site in enumerate(maps)):
        return torch.stack(list(maps.values()))
    heads = [h for site in maps for h in site.heads]
    queries_keys = next(iter(maps.values())).shape[1:]
    stacked = torch.full((max(h.layer for h in heads) + 1, max(h.head for h in heads) + 1, *queries_keys), torch.nan)
    for site, weights in maps.items():
        stacked[site.layer, [h.head for h in site.heads]] = weights.float().cpu()
    return stacked


def batch_of_one(reader: CorpusReader, example: Example) -> Batch:
    """A sentence as the model reads it.

    Raises:
        CorpusError: if it is longer than the model reads.
    """
    encoded = reader.encoder.encode(example)
    if encoded is None:
        raise CorpusError(
            f"The sentence {example.source.text[:40]!r} … is longer than the model's {reader.encoder.limit} tokens.",
            "Shorten it; headlens does not truncate it silently.",
        )
    return collate([encoded], pad_id=reader.pad_id, device=reader.model.device)


def _maps(
    loaded: LoadedModel, reader: CorpusReader, batch: Batch, weights: dict[Stack, Tensor], level: Level, lists: Lists
) -> AttentionMaps:
    example = batch.examples[0]
    tokens = BatchTokens(decoder=batch.source) if reader.decoder_only else BatchTokens(batch.source, batch.target)
    rows = {id(batch.source): (example.source, lists[0])}
    if example.target is not None:
        rows[id(batch.target)] = example.target, lists[1]
    labels: dict[Stack, tuple[list[str], list[str]]] = {}
    groups: dict[Stack, tuple[TokenGroups, TokenGroups]] = {}
    for stack, maps in weights.items():
        site = next(s for s in reader.sites if s.stack == stack)
        sides = [side for side in tokens.of(site) if side is not None]
        words = [word_level(side.to("cpu")) for side in sides]
        if level == "word":
            weights[stack] = word_weights(maps, words[0], words[1])
        labelled = [
            _labels_and_groups(loaded, s, word, level, *rows[id(s)]) for s, word in zip(sides, words, strict=True)
        ]
        labels[stack], groups[stack] = zip(*labelled, strict=True)
    source = example.source.sentence
    return AttentionMaps(Example(source, example.target.sentence if example.target else None), weights, labels, groups)


def _labels_and_groups(
    loaded: LoadedModel, side: Tokens, words: WordLevel, level: Level, row: EncodedSequence, frequency: Frequency | None
) -> tuple[list[str], TokenGroups]:
    """The texts of the tokens of a side, or of its words, and what belongs together among them."""
    assert loaded.tokenizer is not None
    names = [str(n) for n in loaded.tokenizer.convert_ids_to_tokens(list(row.ids))]
    forms, of_units = unit_forms(row), words.tokens.word[0].tolist()
    first = {int(u): i for i, u in reversed(list(enumerate(words.unit[0])))}
    # Special tokens are words of their own here, and have no number of a word in the text.
    texts = [forms[w] if w >= 0 else names[first[u]] for u, w in enumerate(of_units)]
    ranks = [] if frequency is None else rarity([forms], frequency)[0]
    rarest = [place for place, word in enumerate(of_units) if word >= 0 and 2 in ranks[word:][:1]]
    of_texts = _text_of_tokens(row)
    if level == "word":
        of_texts = [of_texts[first[u]] for u in range(len(texts))] if of_texts else []
        return texts, TokenGroups([*range(len(texts))], texts, words.tokens.special[0].tolist(), rarest, of_texts)
    return names, TokenGroups(words.unit[0].tolist(), texts, side.special[0].tolist(), rarest, of_texts)


def _text_of_tokens(row: EncodedSequence) -> list[int]:
    """Numbers the text of every token of two in one sequence: special tokens belong to what stands before them."""
    if row.between is None:
        return []
    begins = [end > start >= row.between[1] for start, end in row.spans]
    return [int(any(begins[: place + 1])) for place in range(len(row))] if any(begins) else []
