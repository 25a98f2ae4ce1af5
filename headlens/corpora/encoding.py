"""Encodes sentences as token ids, with the kind of every token and the unit of words that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntFlag
from functools import cached_property
from typing import Literal

from transformers import PreTrainedTokenizerBase

from headlens.corpora.alignment import Alignment, Side, align, cut_windows, is_punctuation, tokenize, tokenize_pair
from headlens.corpora.corpus_options import LongSentences
from headlens.corpora.sentence import Example, Link, Sentence, join_sentences
from headlens.languages import language_tokens

UNLIMITED = 10**9  # transformers writes "no limit" as a model_max_length of 1e30
Numbers = tuple[int, ...]
Spans = tuple[tuple[int, int], ...]
NAMED_TOKENS = ("cls", "sep", "bos", "eos", "pad", "mask")
# Parts of a pair that a model with one stack reads: the source alone, both as one sequence, or both by themselves.
Pairing = Literal["alone", "joined", "apart"]


class TokenKind(IntFlag):
    """What a token is; one token can be several of these (RoBERTa's `<s>` is CLS and BOS)."""

    CONTENT = 0
    SPECIAL = 1
    CLS = 2
    SEP = 4
    BOS = 8
    EOS = 16
    PUNCT = 32


@dataclass(frozen=True, slots=True)
class EncodedSequence:
    """The tokens of one sentence as a model reads them; no padding.

    Args:
        ids: vocabulary ids, special tokens among them.
        kinds: bits of `TokenKind`, one number per token.
        spans: characters of `sentence.text`, white space trimmed; empty for tokens that stand for no text.
        alignment: the unit of every token and word.
        sentence: where the tokens come from.
        segments: of two sentences in one sequence, which every token is of (`token_type_ids`); empty otherwise.
        between: characters between two texts in one sequence; None for one text.
    """

    ids: Numbers
    kinds: Numbers
    spans: Spans
    alignment: Alignment
    sentence: Sentence
    segments: Numbers = ()
    between: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def units(self) -> tuple[int, ...]:
        """Unit of every token, -1 for none."""
        return self.alignment.unit_of_token

    @property
    def unit_of_word(self) -> tuple[int, ...]:
        """Unit of every word, -1 for words without a token."""
        return self.alignment.unit_of_word

    @property
    def n_units(self) -> int:
        """Number of units in the sentence, each of at least one word and one token."""
        return self.alignment.n_units


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """A sentence, or a sentence and the decoder's input for its translation, or a pair of sentences.

    `links` are those of the example; of two texts in one sequence, words of the second are counted on from the first.
    """

    source: EncodedSequence
    target: EncodedSequence | None = None
    links: tuple[Link, ...] | None = None

    @property
    def sides(self) -> tuple[EncodedSequence, ...]:
        """Encoded sequences of the example: the source, then the target where the example has one."""
        return (self.source,) if self.target is None else (self.source, self.target)

    @property
    def length(self) -> int:
        """Length of the longer side of the example in tokens, special tokens included."""
        return max(map(len, self.sides))

    @property
    def key(self) -> str:
        """Key that tells the example from others: its id, which is its number where it has no other, and its text."""
        return "\x1e".join(f"{side.sentence.id}\x1f{side.sentence.text}" for side in self.sides)


@dataclass(frozen=True)
class SentenceEncoder:
    """Turns examples into token ids of one model.

    Args:
        tokenizer: a fast one, or a slow one whose tokens can be found in the text.
        max_length: most tokens of the source; None takes the limit of the tokenizer, if it states one.
        decoder_start_id: first decoder input of an encoder-decoder; None for other models.
        long_sentences: what `encode_corpus` does with sentences that are longer than the limit: leave them out, or
            cut them into windows; pairs are always left out.
        pairing: parts of a pair that models without a `decoder_start_id` read.
        max_unknown: share of unknown tokens from which a corpus is refused; 1 refuses none.
        max_target_length: most tokens of the target, where a decoder reads it; None is that of the source.
        split_at: what stands between the two texts of a sentence, where it stands there once; None for one text.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int | None = None
    decoder_start_id: int | None = None
    long_sentences: LongSentences = "skip"
    pairing: Pairing = "alone"
    max_unknown: float = 1.0
    max_target_length: int | None = None
    split_at: str | None = None

    @property
    def reads_pairs(self) -> bool:
        """Whether the target of an example is read, if there is one."""
        return self.decoder_start_id is not None or self.pairing != "alone"

    @property
    def limit(self) -> int | None:
        """Most tokens that the source may have; None without limit."""
        if self.max_length is not None:
            return self.max_length
        longest = self.tokenizer.model_max_length
        return int(longest) if longest < UNLIMITED else None

    @property
    def target_limit(self) -> int | None:
        """Most tokens that the target may have; None without limit."""
        return self.limit if self.max_target_length is None or self.decoder_start_id is None else self.max_target_length

    @cached_property
    def special_kinds(self) -> Mapping[int, int]:
        """Bits of `TokenKind` by id, for every special id.

        The unknown-word token stands for text and is not special, unless it is also one of the others (GPT-2).
        """
        ids = {name: getattr(self.tokenizer, f"{name}_token_id", None) for name in NAMED_TOKENS}
        special = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        special |= {i for i in ids.values() if i is not None}
        special |= set(language_tokens(self.tokenizer).values())
        kinds = dict.fromkeys(special | self.added_ids, int(TokenKind.SPECIAL))
        for name in ("cls", "sep", "bos", "eos"):
            if (i := ids[name]) is not None:
                kinds[i] |= TokenKind[name.upper()]
        return kinds

    @cached_property
    def added_ids(self) -> frozenset[int]:
        """Ids of the tokens that the tokenizer adds to every text, whether its settings name them or not."""
        empty = self.tokenizer("", return_special_tokens_mask=True)
        flags = zip(empty["input_ids"], empty["special_tokens_mask"], strict=True)
        return frozenset(token for token, is_special in flags if is_special)

    @property
    def unnamed_tokens(self) -> list[str]:
        """The tokens that the tokenizer adds to every text and that its settings do not name."""
        unnamed = self.added_ids - set(self.tokenizer.all_special_ids) - set(language_tokens(self.tokenizer).values())
        return [str(token) for token in self.tokenizer.convert_ids_to_tokens(sorted(unnamed))]

    @cached_property
    def unknown_id(self) -> int | None:
        """Id of what the tokenizer does not know; None where it knows everything, or has no id for that alone."""
        unknown = self.tokenizer.unk_token_id
        if unknown is None and self.tokenizer.is_fast:
            # A tokenizer.json may name one that the tokenizer around it does not declare.
            token = getattr(self.tokenizer.backend_tokenizer.model, "unk_token", None)
            unknown = None if token is None else self.tokenizer.get_vocab().get(token)
        return None if unknown is None or unknown in self.special_kinds else int(unknown)

    def encode(self, example: Example) -> EncodedExample | None:
        """Tokenizes and aligns an example; None if a side is longer than `limit`: nothing is ever cut.

        The target becomes the decoder's input under teacher forcing: the start token, then all labels but the last.

        Raises:
            AlignmentError: if the tokenizer cannot say where its tokens stand.
        """
        if example.target is None or not self.reads_pairs:
            encoded = EncodedExample(self._sequence(example.source, "source"))
        elif self.decoder_start_id is None and self.pairing == "joined":
            tokens, segments = tokenize_pair(self.tokenizer, example)
            row = self._aligned(join_sentences(example.source, example.target), *tokens, segments=segments)
            first, shift = len(example.source.text), len(example.source.words)
            links = example.links and tuple(link._replace(target=link.target + shift) for link in example.links)
            encoded = EncodedExample(replace(row, between=(first, first + 1)), links=links)
        else:
            side: Side = "source" if self.decoder_start_id is None else "target"
            sides = self._sequence(example.source, "source"), self._sequence(example.target, side)
            encoded = EncodedExample(*sides, example.links)
        limits = zip(encoded.sides, (self.limit, self.target_limit), strict=False)
        return encoded if all(limit is None or len(side) <= limit for side, limit in limits) else None

    def windows(self, example: Example) -> tuple[list[EncodedExample], int]:
        """Cuts an example that is too long, see `cut_windows`; pairs, whose windows would not match, give none.

        Returns:
            The windows, and the number of words that are in none of them.
        """
        paired = self.reads_pairs and example.target is not None
        if self.long_sentences == "skip" or self.limit is None or paired:
            return [], 0
        uncut = self._sequence(example.source, "source")
        room = self.limit - sum(k & int(TokenKind.SPECIAL) > 0 for k in uncut.kinds)
        return cut_windows(example.source, uncut.alignment, room, lambda part: self.encode(Example(part)))

    def _sequence(self, sentence: Sentence, side: Side) -> EncodedSequence:
        """Tokenizes one side; a target is shifted to the right."""
        ids, spans = tokenize(self.tokenizer, sentence.text, side)
        start = self.decoder_start_id if side == "target" else None
        if start is not None:
            # Teacher forcing: at every place the decoder reads the token before the one that it predicts.
            ids, spans = (start, *ids[:-1]), ((0, 0), *spans[:-1])
        return self._aligned(sentence, ids, spans, start)

    def _aligned(
        self, sentence: Sentence, ids: Numbers, spans: Spans, start: int | None = None, segments: Numbers = ()
    ) -> EncodedSequence:
        """Aligns tokens with the words of their sentence; a first token `start` is special whatever its id."""
        special = self.special_kinds
        # Special tokens are known by their id, punctuation by the characters of the text.
        kinds = [
            special[i] if i in special else int(TokenKind.PUNCT) * is_punctuation(sentence.text[begin:end])
            for i, (begin, end) in zip(ids, spans, strict=True)
        ]
        if start is not None:
            kinds[0] = special.get(start, 0) | TokenKind.SPECIAL
        both = int(TokenKind.BOS | TokenKind.EOS)
        for place, kind in enumerate(kinds):
            if kind & both == both:  # one token for both (GPT-2): it begins a text where it is first, else it ends one
                kinds[place] = kind & ~int(TokenKind.BOS if place else TokenKind.EOS)
        is_special = [k & int(TokenKind.SPECIAL) > 0 for k in kinds]
        alignment = align([(w.start, w.end) for w in sentence.words], spans, is_special)
        between = None
        if self.split_at is not None and sentence.text.count(self.split_at) == 1:
            begin = sentence.text.index(self.split_at)
            between = (begin, begin + len(self.split_at))
        return EncodedSequence(ids, tuple(kinds), spans, alignment, sentence, segments, between)
