"""Alignment of words and tokens to units, at which word-level attention is read, and windows cut between units."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np

from headlens.corpora.sentence import Sentence, moved_words

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
    starts, last_unit, end = [0], UNALIGNED, 0
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
