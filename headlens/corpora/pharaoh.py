"""Gold alignments of words in the format of Pharaoh: a line for each pair, links such as `0-0 1-2 2p1` in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.sentence import Example, Link, Sentence, Word
from headlens.corpora.sources import CorpusView
from headlens.corpora.text import Line, ParallelCorpus, TextCorpus, open_text
from headlens.errors import CorpusError, OptionError, counted

# The sign of a sure link is `-`; that of possible links differs from collection to collection.
_LINK = re.compile(r"(?P<source>\d{1,9})(?P<sign>[-?p])(?P<target>\d{1,9})")


@dataclass(frozen=True)
class AlignedCorpus(CorpusView):
    """Pairs with the gold alignment of their words; the words of plain text stand between spaces.

    Whether the file counts words from 0, as Pharaoh does, or from 1, its numbers tell.

    Args:
        corpus: pairs.
        path: the file of links: a line for each pair; where both sides are files of text, for each line of these.
    """

    path: str

    def __iter__(self) -> Iterator[Example]:
        """Reads the pairs from the start; those with a blank line of links have no alignment.

        Raises:
            CorpusError: with file and line: what is no link, a word that there is not, too few or too many lines.
            OptionError: if the corpus has no pairs.
        """
        lines = list(open_text(self.path))
        links = [[self._link(part, line) for part in line.text.split()] for line in lines]
        first = self._first_word(links)
        number = 0
        for number, pair in self._numbered():
            if number > len(lines):
                problem = f"has {counted(len(lines), 'line')}, but {self.name} has a pair {number}"
                raise CorpusError(f"{problem}.", "Give a line of links for each pair.", path=self.path)
            yield self._aligned(pair, links[number - 1], first, lines[number - 1])
        if left := next((line for line in lines[number:] if line.text.strip()), None):
            problem = f"has lines after pair {number}, the last of {self.name}."
            raise CorpusError(problem, "Give a line of links for each pair.", path=self.path, line=left.number)

    def _numbered(self) -> Iterator[tuple[int, Example]]:
        """Yields pairs with the numbers of their lines of links, their words as the links count them."""
        pairs = self.corpus
        while isinstance(pairs, CorpusView):
            pairs = pairs.corpus
        sides = (pairs.source, pairs.target) if isinstance(pairs, ParallelCorpus) else (pairs, pairs)
        by_line = isinstance(sides[0], TextCorpus)  # whose blank lines are no pairs
        for ordinal, pair in enumerate(self.corpus, 1):
            if pair.target is None:
                raise OptionError(
                    "--alignments: the corpus has no pairs.", "Give --target or --data-args target-column."
                )
            source, target = (
                sentence if isinstance(side, ConlluCorpus) else between_spaces(sentence)
                for side, sentence in zip(sides, (pair.source, pair.target), strict=True)
            )
            yield int(source.id) if by_line else ordinal, Example(source, target)

    def _link(self, part: str, line: Line) -> tuple[int, int, bool]:
        match = _LINK.fullmatch(part)
        if match is None:
            advice = "Write source and target word of every link: 0-0 1-2, possible ones 1?2 or 1p2."
            raise CorpusError(f"{part[:40]!r} is not a link.", advice, path=self.path, line=line.number)
        return int(match["source"]), int(match["target"]), match["sign"] == "-"

    def _first_word(self, links: list[list[tuple[int, int, bool]]]) -> int:
        """Returns the number of the first word, 0 or 1; a number equal to that of the words tells that it is 1."""
        if any(0 in link[:2] for sentence_links in links for link in sentence_links):
            return 0
        for number, pair in self._numbered():
            assert pair.target is not None
            ends = len(pair.source.words), len(pair.target.words)
            here = links[number - 1] if number <= len(links) else []
            if any(link[0] == ends[0] or link[1] == ends[1] for link in here):
                return 1
        raise CorpusError(
            "does not tell whether words are counted from 0 or from 1: no link has a 0 or the number of a last word.",
            "Count from 0, as Pharaoh does, and include at least one link of a first word, such as 0-0.",
            path=self.path,
        )

    def _aligned(self, pair: Example, links: list[tuple[int, int, bool]], first: int, line: Line) -> Example:
        assert pair.target is not None
        for link in links:
            for place, side, name in zip(link, (pair.source, pair.target), ("source", "target"), strict=False):
                if not first <= place < first + len(side.words):
                    raise CorpusError(
                        f"there is no {name} word {place}: it has {counted(len(side.words), 'word')} from {first} on.",
                        "Are source and target swapped, or are the lines misaligned?",
                        path=self.path,
                        line=line.number,
                    )
        gold = tuple(Link(source - first, target - first, sure) for source, target, sure in links)
        return Example(pair.source, pair.target, links=gold or None)


def between_spaces(sentence: Sentence) -> Sentence:
    """Returns a sentence whose words stand between spaces, as those that were tokenized before do."""
    matches = re.finditer(r"\S+", sentence.text)
    return Sentence(sentence.text, tuple(Word(m[0], *m.span()) for m in matches), sentence.id)
