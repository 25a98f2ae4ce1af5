"""Dependency trees as lists of heads: what is wrong with one, and how to mend several roots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headlens.corpora.sentence import ROOT, Word
from headlens.errors import counted

LATER_ROOT = "parataxis"


def find_fault(heads: Sequence[int]) -> tuple[int, str] | None:
    """The first reason why `heads` are no tree: index of the word and what is wrong with it; None for a tree.

    Args:
        heads: index of every word's head, `ROOT` for the root.
    """
    for index, head in enumerate(heads):
        if head != ROOT and not 0 <= head < len(heads):
            return index, f"head {head + 1} is out of range (the sentence has {counted(len(heads), 'word')})"
    roots = [i for i, h in enumerate(heads) if h == ROOT]
    if not roots:
        return 0, "the sentence has no root (a word with head 0)"
    if len(roots) > 1:
        return roots[1], f"the sentence has {len(roots)} roots; word {roots[0] + 1} is one already"
    cycle = _find_cycle(heads)
    return None if cycle is None else (cycle, f"word {cycle + 1} is part of a cycle of heads")


def _find_cycle(heads: Sequence[int]) -> int | None:
    safe = set[int]()
    for start in range(len(heads)):
        path: dict[int, None] = {}
        node = start
        while node != ROOT and node not in safe:
            if node in path:
                return min(list(path)[list(path).index(node) :])
            path[node] = None
            node = heads[node]
        safe.update(path)
    return None


def single_root(words: Iterable[Word]) -> tuple[Word, ...]:
    """Hang all roots but the first on the first, as `parataxis`, the label UD has for sentences side by side.

    Parsers that find several sentences in one line give several trees; this makes one of them.
    """
    mended = list(words)
    roots = [i for i, w in enumerate(mended) if w.head == ROOT]
    for index in roots[1:]:
        mended[index] = replace(mended[index], head=roots[0], relation=LATER_ROOT)
    return tuple(mended)
