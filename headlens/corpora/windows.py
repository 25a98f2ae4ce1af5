"""Sentences longer than a model reads, cut into windows that it can read."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

from headlens.corpora.alignment import UNALIGNED, Alignment
from headlens.corpora.sentence import OUTSIDE, Sentence, Word

Encoded = TypeVar("Encoded")


def cut_windows(
    sentence: Sentence, alignment: Alignment, room: int, encode: Callable[[Sentence], Encoded | None]
) -> tuple[list[Encoded], int]:
    """Cut a sentence into windows, one after another, none of which could take one more unit of words.

    Every window is a sentence of its own: its text is tokenized anew, special tokens go around it, and heads in other
    windows are `OUTSIDE`. Words are never cut, nor are words that share a token torn apart.

    Args:
        sentence: longer than the model reads.
        alignment: of all its tokens; says where it may be cut, and about how much fits.
        room: how many tokens of text a window can have; an estimate will do.
        encode: encodes a window; None if it is too long.

    Returns:
        The windows in order, and how many words are in none, because they alone are too long.
    """
    starts = _starts(sentence.words, alignment.unit_of_word)
    tokens = Counter(alignment.unit_of_token)
    units = [alignment.unit_of_word[i] for i in starts]
    total = [0, *accumulate(0 if u == UNALIGNED else tokens[u] for u in units)]
    starts.append(len(sentence.words))
    windows, lost, at = [], 0, 0
    while at < len(units):
        count, window = _longest(
            lambda n: encode(_window(sentence, starts[at], starts[at + n])),  # noqa: B023 - called at once
            bisect_right(total, total[at] + room) - 1 - at,
            len(units) - at,
        )
        if window is None:
            lost += starts[at + 1] - starts[at]
        else:
            windows.append(window)
        at += max(count, 1)
    return windows, lost


def _starts(words: Sequence[Word], units: Sequence[int]) -> list[int]:
    """Indices of the words before which a sentence may be cut: those that share neither unit nor characters."""
    starts, unit, end = [], UNALIGNED, 0
    for i, (word, own) in enumerate(zip(words, units, strict=True)):
        if i == 0 or (word.start >= end and (own == UNALIGNED or own != unit)):
            starts.append(i)
        unit = unit if own == UNALIGNED else own
        end = max(end, word.end)
    return starts


def _window(sentence: Sentence, first: int, last: int) -> Sentence:
    """The words from `first` to before `last`, with the text around them that no other word covers."""
    words = sentence.words[first:last]
    begin = words[0].start if first else 0
    end = max(w.end for w in words)
    limit = sentence.words[last].start if last < len(sentence.words) else len(sentence.text)
    end += len(sentence.text[end:limit].rstrip())
    moved = tuple(replace(w, start=w.start - begin, end=w.end - begin, head=_moved(w.head, first, last)) for w in words)
    return Sentence(sentence.text[begin:end], moved, f"{sentence.id}[{first + 1}-{last}]")


def _moved(head: int | None, first: int, last: int) -> int | None:
    if head is None or head < 0:
        return head
    return head - first if first <= head < last else OUTSIDE


def _longest(attempt: Callable[[int], Encoded | None], guess: int, most: int) -> tuple[int, Encoded | None]:
    """A number of units that fits while one more does not, and what `attempt` gave for it; 0 if not even one fits.

    The search gallops away from the guess, then halves what is left; a good guess takes two attempts.
    """
    low, high, step, found = 0, most + 1, 1, None
    count = min(max(guess, 1), most)
    while high - low > 1:
        result = attempt(count)
        if result is None:
            high = count
        else:
            low, found = count, result
        onwards = min(low + step, most) if low else max(high - step, 1)
        count = (low + high) // 2 if low and high <= most else onwards
        step *= 2
    return low, found
