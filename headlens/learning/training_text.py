"""Text to train on: in blocks for language models, in halves for next sentences, in pairs for translation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, repeat
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.corpora.alignment import known_word, refused_words
from headlens.corpora.batches import IGNORED, Ids, attention_mask, padded
from headlens.corpora.encoded_corpus import drawn_places
from headlens.errors import CorpusError, OptionError, counted
from headlens.learning.batch_sampler import Indices
from headlens.learning.objectives import GUESSED, NEXT, places_to_guess
from headlens.statistics.seeding import generator_of
from headlens.tasks.reader import Reader

# What stands in the second place if it is not what follows: a piece of text from elsewhere, or the two are swapped.
Order = Literal["random", "swapped"]
Pair = tuple[str, str]


@dataclass(frozen=True)
class MaskedText:
    """Blocks of text of which a share is to be guessed, chosen anew in every epoch.

    As BERT does it (Devlin et al. 2019): of the tokens to be guessed 80 % become the mask token, 10 % a random one, and
    10 % stay.

    Args:
        blocks: ids of every block, special ones at both ends.
        mask_id: id of the mask token.
        special: ids that are never to be guessed and never drawn.
        vocabulary: number of ids.
        share: of the tokens of a block that are to be guessed; at least one is.
        seed: of the choice.
        pad_id: any id that the model can embed.
    """

    blocks: Sequence[Ids]
    mask_id: int
    special: frozenset[int]
    vocabulary: int
    share: float = 0.15
    seed: int = 0
    pad_id: int = 0

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of every block, special tokens included."""
        return [len(block) for block in self.blocks]

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        """`input_ids`, `attention_mask`, `labels` that are -100 where nothing is to be guessed, and where that is."""
        return self.masked_batch([self.blocks[index] for index in indices], indices, epoch)

    def masked_batch(self, rows: Sequence[Ids], indices: Indices, epoch: int) -> dict[str, Any]:
        """The inputs and labels of rows that are made of the blocks with these numbers."""
        ids, labels = zip(*map(self.masked, rows, indices, repeat(epoch)), strict=True)
        batch = _labelled(ids, labels, self.pad_id)
        return batch | {GUESSED: places_to_guess(batch["labels"])}

    def masked(self, block: Ids, index: int, epoch: int) -> tuple[Ids, Ids]:
        """A block with tokens to be guessed, and what they were; which ones depends on its number and the epoch."""
        generator = generator_of(f"{index}.{epoch}", self.seed)
        chosen = drawn_places(np.flatnonzero(~np.isin(block, list(self.special))), self.share, generator)
        labels = np.full_like(block, IGNORED)
        labels[chosen] = block[chosen]
        ids = block.copy()
        fate = generator.random(len(chosen))
        ids[chosen[fate < 0.8]] = self.mask_id
        replaced = chosen[(fate >= 0.8) & (fate < 0.9)]
        ids[replaced] = generator.choice(self._drawable, len(replaced))
        return ids, labels

    @cached_property
    def _drawable(self) -> Ids:
        """Ids that a random token is drawn from: listed once, which takes longer than masking a block."""
        return np.setdiff1d(np.arange(self.vocabulary), list(self.special))


def _labelled(rows: Sequence[Ids], labels: Sequence[Ids], pad_id: int) -> dict[str, Any]:
    """A batch of all kinds of text: what is read, where it is, and what is to be guessed, each (rows, length)."""
    # Labels are padded with what no loss counts; an encoder-decoder makes the inputs of its decoder from them.
    return {
        "input_ids": padded(rows, pad_id),
        "attention_mask": attention_mask(rows),
        "labels": padded(labels, IGNORED),
    }


@dataclass(frozen=True)
class CausalText:
    """Blocks of text of which every token but the first is predicted from those before it.

    Args:
        blocks: ids of every block; every text in it begins with the special tokens that texts begin with.
        pad_id: any id that the model can embed.
    """

    blocks: Sequence[Ids]
    pad_id: int = 0

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of every block, special tokens included."""
        return [len(block) for block in self.blocks]

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        """`input_ids`, `attention_mask`, and as `labels` the next token of every one, -100 at the last."""
        del epoch
        rows = [self.blocks[index] for index in indices]
        batch = _labelled(rows, [np.append(row[1:], IGNORED) for row in rows], self.pad_id)
        return batch | {GUESSED: places_to_guess(batch["labels"])}


def read_blocks(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int) -> list[Ids]:
    """Text in blocks of at most `length` tokens, special ones included; sentences follow each other without a break.

    Raises:
        OptionError: if no token of text fits into a block.
        CorpusError: if there is no text.
    """
    before, after = special_frame(tokenizer)
    if (room := length - len(before) - len(after)) < 1:
        raise OptionError(f"--data-args longest {length} leaves no room for text.", "128 suits small models.")
    return [np.array([*before, *part, *after], dtype=np.int64) for part in read_parts(texts, tokenizer, room)]


def read_stream(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int) -> list[Ids]:
    """Text in blocks of `length` tokens, each text after the special tokens that texts begin with.

    Raises:
        OptionError: if a block has no token to predict.
        CorpusError: if there is no text.
    """
    if length < 2:
        raise OptionError(f"--data-args longest {length} leaves no room for text.", "128 suits small models.")
    reader = Reader(tokenizer)
    stream = (part for text in texts if text.strip() for part in reader.beginning_and_text(text))
    if not (parts := list(_groups(chain.from_iterable(stream), length))):
        raise CorpusError("the corpus has no text.", "Give one with at least one sentence.")
    return [np.array(part, dtype=np.int64) for part in parts if len(part) > 1 or len(parts) == 1]


def read_parts(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, room: int) -> list[list[int]]:
    """Ids of text in parts of `room` tokens, the last one of what is left, without special ones.

    Raises:
        CorpusError: if there is no text.
    """
    options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}

    def read(block: list[str]) -> list[list[int]]:
        with refused_words(tokenizer, block):
            ids: list[list[int]] = tokenizer(block, verbose=False, **options)["input_ids"]
        return ids

    blocks = map(read, _groups(texts))
    if not (parts := list(_groups(chain.from_iterable(chain.from_iterable(blocks)), room))):
        raise CorpusError("the corpus has no text.", "Give one with at least one sentence.")
    return parts


def special_frame(tokenizer: PreTrainedTokenizerBase, texts: int = 1) -> list[Ids]:
    """The special tokens before a text or two, between them, and after, as they stand around short ones."""
    word = known_word(tokenizer)
    ids = list(tokenizer(*[word] * texts)["input_ids"])
    text = list(tokenizer(word, add_special_tokens=False)["input_ids"])
    starts = [i for i in range(len(ids)) if ids[i : i + len(text)] == text]
    places = [starts[0], starts[-1]][:texts]
    ends = [0, *(place + len(text) for place in places)]
    return [np.array(ids[end:place], dtype=np.int64) for end, place in zip(ends, [*places, None], strict=True)]


def _groups(items: Iterable[Any], size: int = 1024) -> Iterator[list[Any]]:
    iterator = iter(items)
    # iter() with an end mark: groups are cut off until an empty one is left.
    return iter(lambda: list(islice(iterator, size)), [])


def order_of(model: PreTrainedModel) -> Order:
    """What a model with such a head was made for: BERT's sees text from elsewhere, ALBERT's the halves swapped."""
    return "swapped" if hasattr(model, "sop_classifier") else "random"


@dataclass(frozen=True)
class TextHalves:
    """Blocks of text in two halves of equal length; in half of all draws the second does not follow the first.

    As BERT is pre-trained (Devlin et al. 2019, section 3.1) and ALBERT (Lan et al. 2020, section 3.1), but that
    halves end where the room does, not with sentences: corpora need have no documents, and none is padded.

    Args:
        blocks: ids of every block without special ones, at least two of each.
        masking: which tokens are to be guessed; its own blocks are not looked at.
        frame: special ids before, between and after the halves.
        order: what stands in the second place if it is not what follows.
        segments: whether the model is told which half a token is of (`token_type_ids`).

    Raises:
        CorpusError: if there is one block alone, and the second half is to come from elsewhere.
    """

    blocks: Sequence[Ids]
    masking: MaskedText
    frame: tuple[Ids, Ids, Ids]
    order: Order = "random"
    segments: bool = True

    def __post_init__(self) -> None:
        if self.order == "random" and len(self.blocks) < 2:
            raise CorpusError(
                "the corpus is too short for --training-args next-sentence.",
                "At least two blocks of --data-args longest tokens are needed.",
            )

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of every block, special ones included."""
        return [len(block) + sum(map(len, self.frame)) for block in self.blocks]

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        """What `MaskedText.batch` gives, and per row whether the second half does not follow (1) or does (0)."""
        drawn = [self._drawn(index, epoch) for index in indices]
        before, between, after = self.frame
        framed = [np.concatenate([before, first, between, second, after]) for first, second, _ in drawn]
        batch = self.masking.masked_batch(framed, indices, epoch)
        batch[NEXT] = torch.tensor([int(other) for *_, other in drawn])
        if self.segments:
            sizes = ((len(before) + len(a) + len(between), len(b) + len(after)) for a, b, _ in drawn)
            batch["token_type_ids"] = padded([np.repeat(np.array([0, 1], dtype=np.int64), size) for size in sizes], 0)
        return batch

    def _drawn(self, index: int, epoch: int) -> tuple[Ids, Ids, bool]:
        """Two halves, and whether the second is another than what follows the first."""
        first, second = _halves(self.blocks[index])
        generator = generator_of(f"next.{index}.{epoch}", self.masking.seed)
        if generator.random() < 0.5:
            return first, second, False
        if self.order == "swapped":
            return second, first, True
        # The last block may be shorter than the others: where it lends its text, it is as long as it is.
        other = (index + 1 + int(generator.integers(len(self.blocks) - 1))) % len(self.blocks)
        return first, _halves(self.blocks[other])[1][: len(second)], True


def read_halves(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int, masking: MaskedText, order: Order
) -> TextHalves:
    """Text in blocks of at most `length` tokens, special ones included; a last one of a single token is left out.

    Raises:
        OptionError: if no two tokens of text fit into a block.
        CorpusError: if there is too little text.
    """
    before, between, after = frame = special_frame(tokenizer, texts=2)
    if (room := length - sum(map(len, frame))) < 2:
        raise OptionError(f"--data-args longest {length} leaves no room for the two halves.", "128 suits small models.")
    blocks = [np.array(part, dtype=np.int64) for part in read_parts(texts, tokenizer, room) if len(part) > 1]
    return TextHalves(blocks, masking, (before, between, after), order, "token_type_ids" in tokenizer.model_input_names)


def _halves(block: Ids) -> tuple[Ids, Ids]:
    middle = len(block) // 2
    return block[:middle], block[middle:]


@dataclass(frozen=True)
class ParallelText:
    """Pairs of token ids, each side with the end-of-sentence token that the tokenizer puts there.

    Args:
        sources: ids of every sentence.
        targets: ids of its translation.
        pad_id: the model's padding token.
        left_out: pairs with a side that was too long or empty.
    """

    sources: Sequence[Ids]
    targets: Sequence[Ids]
    pad_id: int
    left_out: int = 0

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of the longer side of every pair."""
        return [max(len(s), len(t)) for s, t in zip(self.sources, self.targets, strict=True)]

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        """`input_ids`, `attention_mask`, and `labels`, from which the model makes the decoder's input."""
        del epoch
        return _labelled([self.sources[i] for i in indices], [self.targets[i] for i in indices], self.pad_id)


def read_pairs(pairs: Iterable[Pair], tokenizer: PreTrainedTokenizerBase, longest: int) -> ParallelText:
    """Tokenize pairs; those with a side of more than `longest` tokens, or of none, are left out and counted.

    Raises:
        CorpusError: if no pair is left.
    """
    options = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
    encoded: list[tuple[Ids, Ids]] = []
    read = 0
    for group in _groups(pairs):
        read += len(group)
        with refused_words(tokenizer, chain.from_iterable(group)):
            sources = tokenizer([s for s, _ in group], **options)["input_ids"]
            targets = tokenizer(text_target=[t for _, t in group], **options)["input_ids"]
        for source, target in zip(sources, targets, strict=True):
            if 1 < len(source) <= longest and 1 < len(target) <= longest:
                encoded.append((np.array(source, dtype=np.int64), np.array(target, dtype=np.int64)))
    if not encoded:
        raise CorpusError(
            f"none of {counted(read, 'pair')} can be used: a side is empty or longer than {longest} tokens.",
            "Give shorter sentences, or a larger --data-args longest.",
        )
    ours, theirs = zip(*encoded, strict=True)
    return ParallelText(ours, theirs, int(tokenizer.pad_token_id or 0), read - len(encoded))
