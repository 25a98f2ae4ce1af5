"""Parts of a corpus: words with spans, sentences with trees, examples; rows that cannot be read; and its summary."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from headlens.corpora.relations import relation_names
from headlens.errors import CorpusError, MissingColumnError, counted

ROOT = -1  # head of the root
OUTSIDE = -2  # head that is in another window of a long sentence
LATER_ROOT = "parataxis"


@dataclass(frozen=True, slots=True)
class Word:
    """A syntactic word.

    Args:
        form: the word as the treebank or parser spells it ("n't"; "dem" inside German "zum").
        start: first character in the sentence's text.
        end: one past the last character; several words of a multiword token may share one span.
        head: index of the governing word in the sentence, `ROOT` for the root, None without a tree; in a window of a
            longer sentence `OUTSIDE` where the governing word is in another window.
        relation: UD label with its subtype ("nsubj:pass"), None without a tree.
        upos: universal part of speech, None if unknown.
        entities: those of which it is the head word of a mention.
    """

    form: str
    start: int
    end: int
    head: int | None = None
    relation: str | None = None
    upos: str | None = None
    entities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with its words in order of their spans.

    Args:
        text: that models read; of plain text with single spaces.
        words: with their spans in the text.
        id: name or number.
        written: the text as it stands in its file, where that has other white space; else empty.
    """

    text: str
    words: tuple[Word, ...]
    id: str = ""
    written: str = field(default="", compare=False)

    @property
    def has_tree(self) -> bool:
        """Whether every word has a head."""
        return bool(self.words) and all(w.head is not None for w in self.words)


class Link(NamedTuple):
    """Two words that translate each other: of the source and of the target, and whether that is sure."""

    source: int
    target: int
    sure: bool


@dataclass(frozen=True, slots=True)
class Example:
    """Sentence, or sentence and translation, that a model reads at once.

    Args:
        source: the sentence, or the first of two texts.
        target: its translation, or the second text.
        links: gold alignment of the words of both; None where there is none.
    """

    source: Sentence
    target: Sentence | None = None
    links: tuple[Link, ...] | None = field(default=None, kw_only=True)


class Corpus(Protocol):
    """Examples that can be read again and again without being held in memory."""

    @property
    def name(self) -> str:
        """Short name for run folders and titles."""

    def __iter__(self) -> Iterator[Example]:
        """Yields all examples of the corpus in order, starting from the first one on every call."""


def join_sentences(first: Sentence, second: Sentence) -> Sentence:
    """Joins two sentences to one text, a line each; both trees stay as they are."""
    moved = moved_words(second.words, len(first.text) + 1, 0, len(first.words))
    return Sentence(f"{first.text}\n{second.text}", first.words + moved, f"{first.id}+{second.id}")


def single_spaced_places(text: str) -> list[int]:
    """Returns of every character of a text with single spaces, and none around it, its place in the text as it is."""
    places: list[int] = []
    for run in re.finditer(r"\S+", text):
        places += [run.start() - 1] * bool(places) + [*range(*run.span())]
    return places


def single_spaced(sentence: Sentence) -> Sentence:
    """Returns a sentence with single spaces between its words and none around them, as a treebank holds it."""
    new = {old: place for place, old in enumerate(single_spaced_places(sentence.text))}
    words = tuple(replace(w, start=new[w.start], end=new[w.end - 1] + 1) for w in sentence.words)
    return replace(sentence, text=" ".join(sentence.text.split()), words=words)


def moved_words(words: Sequence[Word], shift: int, first: int = 0, place: int = 0) -> tuple[Word, ...]:
    """Moves words that follow each other to another place in another text.

    Args:
        words: the words; heads of other words than these become `OUTSIDE`.
        shift: by how many characters they move.
        first: index of the first of them in its sentence.
        place: its index in the new one.
    """

    def moved(head: int | None) -> int | None:
        if head is None or head < 0:
            return head
        return head - first + place if first <= head < first + len(words) else OUTSIDE

    return tuple(replace(w, start=w.start + shift, end=w.end + shift, head=moved(w.head)) for w in words)


def find_tree_fault(heads: Sequence[int]) -> tuple[int, str] | None:
    """Finds the first reason why heads are no tree.

    Args:
        heads: index of every word's head, `ROOT` for the root.

    Returns:
        Index of the word and what is wrong with it; None for a tree.
    """
    for index, head in enumerate(heads):
        if head != ROOT and not 0 <= head < len(heads):
            return index, f"head {head + 1} is out of range (the sentence has {counted(len(heads), 'word')})"
    roots = [i for i, h in enumerate(heads) if h == ROOT]
    if not roots:
        return 0, "the sentence has no root (a word with head 0)"
    if len(roots) > 1:
        return roots[1], f"the sentence has {len(roots)} roots; word {roots[0] + 1} is already one"
    cycle = _find_cycle(heads)
    return None if cycle is None else (cycle, f"word {cycle + 1} is part of a cycle of heads")


def _find_cycle(heads: Sequence[int]) -> int | None:
    """Returns the first word of a cycle; None without one, in linear time."""
    safe = {ROOT}  # words from which the heads lead to the root
    for start in range(len(heads)):
        path: dict[int, None] = {}
        node = start
        while node not in safe:
            if node in path:
                return min(list(path)[list(path).index(node) :])
            path[node] = None
            node = heads[node]
        safe.update(path)
    return None


def single_root(words: Iterable[Word]) -> tuple[Word, ...]:
    """Hangs all roots but the first on the first, as `parataxis`, the label UD has for sentences side by side.

    Parsers that find several sentences in one line give several trees; this makes one of them.
    """
    tree = list(words)
    roots = [i for i, w in enumerate(tree) if w.head == ROOT]
    for index in roots[1:]:
        tree[index] = replace(tree[index], head=roots[0], relation=LATER_ROOT)
    return tuple(tree)


def join_tokens(tokens: Iterable[tuple[str, Sequence[str], bool]]) -> tuple[str, list[tuple[int, int]]]:
    """Joins tokens to a text, one space between them unless they say no.

    Args:
        tokens: stretches of text without a gap, the syntactic words in each (one, or several of a multiword token), and
            whether a space follows.

    Returns:
        The text (without a space at its end) and the span (start, end) of every word.
    """
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    position = 0
    for surface, forms, has_space in tokens:
        spans += split_surface(surface, forms, position)
        pieces.append(surface + " " * has_space)
        position += len(pieces[-1])
    return "".join(pieces).rstrip(" "), spans


def split_surface(surface: str, forms: Sequence[str], start: int) -> list[tuple[int, int]]:
    """Finds the spans of the words of one surface token that starts at `start`.

    If the forms joined spell the surface (case aside), each word has its own part: "don't" is "do" and "n't".
    If not (German "zum" is "zu" and "dem", French "au" is "à" and "le"), all share the span of the surface.
    """
    joined = "".join(forms)
    if len(joined) != len(surface) or joined.lower() != surface.lower():
        return [(start, start + len(surface))] * len(forms)
    return list(pairwise(accumulate(map(len, forms), initial=start)))


T = TypeVar("T")
# What may be left out of a source: a share of its rows; of a small one so many, but no larger share than that, or one.
_SHARE, _FEW, _LARGEST_SHARE = 0.01, 10, 0.25
SHOWN = 3  # rows that a note shows


def sound(rows: Iterable[T | CorpusError]) -> Iterator[T]:
    """Yields rows, and raises the error that stands in the place of the first that cannot be read."""
    try:
        for row in rows:
            if isinstance(row, CorpusError):
                raise row
            yield row
    finally:
        if isinstance(rows, Generator):  # an error that is kept would keep the file open
            rows.close()


class CheckedCorpus(ABC):
    """Base of corpora that yield errors in the place of rows that cannot be read; iterating raises the first one."""

    @abstractmethod
    def readings(self) -> Iterator[Example | CorpusError]:
        """Reads the corpus from the start; yields what is wrong in the place of what cannot be read."""

    def __iter__(self) -> Iterator[Example]:
        return sound(self.readings())


def readings(corpus: Corpus) -> Iterator[Example | CorpusError]:
    """Yields the examples of a corpus, and what is wrong with those that cannot be read where the corpus tells it."""
    read = getattr(corpus, "readings", None)  # also of a corpus from elsewhere, which need not be a `CheckedCorpus`
    return iter(corpus) if read is None else read()


def broken_note(broken: int, rows: int, first: Iterable[str]) -> str:
    """Returns what to know about rows that were left out, of all rows; `first` of them, with their places."""
    more = " …" if broken > SHOWN else ""
    return f"Left out by --data-args skip-broken: {broken} of {counted(rows, 'row')}. {' '.join(first)}{more}"


_WITH_HEADER = frozenset({".tsv", ".csv", ".parquet", ".arrow"})


@dataclass
class BrokenRows:
    """The rows of a source that cannot be read.

    Args:
        name: of the source.
        path: of its file; None for others.
        skip: whether they are left out.
        number: how many there are.
        first: places of the first of them, with what is wrong.
    """

    name: str
    path: str | Path | None
    skip: bool
    number: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, error: CorpusError) -> None:
        """Counts a row.

        Raises:
            CorpusError: the error with what can be done, if it is not to be left out.
        """
        # In a table with one header no row has a column that one lacks.
        if isinstance(error, MissingColumnError) and not _WITH_HEADER.isdisjoint(Path(self.path or "").suffixes):
            raise error
        if not self.skip:
            advised = CorpusError(error.message, f"{error.advice} Or leave such rows out with --data-args skip-broken.")
            advised.path, advised.line = error.path, error.line
            raise advised from error
        self.number += 1
        if len(self.first) < SHOWN:
            name = self.name if self.path is None else Path(self.path).name
            self.first.append(f"{name}{error.message.removeprefix(str(error.path))}")

    def check(self, rows: int) -> None:
        """Refuses a source of which too much is broken.

        Args:
            rows: how many were read, with these.

        Raises:
            CorpusError: with their number and the first of them.
        """
        most = max(_SHARE * rows, min(_FEW, _LARGEST_SHARE * rows), 1)
        if self.number and (self.number == rows or self.number > most):
            message = f"{self.number} of {counted(rows, 'row')} cannot be read. The first: {self.first[0]}"
            advice = (
                f"--data-args skip-broken leaves out {_SHARE:.0%} of the rows (in small files up to {_FEW}), but no "
                f"more than {_LARGEST_SHARE:.0%} of them: correct the file."
            )
            raise CorpusError(message, advice, path=self.path or self.name)


@dataclass(frozen=True)
class CorpusSummary:
    """A corpus as `run.json` records it.

    Args:
        name: short name of the corpus.
        sentences: number of examples; a pair counts once.
        words: number of words of both sides.
        trees: number of sentences with a dependency tree, of both sides.
        relations: counts of each relation between words, subtypes under their base, too.
        sha256: over texts, words and trees; the same for the same content, whatever file or ids it has.
    """

    name: str
    sentences: int
    words: int
    trees: int
    sha256: str
    relations: dict[str, int] = field(default_factory=dict)


def summarise(corpus: Corpus, progress: Callable[[int], None] = lambda _: None) -> CorpusSummary:
    """Reads a corpus once and sums it up; `progress` is called with 1 after every example.

    Raises:
        CorpusError: if it is empty, if most of its words are `_`, or whatever reading it raises.
    """
    digest = hashlib.sha256()
    sentences = words = trees = blanks = 0
    relations: Counter[str] = Counter()
    for example in corpus:
        sentences += 1
        for sentence in (example.source, example.target):
            if sentence is not None:
                digest.update(_content(sentence))
                words += len(sentence.words)
                blanks += sum(word.form == "_" for word in sentence.words)
                trees += sentence.has_tree
                labels = [w.relation for w in sentence.words if w.relation and w.head != ROOT]
                relations.update(name for label in labels for name in relation_names(label))
        digest.update(b"\0")
        progress(1)
    if not sentences:
        advice = "Give one with at least one sentence; blank lines, comments and empty cells do not count."
        raise CorpusError(f"the corpus {corpus.name} is empty.", advice)
    if blanks and 2 * blanks >= words:
        raise CorpusError(
            f"{blanks:,} of the {words:,} words of {corpus.name} are '_': the treebank comes without its text.",
            "Add the text as its README says (treebanks of licensed text are published without it).",
        )
    return CorpusSummary(corpus.name, sentences, words, trees, digest.hexdigest(), dict(relations))


def _content(sentence: Sentence) -> bytes:
    """Writes text, words and tree of a sentence as the bytes that are hashed."""
    words = "\t".join(f"{w.start}:{w.end}:{w.head}:{w.relation}:{w.form}{':'.join(w.entities)}" for w in sentence.words)
    return f"{sentence.text}\n{words}\n".encode()
