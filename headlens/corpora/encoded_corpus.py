"""Encodes a whole corpus sentence by sentence, counts what is left out or unknown, and masks tokens to be predicted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from headlens.corpora.alignment import UNALIGNED
from headlens.corpora.batches import Ids
from headlens.corpora.encoding import EncodedExample, EncodedSequence, SentenceEncoder, TokenKind
from headlens.corpora.sentence import Example
from headlens.errors import CorpusError, OptionError
from headlens.languages import case_note
from headlens.statistics.seeding import generator_of

NOTED = 0.01  # share of unknown tokens from which there is a note
_EARLY = 5000  # tokens after which text that is nearly all unknown is refused at once
_NEARLY_ALL = 0.9
_FORMS = 3  # words without a token that are kept
Counts = TypeVar("Counts", bound=Any)


@dataclass
class UnknownTokens:
    """Counts of the tokens of a text.

    Args:
        tokens: tokens that stand for text.
        unknown: how many of these are the unknown token of the vocabulary.
    """

    tokens: int = 0
    unknown: int = 0

    def add(self, ids: Iterable[int], unknown_id: int | None, special: Collection[int]) -> None:
        """Counts the tokens of one sequence; `special` ids stand for no text."""
        text = [i for i in ids if i not in special]
        self.tokens += len(text)
        self.unknown += 0 if unknown_id is None else text.count(unknown_id)

    def notes(self, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """Returns what the reader of a table should know: one note where a hundredth or more is unknown."""
        if not self.unknown or self.unknown < NOTED * self.tokens:
            return []
        share = self._share_text("the text")
        sentence = f"{share} unknown to the model's tokenizer, which maps all of them to the same token."
        return [f"{sentence} {case_note(tokenizer)}".strip()]

    def check(self, allowed: float, name: str, tokenizer: PreTrainedTokenizerBase, *, complete: bool = True) -> None:
        """Refuses text of which too much is unknown.

        Args:
            allowed: share from which on it is refused; 1 refuses nothing.
            name: name of the text.
            tokenizer: what read it; the error tells if it writes other letters than its vocabulary has.
            complete: whether it was read to its end; before that only what is nearly all unknown is refused.

        Raises:
            CorpusError: with the share, and what to do.
        """
        limit = allowed if complete else max(allowed, _NEARLY_ALL)
        enough = self.tokens >= (1 if complete else _EARLY)
        if allowed < 1 and enough and self.unknown and self.unknown >= limit * self.tokens:
            raise CorpusError(
                f"{self._share_text(name)} unknown to the model's tokenizer: it cannot read this text.",
                (case_note(tokenizer) or "Give text in the language and script of the model.")
                + " --model-args max-unknown=1 measures it anyway.",
            )

    def _share_text(self, name: str) -> str:
        share = self.unknown / self.tokens
        return f"{share:.1%} of the tokens of {name} ({self.unknown:,} of {self.tokens:,}) are"


@dataclass
class EncodingCounts:
    """Counts of an encoded corpus and of what was left out; of pairs, both sides are counted.

    Args:
        sentences: examples that were encoded (a pair counts once).
        tokens, words: tokens and words of these examples, special tokens included.
        too_long: examples left out because a side has more tokens than the model reads.
        windowed: sentences cut into windows because they have more; each window counts as a sentence.
        words_too_long: words in no window, because they alone have more.
        empty: examples left out because a side has no words or no tokens.
        unmaskable: examples left out because no token of text can be masked; they are among `sentences`.
        own_masks: examples whose text holds mask tokens.
        masked: tokens that were masked in all other examples.
        unaligned_words: words that no token touches.
        unaligned_tokens: tokens of text that no word covers.
        merged_words: words read as one unit with another word.
        sentences_with_unaligned: examples with an unaligned word.
        unaligned_in_trees: those of the unaligned words whose sentence has a dependency tree.
        unaligned_forms: the first unaligned words, with their numbers.
        no_tree: sentences without a dependency tree, of both sides; one that is cut into windows counts once.
        text_tokens: tokens that stand for text, by side: `source`, `target`.
        unknown_tokens: how many of these are the unknown token.
    """

    sentences: int = 0
    tokens: int = 0
    words: int = 0
    too_long: int = 0
    windowed: int = 0
    words_too_long: int = 0
    empty: int = 0
    unmaskable: int = 0
    own_masks: int = 0
    masked: int = 0
    unaligned_words: int = 0
    unaligned_tokens: int = 0
    merged_words: int = 0
    sentences_with_unaligned: int = 0
    unaligned_in_trees: int = field(default=0, compare=False)
    unaligned_forms: dict[str, int] = field(default_factory=dict, compare=False)
    no_tree: int = field(default=0, compare=False)
    text_tokens: dict[str, int] = field(default_factory=dict)
    unknown_tokens: dict[str, int] = field(default_factory=dict)

    @property
    def unknown(self) -> list[UnknownTokens]:
        """Counts of text tokens and of those that are unknown, of every side: one may be text that nobody can read."""
        return [UnknownTokens(number, self.unknown_tokens[side]) for side, number in self.text_tokens.items()]

    def add(self, example: EncodedExample, unknown_id: int | None) -> None:
        """Adds an encoded example to the counts: its tokens, words, and words and tokens without alignment."""
        self.sentences += 1
        self.sentences_with_unaligned += any(side.alignment.unaligned_words for side in example.sides)
        for name, side in zip(("source", "target"), example.sides, strict=False):
            self.tokens += len(side)
            self.words += len(side.sentence.words)
            self._add_unaligned(side)
            self.unaligned_tokens += side.alignment.unaligned_tokens
            self.merged_words += side.alignment.merged_words
            text = sum(not k & TokenKind.SPECIAL for k in side.kinds)
            unknown = 0 if unknown_id is None else side.ids.count(unknown_id)
            self.text_tokens[name] = self.text_tokens.get(name, 0) + text
            self.unknown_tokens[name] = self.unknown_tokens.get(name, 0) + unknown

    def _add_unaligned(self, side: EncodedSequence) -> None:
        number = side.alignment.unaligned_words
        self.unaligned_words += number
        self.unaligned_in_trees += number * side.sentence.has_tree
        for word, unit in zip(side.sentence.words if number else (), side.unit_of_word, strict=False):
            if unit == UNALIGNED and (len(self.unaligned_forms) < _FORMS or word.form in self.unaligned_forms):
                self.unaligned_forms[word.form] = self.unaligned_forms.get(word.form, 0) + 1


def encode_corpus(
    corpus: Iterable[Example], encoder: SentenceEncoder, counts: EncodingCounts
) -> Iterator[EncodedExample]:
    """Encodes the examples that can be read, one at a time; `counts` grows by all, also by those left out.

    Raises:
        AlignmentError: if the tokenizer cannot say where its tokens stand.
        CorpusError: if more of it is unknown to the tokenizer than the encoder allows.
    """
    for example in corpus:
        # Sides that the model does not read may be empty.
        read = (example.source, example.target) if encoder.reads_pairs else (example.source,)
        if not all(side.words for side in read if side is not None):
            counts.empty += 1
        elif (encoded := encoder.encode(example)) is None:
            yield from _windows(example, encoder, counts)
        elif any(all(k & TokenKind.SPECIAL for k in side.kinds) for side in encoded.sides):
            counts.empty += 1  # a tokenizer may remove all the text, or not know any of it
        else:
            counts.no_tree += sum(not side.sentence.has_tree for side in encoded.sides)
            counts.add(encoded, encoder.unknown_id)
            _check(counts, encoder, complete=False)
            yield encoded
    _check(counts, encoder, complete=True)


def _check(counts: EncodingCounts, encoder: SentenceEncoder, *, complete: bool) -> None:
    for side in counts.unknown:
        side.check(encoder.max_unknown, "the corpus", encoder.tokenizer, complete=complete)


def _windows(example: Example, encoder: SentenceEncoder, counts: EncodingCounts) -> Iterator[EncodedExample]:
    """Yields the windows of an example that is too long, and counts it."""
    windows, lost = encoder.windows(example)
    windows = [window for window in windows if all(window.sides)]
    counts.too_long += not windows
    if windows:
        counts.windowed += 1
        counts.no_tree += not example.source.has_tree
        counts.words_too_long += lost
    for window in windows:
        counts.add(window, encoder.unknown_id)
        yield window


def add_counts(total: Counts, more: Counts) -> Counts:
    """Adds the counts of one dataclass to those of another of the same kind, such as those of a shard to the sum.

    Args:
        total: dataclass of whole numbers and dictionaries of whole numbers; grows, and is returned.
        more: counts that are added; stays as it is.
    """
    for counter in fields(total):
        count, addend = getattr(total, counter.name), getattr(more, counter.name)
        if isinstance(count, dict):
            count |= {key: count.get(key, 0) + number for key, number in addend.items()}
        else:
            setattr(total, counter.name, count + addend)
    return total


@dataclass(frozen=True)
class Masking:
    """Share and seed of the tokens of a sentence that are masked.

    A sentence whose text holds mask tokens keeps these and gets no others. Else `share` of its tokens of text, rounded
    and at least one, become mask tokens; which ones depends on the sentence and the seed alone. There are no random or
    unchanged tokens among them, unlike in BERT's training.

    Args:
        mask_id: id of the mask token.
        share: above 0, at most 1.
        seed: another seed masks other tokens.

    Raises:
        OptionError: if `share` is out of range.
    """

    mask_id: int
    share: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            advice = "BERT was trained with 0.15."
            raise OptionError(f"mask-share {self.share} is not above 0 and at most 1.", advice)

    def mask(self, example: EncodedExample) -> EncodedExample | None:
        """Returns the example with masked tokens; itself if its text holds mask tokens, None if it has no text."""
        source = example.source
        if self.mask_id in source.ids:
            return example
        text = [i for i, kind in enumerate(source.kinds) if not kind & TokenKind.SPECIAL]
        if not text:
            return None
        ids = list(source.ids)
        for place in drawn_places(text, self.share, generator_of(example.key, self.seed)):
            ids[place] = self.mask_id
        return replace(example, source=replace(source, ids=tuple(ids)))


def drawn_places(text: Sequence[int] | Ids, share: float, generator: np.random.Generator) -> Ids:
    """Draws places to predict, in random order: a share of those of text, rounded; at least one if there are any."""
    count = min(len(text), max(1, round(share * len(text))))
    return generator.choice(np.asarray(text, dtype=np.int64), count, replace=False)


def mask_examples(
    examples: Iterable[EncodedExample], masking: Masking, counts: EncodingCounts
) -> Iterator[EncodedExample]:
    """Masks one example at a time, and counts; examples without a token of text are left out."""
    for example in examples:
        masked = masking.mask(example)
        if masked is None:
            counts.unmaskable += 1
            continue
        if masked is example:
            counts.own_masks += 1
        else:
            counts.masked += masked.source.ids.count(masking.mask_id)
        yield masked
