"""The tokenizer and the limits with which one model reads the texts of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerBase

from headlens.attention.sites import is_decoder_only
from headlens.corpora.alignment import refused_words
from headlens.errors import OptionError
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.tasks.class_names import OutputOrder


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One row of a model's input, without padding.

    Args:
        ids: vocabulary ids, special tokens among them.
        segments: `token_type_ids`; empty where the model does not tell them apart.
        labels: label ids of every token, or of the decoder; empty for tasks without labels of tokens.
        spans: characters of the context that every token stands for, (-1, -1) for others; of questions only.
        candidate: which of an example's candidates the row scores.
    """

    ids: tuple[int, ...]
    segments: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    candidate: int = 0

    @property
    def length(self) -> int:
        """Number of tokens; of a translation of the longer side, as what a decoder writes counts, too."""
        return max(len(self.ids), len(self.labels))


@dataclass(frozen=True)
class Reader:
    """A model's tokenizer and limits.

    Args:
        tokenizer: tokenizer of the model.
        limit: most tokens of a sequence; None without limit.
        target_limit: most tokens of what a decoder reads beside the sequence; None without limit.
        pad_id: any id that the model can embed.
        decoder_start_id: what an encoder-decoder's decoder reads first; None for other models.
        order: which of the model's outputs is which of the task's classes.
        max_unknown: share of unknown tokens from which data is refused; 1 refuses none.
        cuts: whether a sequence that is too long loses its end, as where every row of a test set needs a prediction.
        shortened: whether a limit below the model's own was asked for.
        causal: whether the model is a decoder that sees no token after the one it reads.
    """

    tokenizer: PreTrainedTokenizerBase
    limit: int | None = None
    pad_id: int = 0
    decoder_start_id: int | None = None
    order: OutputOrder = field(default_factory=OutputOrder)
    max_unknown: float = 1.0
    target_limit: int | None = None
    cuts: bool = False
    shortened: bool = False
    causal: bool = False

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        labels: Sequence[str] = (),
        max_length: int | None = None,
        outputs: Sequence[str] = (),
    ) -> Reader:
        """Builds the reader of a model.

        Args:
            loaded: the model.
            labels: the task's classes; a model that names its outputs may have them in another order.
            max_length: a limit below the model's own.
            outputs: the task's classes in the order of the model's outputs, where a user says so.

        Raises:
            ModelError: if the model has no tokenizer, or names its outputs otherwise than the task its classes.
        """
        tokenizer = tokenizer_of(loaded)
        # What does not generate, such as a classifier of BART's, has a decoder that reads the same sequence.
        generates = loaded.model.can_generate()
        longest = (loaded.longest("source"), loaded.longest("target")) if generates else (loaded.max_length,) * 2
        limit, target_limit = (min(filter(None, (side, max_length)), default=None) for side in longest)
        return cls(
            tokenizer=tokenizer,
            limit=limit,
            target_limit=target_limit,
            pad_id=loaded.pad_id,
            max_unknown=loaded.max_unknown,
            decoder_start_id=loaded.decoder_start_id if generates else None,
            order=OutputOrder.of(loaded, labels, outputs),
            shortened=max_length is not None and limit == max_length,
            causal=is_decoder_only(loaded.model),
        )

    @property
    def mask_id(self) -> int:
        """Id of the token that stands in the place of a hidden one.

        Raises:
            OptionError: if the tokenizer has none.
        """
        if (mask_id := self.tokenizer.mask_token_id) is None:
            name = type(self.tokenizer).__name__
            raise OptionError(f"{name} has no mask token.", "Give a masked language model, such as BERT.")
        return int(mask_id)

    @property
    def target_language(self) -> str:
        """Code of the language that the model translates to, as its tokenizer writes it; empty where it says none."""
        return next(filter(None, (getattr(self.tokenizer, name, None) for name in ("target_lang", "tgt_lang"))), "")

    @property
    def limit_text(self) -> str | None:
        """How long a sequence may be, in words; None for any length."""
        if self.limit is None or self.target_limit in (None, self.limit):
            return None if self.limit is None else f"{self.limit} tokens"
        return f"{self.limit} tokens, or the decoder's {self.target_limit}"

    def sequence(self, text: str, second: str | None = None) -> TokenRow | None:
        """Tokenises one text or a pair; None if it is longer than the limit, for nothing is cut unless asked for."""
        encoding = self.encode(text, second)
        if self.cuts and not self.fits(len(encoding["input_ids"])):
            encoding = self.encode(text, second, truncation=True, max_length=self.limit)
        ids = tuple(encoding["input_ids"])
        return TokenRow(ids, tuple(encoding.get("token_type_ids", ()))) if ids and self.fits(len(ids)) else None

    def whole_rows(self, texts: Sequence[tuple[str, ...]]) -> tuple[TokenRow, ...]:
        """Tokenises texts, or pairs of texts, to one row each; to no row at all if one of them is too long."""
        rows = tuple(filter(None, (self.sequence(*pair) for pair in texts)))
        return rows if len(rows) == len(texts) else ()

    def encode(self, text: str, second: str | None = None, **options: Any) -> BatchEncoding:
        """Calls the tokenizer for a text or a pair, without its warning about texts longer than the model reads."""
        segments = "token_type_ids" in self.tokenizer.model_input_names
        options = {"return_attention_mask": False, "return_token_type_ids": segments, "verbose": False, **options}
        with refused_words(self.tokenizer, [text, second]):
            encoding: BatchEncoding = self.tokenizer(text, second, **options)
        return encoding

    def beginning_and_text(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokenises a text for a decoder: the special tokens before it, and its own tokens.

        Where the tokenizer puts none before a text, its token for the beginning of texts is taken, or that for their
        end, with which decoders without the former were trained to begin (GPT-2). What it puts behind is left out.
        """
        encoding = self.encode(text, return_special_tokens_mask=True)
        ids, special = tuple(encoding["input_ids"]), encoding["special_tokens_mask"]
        before = next((place for place, flag in enumerate(special) if not flag), len(ids))
        behind = next((place for place, flag in enumerate(reversed(special)) if not flag), 0)
        known = (getattr(self.tokenizer, f"{name}_token_id", None) for name in ("bos", "eos"))
        first = ids[:before] or tuple(number for number in known if number is not None)[:1]
        return first, ids[before : len(ids) - behind]

    def target(self, text: str) -> tuple[int, ...]:
        """Returns the token ids of a target text, such as a translation, with the tokenizer's special tokens."""
        with refused_words(self.tokenizer, [text]):
            ids = self.tokenizer(text_target=text, return_attention_mask=False, verbose=False)["input_ids"]
        return tuple(ids)

    def one_segment(self, length: int) -> tuple[int, ...]:
        """Returns the segments of a single text of so many tokens; empty where the model has none."""
        return (0,) * length if "token_type_ids" in self.tokenizer.model_input_names else ()

    def fits(self, length: int) -> bool:
        """Whether the model reads `length` tokens at once."""
        return self.limit is None or length <= self.limit
