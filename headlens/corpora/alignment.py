"""Alignment of words and tokens to units, at which word-level attention is read, and windows cut between units."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from headlens.corpora.sentence import OUTSIDE, Sentence, Word

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
    islands, island_of_word = _islands(word_spans)
    touched = _touched(islands, token_spans, special)
    unit_of_island = _number(len(islands), touched)
    blank = [not s and start >= end for s, (start, end) in zip(special, token_spans, strict=True)]
    units = [unit_of_island[first] if first <= last else UNALIGNED for first, last in touched]
    # Blank tokens join the unit that follows, those at the end the unit before.
    units = _fill(_fill(units[::-1], blank[::-1])[::-1], blank)
    words = tuple(UNALIGNED if i == UNALIGNED else unit_of_island[i] for i in island_of_word)
    return Alignment(
        unit_of_token=tuple(units),
        unit_of_word=words,
        n_units=max(unit_of_island, default=UNALIGNED) + 1,
        unaligned_words=words.count(UNALIGNED),
        unaligned_tokens=sum(u == UNALIGNED and not s for u, s in zip(units, special, strict=True)),
    )


def _islands(word_spans: Iterable[Span]) -> tuple[list[Span], list[int]]:
    """Joins words that share characters to islands, which are disjoint.

    Returns:
        The spans of the islands from left to right, and the number of the island of every word.
    """
    islands: list[Span] = []
    island_of_word = []
    for start, end in word_spans:
        if start >= end:
            island_of_word.append(UNALIGNED)
            continue
        if islands and start < islands[-1][0]:
            raise ValueError("words must stand in the order of their spans")
        if islands and start < islands[-1][1]:
            islands[-1] = (islands[-1][0], max(islands[-1][1], end))
        else:
            islands.append((start, end))
        island_of_word.append(len(islands) - 1)
    return islands, island_of_word


def _touched(islands: Sequence[Span], token_spans: Iterable[Span], special: Iterable[bool]) -> list[Span]:
    """Finds the first and the last island that every token touches; first > last if it touches none."""
    starts, ends = [start for start, _ in islands], [end for _, end in islands]
    return [
        # Islands are disjoint and in order, so that both starts and ends rise.
        (1, 0) if is_special or start >= end else (bisect_right(ends, start), bisect_left(starts, end) - 1)
        for (start, end), is_special in zip(token_spans, special, strict=True)
    ]


def _number(n_islands: int, touched: Iterable[Span]) -> list[int]:
    """Numbers the unit of every island: neighbours that one token touches are one unit."""
    reach = [-1] * n_islands  # last island that shares a token with this one, as its first
    for first, last in touched:
        if first <= last:
            reach[first] = max(reach[first], last)
    units, unit, furthest = [], -1, -1
    for i, last in enumerate(reach):
        if last > -1 or furthest >= i:
            unit += furthest < i
            furthest = max(furthest, last)
            units.append(unit)
        else:
            units.append(UNALIGNED)
    return units


def _fill(units: Sequence[int], blank: Sequence[bool]) -> list[int]:
    """Gives blank tokens without a unit the last unit before them."""
    last_units: Iterable[int] = accumulate(units, lambda last, unit: last if unit == UNALIGNED else unit)
    return [last if is_blank else unit for unit, last, is_blank in zip(units, last_units, blank, strict=True)]


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
    starts = _starts(sentence.words, alignment.unit_of_word)
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


def _starts(words: Sequence[Word], units: Sequence[int]) -> list[int]:
    """Finds the words before which a sentence may be cut: they share neither unit nor characters with those before."""
    starts, last_unit, end = [], UNALIGNED, 0
    for i, (word, unit) in enumerate(zip(words, units, strict=True)):
        if i == 0 or (word.start >= end and (unit == UNALIGNED or unit != last_unit)):
            starts.append(i)
        last_unit = last_unit if unit == UNALIGNED else unit
        end = max(end, word.end)
    return starts


def _window(sentence: Sentence, first: int, last: int) -> Sentence:
    """Makes a sentence of the words from `first` to before `last`, with text around them that no other word covers."""
    words = sentence.words[first:last]
    begin = words[0].start if first else 0
    end = max(w.end for w in words)
    limit = sentence.words[last].start if last < len(sentence.words) else len(sentence.text)
    end += len(sentence.text[end:limit].rstrip())
    moved = tuple(replace(w, start=w.start - begin, end=w.end - begin, head=_moved(w.head, first, last)) for w in words)
    return Sentence(sentence.text[begin:end], moved, f"{sentence.id}[{first + 1}-{last}]")


def _moved(head: int | None, first: int, last: int) -> int | None:
    """Returns a head as an index in the window, `OUTSIDE` for a word of another window."""
    if head is None or head < 0:
        return head
    return head - first if first <= head < last else OUTSIDE


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
