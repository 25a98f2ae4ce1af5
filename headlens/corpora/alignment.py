"""Tokens of a text with their characters, their alignment with words to units, and windows cut between units."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from transformers import BatchEncoding, PreTrainedTokenizerBase

from headlens.corpora.sentence import Example, Sentence, join_sentences, moved_words
from headlens.errors import AlignmentError, CorpusError

Side = Literal["source", "target"]
MARKERS = re.compile(r"^(▁|Ġ|##)+|(</w>|@@)$")


class TokenOffsets(NamedTuple):
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
    with refused_words(tokenizer, [text]):
        encoding: BatchEncoding = tokenizer(**{"text_target" if side == "target" else "text": text}, **options)
    return encoding


@contextmanager
def refused_words(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str | None]) -> Iterator[None]:
    """Says which word a tokenizer stops at that does not know it and has no token for unknown ones.

    Raises:
        CorpusError: for what the package tokenizers raises, which has no kind of its own.
    """
    try:
        yield
    except Exception as error:
        if not any(words in str(error) for words in ("Missing [UNK]", "unknown token")):
            raise
        word = next((w for text in texts for w in (text or "").split() if not _is_known(tokenizer, w)), "the text")
        raise CorpusError(
            f"the tokenizer does not know {word!r}, and has no token for words that it does not know.",
            "Give text that is made of its vocabulary.",
        ) from error


def _is_known(tokenizer: PreTrainedTokenizerBase, word: str) -> bool:
    try:
        tokenizer(word)
    except Exception:  # of the package tokenizers
        return False
    return True


def known_word(tokenizer: PreTrainedTokenizerBase) -> str:
    """A short text that the tokenizer reads."""
    return next((text for text in ("a", "0") if _is_known(tokenizer, text)), next(iter(tokenizer.get_vocab())))


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
        encoded: dict[str, Any] = {"pieces": [part], "offsets": [(0, len(part))]} if is_token else encode(part)
        tokens += encoded["pieces"]
        spans += [(start + b, start + e) for b, e in _widen(encoded["pieces"], encoded["offsets"])]
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


Span = tuple[int, int]
UNALIGNED = -1
Encoded = TypeVar("Encoded")


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which unit every token and every word of a sentence belongs to.

    A unit is a connected component of the relation "shares characters" between words and tokens: as a rule one
    word with its pieces; several words where a token covers more than one of them ("gonna") or where the words
    share one span (German "zum"). Units are numbered from left to right; `UNALIGNED` stands for none.

    Args:
        unit_of_token: one entry per token; `UNALIGNED` for special tokens and tokens outside all words.
        unit_of_word: one entry per word; `UNALIGNED` for words that no token touches.
        n_units: number of units; every unit has at least one word and one token.
        unaligned_words: words without a token.
        unaligned_tokens: tokens without a word, special ones not counted.
    """

    unit_of_token: tuple[int, ...]
    unit_of_word: tuple[int, ...]
    n_units: int
    unaligned_words: int
    unaligned_tokens: int

    @property
    def merged_words(self) -> int:
        """Number of words that share their unit with another word."""
        sizes = Counter(u for u in self.unit_of_word if u != UNALIGNED)
        return sum(n for n in sizes.values() if n > 1)


def align(word_spans: Sequence[Span], token_spans: Sequence[Span], special: Sequence[bool]) -> Alignment:
    """Finds the units of a sentence, in time n log n in its length.

    A token of width zero (white space only, once its span is trimmed) joins the unit of the next aligned token, or
    that of the last one at the end.

    Args:
        word_spans: first and one past the last character of every word, in order of their beginnings; words may
            share characters.
        token_spans: the same for every token, white space at the edges trimmed off.
        special: tokens that stand for no text.

    Raises:
        ValueError: if the words are not in order.
    """
    words, tokens = (np.array(spans, dtype=np.int64).reshape(-1, 2) for spans in (word_spans, token_spans))
    has_text = words[:, 0] < words[:, 1]
    is_special = np.array([flag for flag, _ in zip(special, token_spans, strict=True)], dtype=bool)
    # Words that share characters are islands, which are disjoint and in order: both their starts and their ends rise.
    starts, ends = words[has_text].T
    is_first = starts >= np.append(0, np.maximum.accumulate(ends))[:-1]
    island = np.cumsum(is_first) - 1
    island_starts, island_ends = starts[is_first], np.maximum.reduceat(ends, np.flatnonzero(is_first))
    if (starts < island_starts[island]).any():
        raise ValueError("words must stand in the order of their spans")
    first, last = np.searchsorted(island_ends, tokens[:, 0], "right"), np.searchsorted(island_starts, tokens[:, 1]) - 1
    is_blank = ~is_special & (tokens[:, 0] >= tokens[:, 1])
    touches = ~is_special & ~is_blank & (first <= last)
    # Neighbours that one token touches are one unit, which reaches as far as the last island of its tokens.
    numbers = np.arange(len(island_starts))
    reach = np.full(len(numbers), -1)
    np.maximum.at(reach, first[touches], last[touches])
    reach = np.maximum.accumulate(reach)
    begins = (reach >= numbers) & (np.append(-1, reach)[:-1] < numbers)
    unit_of_island = np.where(reach >= numbers, np.cumsum(begins) - 1, UNALIGNED)
    unit_of_word, unit_of_token = np.full(len(words), UNALIGNED), np.full(len(tokens), UNALIGNED)
    unit_of_word[has_text] = unit_of_island[island]
    unit_of_token[touches] = unit_of_island[first[touches]]
    # Blank tokens join the unit that follows, those at the end the unit before.
    if len(aligned := np.flatnonzero(touches)):
        following = np.searchsorted(aligned, np.flatnonzero(is_blank))
        unit_of_token[is_blank] = unit_of_token[aligned[np.minimum(following, len(aligned) - 1)]]
    return Alignment(
        unit_of_token=tuple(unit_of_token.tolist()),
        unit_of_word=tuple(unit_of_word.tolist()),
        n_units=int(begins.sum()),
        unaligned_words=int((unit_of_word == UNALIGNED).sum()),
        unaligned_tokens=int(((unit_of_token == UNALIGNED) & ~is_special).sum()),
    )


def cut_windows(
    sentence: Sentence, alignment: Alignment, room: int, encode: Callable[[Sentence], Encoded | None]
) -> tuple[list[Encoded], int]:
    """Cuts a sentence into windows, one after another, none of which could take one more unit of words.

    Every window is a sentence of its own: its text is tokenized anew, special tokens go around it, and heads in other
    windows are `OUTSIDE`. Words are never cut, nor are words that share a token torn apart.

    Args:
        sentence: longer than the model reads.
        alignment: units of all its tokens, between which it may be cut; their lengths estimate how much fits.
        room: number of tokens of text that a window can have; an estimate will do.
        encode: encodes a window; None if it is too long.

    Returns:
        The windows in order, and the number of words that are in none, because they alone are too long.
    """
    # It may be cut before words that share neither unit nor characters with those before.
    starts, last_unit, end = [0] if sentence.words else [], UNALIGNED, 0
    for i, (word, unit) in enumerate(zip(sentence.words, alignment.unit_of_word, strict=True)):
        if i and word.start >= end and (unit == UNALIGNED or unit != last_unit):
            starts.append(i)
        last_unit = last_unit if unit == UNALIGNED else unit
        end = max(end, word.end)
    tokens = Counter(alignment.unit_of_token)
    units = [alignment.unit_of_word[i] for i in starts]
    total = [0, *accumulate(0 if u == UNALIGNED else tokens[u] for u in units)]  # tokens before every unit
    starts.append(len(sentence.words))
    windows, lost, first = [], 0, 0
    while first < len(units):
        count, window = _longest(
            lambda n: encode(_window(sentence, starts[first], starts[first + n])),  # noqa: B023 - called at once
            bisect_right(total, total[first] + room) - 1 - first,
            len(units) - first,
        )
        if window is None:
            lost += starts[first + 1] - starts[first]
        else:
            windows.append(window)
        first += max(count, 1)
    return windows, lost


def _window(sentence: Sentence, first: int, last: int) -> Sentence:
    """Makes a sentence of the words from `first` to before `last`, with text around them that no other word covers."""
    words = sentence.words[first:last]
    begin = words[0].start if first else 0
    end = max(w.end for w in words)
    limit = sentence.words[last].start if last < len(sentence.words) else len(sentence.text)
    end += len(sentence.text[end:limit].rstrip())
    moved = moved_words(words, -begin, first, 0)
    return Sentence(sentence.text[begin:end], moved, f"{sentence.id}[{first + 1}-{last}]")


def _longest(attempt: Callable[[int], Encoded | None], guess: int, most: int) -> tuple[int, Encoded | None]:
    """Finds a number of units that fits while one more does not, and their window; 0 and None if not even one fits.

    The search gallops away from the guess, then halves what is left; a good guess takes two attempts.
    """
    low, high, step, longest = 0, most + 1, 1, None
    count = min(max(guess, 1), most)
    while high - low > 1:
        window = attempt(count)
        if window is None:
            high = count
        else:
            low, longest = count, window
        onwards = min(low + step, most) if low else max(high - step, 1)
        count = (low + high) // 2 if low and high <= most else onwards
        step *= 2
    return low, longest
