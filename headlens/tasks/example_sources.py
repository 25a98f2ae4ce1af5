"""Sources of examples: rows, read as a task's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Protocol

from headlens.errors import CorpusError, OptionError, counted
from headlens.tasks.example_parsers import ExampleReader, choose_columns
from headlens.tasks.examples import TaskExample, words_of
from headlens.tasks.row_readers import RowSource


@dataclass
class SourceCounts:
    """What became of a source.

    Args:
        rows: examples it has, with those left out.
        unlabelled: left out because nobody says what is right, or because a text is empty.
        too_long: left out because the model does not read so many tokens, or because there is nothing to ask.
        too_short: left out because fewer words were asked for than `min_words`.
        examples: the rest.
    """

    rows: int = 0
    unlabelled: int = 0
    too_long: int = 0
    too_short: int = 0
    examples: int = 0


class TaskSource(Protocol):
    """Examples of a task, which can be read any number of times."""

    @property
    def name(self) -> str:
        """Name of the source as tables and reports show it."""

    def read(self, counts: SourceCounts) -> Iterator[TaskExample]:
        """Examples with labels, in order; `counts` says how many rows there were and how many have none."""


@dataclass(frozen=True)
class RowExamples:
    """Examples from rows.

    Args:
        rows: of a file or a data set.
        reader: makes examples of them.
        layouts: columns of known layouts, in the order of the reader's roles.
        columns: what the user says about columns, by role.
        limit: read only the first examples.
        min_words: leave out examples whose texts have fewer words together (`words_of`); before the limit.
    """

    rows: RowSource
    reader: ExampleReader
    layouts: tuple[tuple[str, ...], ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    min_words: int = 0

    def __post_init__(self) -> None:
        _check_limit(self.limit)

    @property
    def name(self) -> str:
        """Name of the file or data set that the rows come from."""
        return self.rows.name

    def read(self, counts: SourceCounts) -> Iterator[TaskExample]:
        """Read from the start.

        Raises:
            CorpusError: with the line: no example with a label at all, a missing column, an unknown label.
            OptionError: for a column of a role that there is not.
        """
        found = 0
        for example in islice(self._counted(counts), self.limit):
            found += 1
            yield example
        if not found:
            lost = f"none of its {counts.rows} rows has a label and text" if counts.rows else "it is empty"
            if counts.too_short:
                raise CorpusError(
                    f"no examples: {counted(counts.too_short, 'example')} with fewer than {self.min_words} words.",
                    "Ask for shorter ones with --min-words.",
                    path=self.rows.name,
                )
            raise CorpusError(f"no examples: {lost}.", "Choose another file, split or column.", path=self.rows.name)

    def _counted(self, counts: SourceCounts) -> Iterator[TaskExample]:
        for example in self._examples():
            counts.rows += 1
            if example is None:
                counts.unlabelled += 1
            elif self.min_words and words_of(example) < self.min_words:
                counts.too_short += 1
            else:
                yield example

    def _examples(self) -> Iterator[TaskExample | None]:
        rows = iter(self.rows)
        first = next(rows, None)
        if first is None:
            return
        whole = "paragraphs" in first.cells and not self.columns  # SQuAD's own files name nothing else
        columns = {} if whole else choose_columns(first, self.reader.roles, self.layouts, self.columns)
        for row in chain([first], rows):
            yield from self.reader.examples(row, columns)


@dataclass(frozen=True)
class ChainedExamples:
    """Sources one after the other.

    Args:
        parts: at least one.
        limit: read only the first examples of all together.
    """

    parts: tuple[TaskSource, ...]
    limit: int | None = None

    def __post_init__(self) -> None:
        _check_limit(self.limit)

    @property
    def name(self) -> str:
        """Names of all chained sources, joined by `+`."""
        return "+".join(part.name for part in self.parts)

    def read(self, counts: SourceCounts) -> Iterator[TaskExample]:
        """Read from the start; ids begin with the name of the source, for each source may count its rows from 1."""
        pairs = ((part.name, example) for part in self.parts for example in part.read(counts))
        for name, example in islice(pairs, self.limit):
            yield replace(example, id=f"{name}:{example.id}")


@dataclass(frozen=True)
class GivenExamples:
    """Examples that are in memory, or a part of a source.

    Args:
        examples: in order.
        name: in tables and reports.
    """

    examples: tuple[TaskExample, ...]
    name: str = "given"

    def read(self, counts: SourceCounts) -> Iterator[TaskExample]:
        """Yield the examples in order, adding one to `counts.rows` for each."""
        for example in self.examples:
            counts.rows += 1
            yield example


def gather(source: TaskSource, counts: SourceCounts | None = None) -> GivenExamples:
    """All examples of a source in memory, for splitting and shuffling."""
    return GivenExamples(tuple(source.read(counts or SourceCounts())), source.name)


def split(source: GivenExamples, parts: Iterable[Iterable[int]]) -> list[GivenExamples]:
    """Parts of a source by index, such as a part to rank on and one to evaluate on."""
    chosen = [tuple(source.examples[i] for i in part) for part in parts]
    return [GivenExamples(part, source.name) for part in chosen]


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise OptionError(f"--limit {limit} is not a positive number.", "Leave it out to read everything.")
