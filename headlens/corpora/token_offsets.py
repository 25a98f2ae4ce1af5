"""Token ids of a text and the characters each token stands for, from fast and slow tokenizers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from transformers import BatchEncoding, PreTrainedTokenizerBase

from headlens.corpora.alignment import Span
from headlens.corpora.sentence import Example, join_sentences
from headlens.errors import AlignmentError

Side = Literal["source", "target"]
MARKERS = re.compile(r"^(▁|Ġ|##)+|(</w>|@@)$")


@dataclass(frozen=True, slots=True)
class TokenOffsets:
    """Token ids of a text, special ones included, and the characters each token stands for.

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
    """Cuts white space off both ends of a span; a blank one shrinks to nothing at its end."""
    start, end = span
    surface = text[start:end]
    start += len(surface) - len(surface.lstrip())
    return start, max(start, end - len(surface) + len(surface.rstrip()))


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str, side: Side = "source") -> TokenOffsets:
    """Tokenizes raw text as the model saw it in training, with spans in characters of that text.

    Raises:
        AlignmentError: if the tokenizer is a slow one and its tokens cannot be found in the text.
    """
    if not tokenizer.is_fast:
        return _tokenize_slow(tokenizer, text, side)
    encoding = _call(tokenizer, text, side, return_offsets_mapping=True)
    return _trimmed(text, encoding["input_ids"], encoding["offset_mapping"])


def tokenize_pair(tokenizer: PreTrainedTokenizerBase, pair: Example) -> tuple[TokenOffsets, tuple[int, ...]]:
    """Tokenizes source and target as one sequence, with spans in the text of `join_sentences`.

    Returns:
        The tokens, and the segment of each token; no segments if the model does not tell them apart.

    Raises:
        AlignmentError: if the tokenizer is a slow one.
    """
    assert pair.target is not None
    if not tokenizer.is_fast:
        raise AlignmentError(
            f"{type(tokenizer).__name__} is a slow tokenizer: it does not say which sentence of a pair a token "
            "belongs to.",
            "Use a model with a fast tokenizer (a tokenizer.json next to the weights).",
        )
    text = join_sentences(pair.source, pair.target).text
    options = {"text_pair": pair.target.text, "return_offsets_mapping": True, "return_token_type_ids": True}
    encoding = _call(tokenizer, pair.source.text, "source", **options)
    # Special tokens are of no sentence and stand for no text: their place does not matter.
    shifts = [len(pair.source.text) + 1 if sentence == 1 else 0 for sentence in encoding.sequence_ids()]
    spans = [(a + shift, b + shift) for (a, b), shift in zip(encoding["offset_mapping"], shifts, strict=True)]
    segments = tuple(encoding["token_type_ids"]) if "token_type_ids" in tokenizer.model_input_names else ()
    return _trimmed(text, encoding["input_ids"], spans), segments


def _trimmed(text: str, ids: list[int], spans: list[Span]) -> TokenOffsets:
    """Trims the spans of tokens of white space."""
    return TokenOffsets(tuple(ids), tuple(trim(text, (start, end)) for start, end in spans))


def _call(tokenizer: PreTrainedTokenizerBase, text: str, side: Side, **options: Any) -> BatchEncoding:
    """Calls the tokenizer for one side of a pair, without its warning about texts longer than the model reads."""
    options = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False, **options}
    encoding: BatchEncoding = tokenizer(**{"text_target" if side == "target" else "text": text}, **options)
    return encoding


def _tokenize_slow(tokenizer: PreTrainedTokenizerBase, text: str, side: Side) -> TokenOffsets:
    """Tokenizes with a tokenizer that gives no offsets: tokens are looked up in the text, special ones put around."""
    ids = _call(tokenizer, text, side)["input_ids"]
    plain = _call(tokenizer, text, side, add_special_tokens=False)["input_ids"]
    spans = slow_spans(tokenizer, text, plain, side)
    added = len(ids) - len(plain)
    before = next((k for k in range(added + 1) if ids[k : k + len(plain)] == plain), None)
    if spans is None or before is None:
        raise AlignmentError(
            f"The tokens of {text[:60]!r} cannot be found in the text: {type(tokenizer).__name__} is a slow tokenizer "
            "that gives no offsets.",
            "Use a model with a fast tokenizer (a tokenizer.json next to the weights).",
        )
    return _trimmed(text, ids, [(0, 0)] * before + spans + [(0, 0)] * (added - before))


def slow_spans(tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int], side: str) -> list[Span] | None:
    """Finds the spans of tokens in the text for a tokenizer written in Python, which gives none itself.

    A SentencePiece model inside the tokenizer (Marian: one per side) knows its own offsets; else the surfaces of the
    tokens are looked up in the text, one after another.

    Args:
        tokenizer: the slow tokenizer.
        text: raw text.
        ids: token ids of the text, without special tokens.
        side: side of a pair that the text is, `source` or `target`.

    Returns:
        One span per token, or None if the spans are not certain.
    """
    tokens, spans = _sentencepiece(tokenizer, text, side)
    if spans is not None and _are_tokens_of(tokenizer, tokens, ids, side):
        return spans
    tokens = tokenizer.tokenize(text)
    return match_surfaces(tokens, text) if _are_tokens_of(tokenizer, tokens, ids, side) else None


def _are_tokens_of(tokenizer: PreTrainedTokenizerBase, tokens: list[str], ids: Sequence[int], side: str) -> bool:
    """Returns whether the tokenizer gives exactly these ids for the tokens."""
    if side == "target" and getattr(tokenizer, "separate_vocabs", False):
        return len(tokens) == len(ids)  # outside its target mode, Marian looks up ids of the source vocabulary
    return tokenizer.convert_tokens_to_ids(tokens) == list(ids)


def _sentencepiece(tokenizer: PreTrainedTokenizerBase, text: str, side: str) -> tuple[list[str], list[Span] | None]:
    """Tokenizes with the SentencePiece model inside a tokenizer; spans are None if there is none that gives offsets."""
    model: Any = getattr(tokenizer, f"spm_{side}", None) or getattr(tokenizer, "sp_model", None)
    encode = getattr(model, "EncodeAsOffsetMapping", None)  # sentencepiece >= 0.2.2
    if encode is None:
        return [], None
    tokens: list[str] = []
    spans: list[Span] = []
    for start, part, is_token in _parts(tokenizer, text):
        if is_token:
            tokens.append(part)
            spans.append((start, start + len(part)))
        else:
            pieces = encode(part)
            tokens += pieces["pieces"]
            spans += [(start + b, start + e) for b, e in _widen(pieces["pieces"], pieces["offsets"])]
    return tokens, spans


def _parts(tokenizer: PreTrainedTokenizerBase, text: str) -> list[tuple[int, str, bool]]:
    """Cuts a text at added tokens and language codes: start, part, whether the part is one token as a whole."""
    patterns = [re.escape(t) for t in sorted(tokenizer.added_tokens_encoder, key=len, reverse=True)]
    if hasattr(tokenizer, "supported_language_codes"):
        patterns.append("^>>.*?<<")  # Marian's `>>de<<`
    parts, end = [], 0
    for match in re.finditer("|".join(patterns), text) if patterns else ():
        parts += [(end, text[end : match.start()], False), (match.start(), match.group(), True)]
        end = match.end()
    return [part for part in [*parts, (end, text[end:], False)] if part[1]]


def _widen(pieces: Sequence[str], offsets: Sequence[Span]) -> list[Span]:
    """Gives a character that became several pieces ("…") to all of them; SentencePiece gives it to the last."""
    widened: list[Span] = []
    for piece, (start, end) in zip(reversed(pieces), reversed(offsets), strict=True):
        shared = start == end and piece != "▁" and widened and widened[-1][0] == start
        widened.append(widened[-1] if shared else (start, end))
    return widened[::-1]


def match_surfaces(tokens: Sequence[str], text: str) -> list[Span] | None:
    """Looks tokens up in a text from left to right, up to case, compatibility forms and, at need, accents.

    Returns:
        One span per token, or None if the tokens do not spell the text.
    """
    return _match(tokens, text, _fold) or _match(tokens, text, _fold_accents)


def _match(tokens: Sequence[str], text: str, fold: Callable[[str], str]) -> list[Span] | None:
    """Matches folded tokens against the folded text, one after another; None if a token does not follow."""
    folded = [fold(c) for c in text]
    flat = "".join(folded)
    origin = [i for i, part in enumerate(folded) for _ in part]  # place in the text of every folded character
    spans, place = [], 0
    for token in tokens:
        forms = (fold(token), fold(MARKERS.sub("", token)))
        form = next((f for f in forms if flat.startswith(f, place)), None)
        if form is None:
            return None
        begin = origin[place] if place < len(flat) else len(text)
        place += len(form)
        spans.append((begin, origin[place - 1] + 1) if form else (begin, begin))
    return spans if place == len(flat) else None


def _fold(text: str) -> str:
    """Decomposes a text, without case, white space and characters that show nothing."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(c for c in decomposed if not c.isspace() and unicodedata.category(c) not in {"Cc", "Cf"})


def _fold_accents(text: str) -> str:
    """Folds a text and leaves out combining marks, for tokenizers that strip accents."""
    return "".join(c for c in _fold(text) if unicodedata.category(c) != "Mn")
