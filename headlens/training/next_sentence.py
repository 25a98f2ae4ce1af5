"""Text in two halves, of which a model has to say whether the second follows the first: BERT's NSP and ALBERT's SOP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.corpora.batches import IGNORED, Ids, attention_mask, padded
from headlens.errors import CorpusError, OptionError
from headlens.statistics.seeding import generator_of
from headlens.training.batch_sampler import Indices
from headlens.training.masked_text import MaskedText, read_parts, special_frame
from headlens.training.objectives import NEXT

# What stands in the second place if it is not what follows: a piece of text from elsewhere, or the two are swapped.
Order = Literal["random", "swapped"]


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
            raise CorpusError("the corpus is too short for --next-sentence.", "Two blocks of --longest are the least.")

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of every block, special ones included."""
        return [len(block) + sum(map(len, self.frame)) for block in self.blocks]

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        """What `MaskedText.batch` gives, and per row whether the second half does not follow (1) or does (0)."""
        drawn = [self._drawn(index, epoch) for index in indices]
        before, between, after = self.frame
        framed = [np.concatenate([before, first, between, second, after]) for first, second, _ in drawn]
        masked = [self.masking.masked(ids, index, epoch) for ids, index in zip(framed, indices, strict=True)]
        rows = [ids for ids, _ in masked]
        batch = {
            "input_ids": padded(rows, self.masking.pad_id),
            "attention_mask": attention_mask(rows),
            "labels": padded([labels for _, labels in masked], IGNORED),
            NEXT: torch.tensor([int(other) for *_, other in drawn]),
        }
        if self.segments:
            batch["token_type_ids"] = padded([self._segments(a, b) for a, b, _ in drawn], 0)
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

    def _segments(self, first: Ids, second: Ids) -> Ids:
        before, between, after = self.frame
        sizes = (len(before) + len(first) + len(between), len(second) + len(after))
        return np.repeat(np.array([0, 1], dtype=np.int64), sizes)


def read_halves(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int, masking: MaskedText, order: Order
) -> TextHalves:
    """Text in blocks of at most `length` tokens, special ones included; a last one of a single token is left out.

    Raises:
        OptionError: if no two tokens of text fit into a block.
        CorpusError: if there is too little text.
    """
    before, between, after = special_frame(tokenizer, texts=2)
    frame = before, between, after
    room = length - sum(map(len, frame))
    if room < 2:
        raise OptionError(f"--longest {length} leaves no room for two halves.", "128 suits small models.")
    blocks = [np.array(part, dtype=np.int64) for part in read_parts(texts, tokenizer, room)]
    blocks = [block for block in blocks if len(block) > 1]
    return TextHalves(blocks, masking, frame, order, "token_type_ids" in tokenizer.model_input_names)


def _halves(block: Ids) -> tuple[Ids, Ids]:
    middle = len(block) // 2
    return block[:middle], block[middle:]
