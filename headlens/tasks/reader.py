"""How one model reads the texts of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedConfig, PreTrainedTokenizerBase

from headlens.corpora.collate import attention_mask, padded
from headlens.corpora.encoding import UNLIMITED
from headlens.models.loading import LoadedModel, tokenizer_of


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One row of a model's input, without padding.

    Args:
        ids: vocabulary ids, special tokens among them.
        segments: `token_type_ids`; empty where the model does not tell them apart.
        labels: what training wants at every token or of the decoder; empty without.
        spans: characters of the context that every token stands for, (-1, -1) for others; of questions only.
    """

    ids: tuple[int, ...]
    segments: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Reader:
    """A model's tokenizer and limits.

    Args:
        tokenizer: of the model.
        limit: most tokens of a sequence; None without limit.
        pad_id: any id that the model can embed.
        decoder_start_id: what an encoder-decoder's decoder reads first; None for other models.
        classes: the model's output for each of the task's classes, where the model names its classes.
    """

    tokenizer: PreTrainedTokenizerBase
    limit: int | None = None
    pad_id: int = 0
    decoder_start_id: int | None = None
    classes: tuple[int, ...] | None = None

    @classmethod
    def of(cls, loaded: LoadedModel, labels: Sequence[str] = (), max_length: int | None = None) -> Reader:
        """The reader of a model.

        Args:
            loaded: the model.
            labels: the task's classes; a model that has them under the same names may have them in another order.
            max_length: a limit below the model's own.

        Raises:
            ModelError: if the model has no tokenizer.
        """
        tokenizer = tokenizer_of(loaded)
        own = tokenizer.model_max_length
        limits = [loaded.max_length, max_length, int(own) if own < UNLIMITED else None]
        pad = tokenizer.pad_token_id
        return cls(
            tokenizer=tokenizer,
            limit=min((v for v in limits if v is not None), default=None),
            pad_id=0 if pad is None else int(pad),
            decoder_start_id=loaded.decoder_start_id,
            classes=class_order(loaded.model.config, labels),
        )

    def sequence(self, text: str, second: str | None = None) -> TokenRow | None:
        """One text or a pair as the model reads it; None if it is longer than the limit, for nothing is ever cut."""
        encoding = self.encode(text, second)
        ids = tuple(encoding["input_ids"])
        if not ids or not self.fits(len(ids)):
            return None
        segments = tuple(encoding["token_type_ids"]) if "token_type_ids" in encoding else ()
        return TokenRow(ids, segments)

    def encode(self, text: str, second: str | None = None, **options: Any) -> BatchEncoding:
        """What the tokenizer makes of it; its own warning about long texts is kept quiet."""
        segments = "token_type_ids" in self.tokenizer.model_input_names
        chosen = {"return_attention_mask": False, "return_token_type_ids": segments, "verbose": False, **options}
        encoding: BatchEncoding = self.tokenizer(text, second, **chosen)
        return encoding

    def target(self, text: str) -> tuple[int, ...]:
        """Returns the token ids of a target text, such as a translation, with the tokenizer's special tokens."""
        encoding = self.tokenizer(text_target=text, return_attention_mask=False, verbose=False)
        return tuple(encoding["input_ids"])

    def fits(self, length: int) -> bool:
        """Whether the model reads so many tokens at once."""
        return self.limit is None or length <= self.limit


def class_order(config: PreTrainedConfig, labels: Sequence[str]) -> tuple[int, ...] | None:
    """The model's output for each of the task's classes; None if the model names them otherwise, or not at all."""
    names = {str(name).lower(): int(number) for name, number in (config.label2id or {}).items()}
    wanted = [label.lower() for label in labels]
    if not wanted or len(names) != len(wanted) or not all(label in names for label in wanted):
        return None
    return tuple(names[label] for label in wanted)


def inputs_of(sequences: Sequence[TokenRow], reader: Reader, device: torch.device) -> dict[str, Tensor]:
    """`input_ids`, `attention_mask` and, where the model has segments, `token_type_ids`: each (rows, length)."""
    inputs = {
        "input_ids": padded([s.ids for s in sequences], reader.pad_id),
        "attention_mask": attention_mask([s.ids for s in sequences]),
    }
    if any(s.segments for s in sequences):
        inputs["token_type_ids"] = padded([s.segments for s in sequences], 0)
    return {name: tensor.to(device) for name, tensor in inputs.items()}
