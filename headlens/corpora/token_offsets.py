"""A tokenizer's pieces of a text, and where they stand in it."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from transformers import BatchEncoding, PreTrainedTokenizerBase

from headlens.corpora.alignment import Span
from headlens.corpora.detokenize import slow_spans
from headlens.errors import AlignmentError

Side = Literal["source", "target"]


@dataclass(frozen=True, slots=True)
class TokenOffsets:
    """A tokenizer's ids, special ones included, and the characters each stands for.

    Spans are trimmed of white space; (n, n) for tokens that stand for no text.
    """

    ids: tuple[int, ...]
    spans: tuple[Span, ...]


@lru_cache(maxsize=65536)
def is_punctuation(surface: str) -> bool:
    """Whether a text, white space left out, is made of Unicode punctuation (P*) and symbols (S*) only."""
    stripped = surface.strip()
    return bool(stripped) and all(unicodedata.category(c)[0] in "PS" for c in stripped)


def trim(text: str, span: Span) -> Span:
    """Cut white space off both ends of a span; a blank one shrinks to nothing at its end."""
    start, end = span
    surface = text[start:end]
    start += len(surface) - len(surface.lstrip())
    return start, max(start, end - len(surface) + len(surface.rstrip()))


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str, side: Side = "source") -> TokenOffsets:
    """Tokenize raw text as the model saw it in training, with spans in characters of that text.

    Raises:
        AlignmentError: if the tokenizer is a slow one and its tokens cannot be found in the text.
    """
    if not tokenizer.is_fast:
        return _tokenize_slow(tokenizer, text, side)
    encoding = _call(tokenizer, text, side, return_offsets_mapping=True)
    return _pieces(text, encoding["input_ids"], encoding["offset_mapping"])


def _pieces(text: str, ids: list[int], spans: list[Span]) -> TokenOffsets:
    return TokenOffsets(tuple(ids), tuple(trim(text, (start, end)) for start, end in spans))


def _call(tokenizer: PreTrainedTokenizerBase, text: str, side: Side, **options: Any) -> BatchEncoding:
    """Call the tokenizer for one side of a pair; its own warning about long texts is kept quiet."""
    chosen = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False, **options}
    text_as = "text_target" if side == "target" else "text"
    encoding: BatchEncoding = tokenizer(**{text_as: text}, **chosen)
    return encoding


def _tokenize_slow(tokenizer: PreTrainedTokenizerBase, text: str, side: Side) -> TokenOffsets:
    """Pieces of a tokenizer that gives no offsets: found one by one, special tokens put around."""
    ids = _call(tokenizer, text, side)["input_ids"]
    plain = _call(tokenizer, text, side, add_special_tokens=False)["input_ids"]
    spans = slow_spans(tokenizer, text, plain, side)
    added = len(ids) - len(plain)
    before = next((k for k in range(added + 1) if ids[k : k + len(plain)] == plain), None)
    if spans is None or before is None:
        raise AlignmentError(
            f"The tokens of {text[:60]!r} cannot be found in the text: {type(tokenizer).__name__} is a slow tokenizer "
            "that gives no offsets.",
            "Use a model with a fast tokenizer (a tokenizer.json beside the weights).",
        )
    return _pieces(text, ids, [(0, 0)] * before + spans + [(0, 0)] * (added - before))
