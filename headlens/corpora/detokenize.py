"""Character spans for tokenizers written in Python, which give none themselves."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from headlens.corpora.alignment import Span

MARKERS = re.compile(r"^(▁|Ġ|##)+|(</w>|@@)$")


def slow_spans(tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int], side: str) -> list[Span] | None:
    """Where the tokens `ids` (no special ones added) of `text` stand; None if that cannot be told for certain.

    A SentencePiece model inside the tokenizer (Marian: one per side) knows its own offsets; else the surfaces of the
    tokens are looked up in the text, one after another.
    """
    found = _sentencepiece(tokenizer, text, side)
    if found is not None:
        tokens, spans = found
        if _same(tokenizer, tokens, ids, side):
            return spans
    tokens = tokenizer.tokenize(text)
    return match_surfaces(tokens, text) if _same(tokenizer, tokens, ids, side) else None


def _same(tokenizer: PreTrainedTokenizerBase, tokens: list[str], ids: Sequence[int], side: str) -> bool:
    """Whether these tokens are the ones the ids stand for."""
    if side == "target" and getattr(tokenizer, "separate_vocabs", False):
        return len(tokens) == len(ids)  # outside its target mode, Marian looks up ids of the source vocabulary
    return tokenizer.convert_tokens_to_ids(tokens) == list(ids)


def _sentencepiece(tokenizer: PreTrainedTokenizerBase, text: str, side: str) -> tuple[list[str], list[Span]] | None:
    """Tokens and spans by the tokenizer's own SentencePiece model, if it has one that gives offsets."""
    own: Any = getattr(tokenizer, f"spm_{side}", None) or getattr(tokenizer, "sp_model", None)
    encode = getattr(own, "EncodeAsOffsetMapping", None)  # sentencepiece >= 0.2.2
    if encode is None:
        return None
    tokens: list[str] = []
    spans: list[Span] = []
    for start, part, whole in _parts(tokenizer, text):
        if whole:
            tokens.append(part)
            spans.append((start, start + len(part)))
        else:
            pieces = encode(part)
            tokens += pieces["pieces"]
            spans += [(start + b, start + e) for b, e in _widen(pieces["pieces"], pieces["offsets"])]
    return tokens, spans


def _parts(tokenizer: PreTrainedTokenizerBase, text: str) -> list[tuple[int, str, bool]]:
    """Cut a text at added tokens and language codes: start, part, whether the part is one token as a whole."""
    wholes = [re.escape(t) for t in sorted(tokenizer.added_tokens_encoder, key=len, reverse=True)]
    if hasattr(tokenizer, "supported_language_codes"):
        wholes.append("^>>.*?<<")  # Marian's `>>de<<`
    parts, at = [], 0
    for match in re.finditer("|".join(wholes), text) if wholes else ():
        parts += [(at, text[at : match.start()], False), (match.start(), match.group(), True)]
        at = match.end()
    return [part for part in [*parts, (at, text[at:], False)] if part[1]]


def _widen(pieces: Sequence[str], offsets: Sequence[Span]) -> list[Span]:
    """Where one character became several pieces ("…"), SentencePiece gives it to the last: give it to all."""
    widened: list[Span] = []
    for piece, (start, end) in zip(reversed(pieces), reversed(offsets), strict=True):
        shared = start == end and piece != "▁" and widened and widened[-1][0] == start
        widened.append(widened[-1] if shared else (start, end))
    return widened[::-1]


def match_surfaces(tokens: Sequence[str], text: str) -> list[Span] | None:
    """Look tokens up in a text from left to right, up to case, compatibility forms and, at need, accents.

    Returns:
        One span per token, or None if the tokens do not spell the text.
    """
    return _match(tokens, text, _fold) or _match(tokens, text, _fold_accents)


def _match(tokens: Sequence[str], text: str, fold: Callable[[str], str]) -> list[Span] | None:
    """Match folded tokens against the folded text, whose characters know where they came from."""
    folded = [fold(c) for c in text]
    flat = "".join(folded)
    origin = [i for i, part in enumerate(folded) for _ in part]
    spans, at = [], 0
    for token in tokens:
        forms = (fold(token), fold(MARKERS.sub("", token)))
        form = next((f for f in forms if flat.startswith(f, at)), None)
        if form is None:
            return None
        begin = origin[at] if at < len(flat) else len(text)
        at += len(form)
        spans.append((begin, origin[at - 1] + 1) if form else (begin, begin))
    return spans if at == len(flat) else None


def _fold(text: str) -> str:
    """Decompose, ignore case, leave out white space and characters that show nothing."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(c for c in decomposed if not c.isspace() and unicodedata.category(c) not in {"Cc", "Cf"})


def _fold_accents(text: str) -> str:
    """The same without combining marks, for tokenizers that strip accents."""
    return "".join(c for c in _fold(text) if unicodedata.category(c) != "Mn")
