"""Masks tokens of sentences, for masked language models to predict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headlens.corpora.batches import Ids
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.encoding import EncodedExample, TokenKind
from headlens.errors import OptionError
from headlens.statistics.seeding import generator_of


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
            raise OptionError(f"--mask-share {self.share} is not above 0 and at most 1.", advice)

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
