"""Running text for masked language models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from headlens.corpora.batches import IGNORED, Ids, attention_mask, padded
from headlens.corpora.masking import drawn_places
from headlens.errors import CorpusError, OptionError
from headlens.statistics.seeding import generator_of
from headlens.training.batch_sampler import Indices


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
        """`input_ids`, `attention_mask`, and `labels` that are -100 where nothing is to be guessed."""
        pairs = [self.masked(self.blocks[index], index, epoch) for index in indices]
        rows = [ids for ids, _ in pairs]
        return {
            "input_ids": padded(rows, self.pad_id),
            "attention_mask": attention_mask(rows),
            "labels": padded([labels for _, labels in pairs], IGNORED),
        }

    def masked(self, block: Ids, index: int, epoch: int) -> tuple[Ids, Ids]:
        """A block with tokens to be guessed, and what they were; which ones depends on its number and the epoch."""
        generator = generator_of(f"{index}.{epoch}", self.seed)
        text = np.flatnonzero(~np.isin(block, list(self.special)))
        chosen = drawn_places(text, self.share, generator)
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


def read_blocks(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int) -> list[Ids]:
    """Text in blocks of at most `length` tokens, special ones included; sentences follow each other without a break.

    Raises:
        OptionError: if no token of text fits into a block.
        CorpusError: if there is no text.
    """
    before, after = special_frame(tokenizer)
    room = length - len(before) - len(after)
    if room < 1:
        raise OptionError(f"--longest {length} leaves no room for text.", "128 suits small models.")
    return [np.array([*before, *part, *after], dtype=np.int64) for part in read_parts(texts, tokenizer, room)]


def read_parts(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, room: int) -> list[list[int]]:
    """Ids of text in parts of `room` tokens, the last one of what is left, without special ones.

    Raises:
        CorpusError: if there is no text.
    """
    ids = _ids(texts, tokenizer)
    if not (parts := list(iter(lambda: list(islice(ids, room)), []))):
        raise CorpusError("the corpus has no text.", "Give one with at least one sentence.")
    return parts


def special_frame(tokenizer: PreTrainedTokenizerBase, texts: int = 1) -> list[Ids]:
    """The special tokens before a text or two, between them, and after, as they stand around short ones."""
    ids = list(tokenizer(*["a"] * texts)["input_ids"])
    text = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    starts = [i for i in range(len(ids)) if ids[i : i + len(text)] == text]
    places = [starts[0], starts[-1]][:texts]
    ends = [0, *(place + len(text) for place in places)]
    return [np.array(ids[end:place], dtype=np.int64) for end, place in zip(ends, [*places, None], strict=True)]


def _ids(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[int]:
    options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    rest = iter(texts)
    while block := list(islice(rest, 1024)):
        yield from chain.from_iterable(tokenizer(block, verbose=False, **options)["input_ids"])
