"""Words meet tokens: the units at which word-level attention is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
UNALIGNED = -1


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
        """Words that share their unit with another word."""
        sizes = Counter(u for u in self.unit_of_word if u != UNALIGNED)
        return sum(n for n in sizes.values() if n > 1)


def align(word_spans: Sequence[Span], token_spans: Sequence[Span], special: Sequence[bool]) -> Alignment:
    """Find the units of a sentence, in time linear in its length.

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
    found = [unit_of_island[first] if first <= last else UNALIGNED for first, last in touched]
    units = _attach(found, blank)
    words = tuple(UNALIGNED if i == UNALIGNED else unit_of_island[i] for i in island_of_word)
    return Alignment(
        unit_of_token=tuple(units),
        unit_of_word=words,
        n_units=max(unit_of_island, default=UNALIGNED) + 1,
        unaligned_words=words.count(UNALIGNED),
        unaligned_tokens=sum(u == UNALIGNED and not s for u, s in zip(units, special, strict=True)),
    )


def _islands(word_spans: Iterable[Span]) -> tuple[list[Span], list[int]]:
    """Join words that share characters; the islands are disjoint, and every word knows its own."""
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


def _touched(islands: list[Span], token_spans: Iterable[Span], special: Iterable[bool]) -> list[Span]:
    """First and last island that every token touches; first > last if it touches none."""
    ending_after: list[int] = []  # per character position: the first island that ends after it
    starting_before: list[int] = []  # the last island that starts before it
    for i, (start, end) in enumerate(islands):
        ending_after += [i] * (end - len(ending_after))
        starting_before += [i - 1] * (start + 1 - len(starting_before))
    n, none = len(islands), (1, 0)

    def touched(start: int, end: int) -> Span:
        first = ending_after[start] if start < len(ending_after) else n
        last = starting_before[end] if end < len(starting_before) else n - 1
        return first, last

    spans = zip(token_spans, special, strict=True)
    return [none if s or start >= end else touched(start, end) for (start, end), s in spans]


def _number(n_islands: int, touched: Iterable[Span]) -> list[int]:
    """Unit of every island: neighbours that one token touches are one unit."""
    reach = [-1] * n_islands
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


def _attach(units: Sequence[int], blank: Sequence[bool]) -> list[int]:
    """Give blank tokens the unit that follows, and those at the end the unit before."""
    return _fill(_fill(units[::-1], blank[::-1])[::-1], blank)


def _fill(units: Sequence[int], blank: Sequence[bool]) -> list[int]:
    """Give blank tokens without a unit the last one seen."""
    filled, seen = [], UNALIGNED
    for unit, is_blank in zip(units, blank, strict=True):
        seen = unit if unit != UNALIGNED else seen
        filled.append(seen if is_blank else unit)
    return filled
