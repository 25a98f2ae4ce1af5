"""Sentences and their translations for translation models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from headlens.corpora.batches import IGNORED, Ids, attention_mask, padded
from headlens.errors import CorpusError
from headlens.training.batch_sampler import Indices

Pair = tuple[str, str]


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
        sources, targets = [self.sources[i] for i in indices], [self.targets[i] for i in indices]
        return {
            "input_ids": padded(sources, self.pad_id),
            "attention_mask": attention_mask(sources),
            "labels": padded(targets, IGNORED),
        }


def read_pairs(pairs: Iterable[Pair], tokenizer: PreTrainedTokenizerBase, longest: int) -> ParallelText:
    """Tokenize pairs; those with a side of more than `longest` tokens, or of none, are left out and counted.

    Raises:
        CorpusError: if no pair is left.
    """
    sources: list[Ids] = []
    targets: list[Ids] = []
    read = 0
    for source, target in _ids(pairs, tokenizer):
        read += 1
        if 1 < len(source) <= longest and 1 < len(target) <= longest:
            sources.append(np.array(source, dtype=np.int64))
            targets.append(np.array(target, dtype=np.int64))
    if not sources:
        raise CorpusError(
            f"none of {read} pairs can be used: a side is empty or longer than {longest} tokens.",
            "Give shorter sentences, or a larger --longest.",
        )
    return ParallelText(sources, targets, int(tokenizer.pad_token_id or 0), read - len(sources))


def _ids(pairs: Iterable[Pair], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[list[int], list[int]]]:
    options = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
    rest = iter(pairs)
    while block := list(islice(rest, 1024)):
        sources = tokenizer([s for s, _ in block], **options)["input_ids"]
        targets = tokenizer(text_target=[t for _, t in block], **options)["input_ids"]
        yield from zip(sources, targets, strict=True)
