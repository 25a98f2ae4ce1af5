"""Sources of examples: rows read as examples of a task, with counts and a fingerprint of their content."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from headlens.corpora.chat import template_of
from headlens.corpora.sentence import BrokenRows
from headlens.corpora.text import distinct_names
from headlens.errors import CorpusError, OptionError, counted
from headlens.options import BleuTokenizer
from headlens.tasks.class_names import DATA_ADVICE, data_order
from headlens.tasks.example_parsers import ClassLabels, ExampleReader, OwnLabels, TextReader, choose_columns
from headlens.tasks.examples import TaskExample, TextExample, words_of
from headlens.tasks.row_readers import HubRows, RowSource, TaskRow, file_of

FEW_LABELS = 5


@dataclass
class SourceCounts:
    """Numbers of a source's examples, by what became of them.

    Args:
        rows: all examples of the source, with those left out.
        unlabelled: left out because the label is unknown, or because a text is empty.
        too_long: left out because the model does not read so many tokens, or because there is nothing to predict.
        too_short: left out because their texts have fewer words than `min_words`.
        examples: the rest.
        repeated: those of them that repeat the texts of others, of what a model is evaluated on.
        notes: what to know about how the rows were read.
        broken: left out because they cannot be read.
        first_broken: place of the first of these, and what is wrong with them.
    """

    rows: int = 0
    unlabelled: int = 0
    too_long: int = 0
    too_short: int = 0
    examples: int = 0
    repeated: int = field(default=0, compare=False)
    broken: int = 0
    first_broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def note(self, *texts: str) -> None:
        """Adds what to know about how the rows were read, each text once."""
        self.notes = tuple(dict.fromkeys((*self.notes, *texts)))

    def take_over(self, before: SourceCounts) -> None:
        """Adds what was left out when the examples were gathered before."""
        self.unlabelled += before.unlabelled
        self.too_short += before.too_short
        self.broken += before.broken
        self.first_broken += before.first_broken
        self.rows += before.unlabelled + before.too_short + before.broken


@dataclass(frozen=True)
class DataOptions:
    """Columns, split and limits with which a task's data is read.

    Args:
        columns: columns by role, where they are called otherwise than in the layouts that the task knows.
        split: split of a data set; None is the split of the task.
        limit: read only the first examples.
        target: the translations, where they are a text file of their own.
        offline: never ask the hub.
        min_words: leave out examples whose texts have fewer words together (`words_of`); before the limit.
        labels: the task's classes in the order of the outputs of the `model`, or of the numbers of the `data`, where
            names do not say it or are wrong; of a task whose classes the data names, all that the `data` may have.
        skip_broken: leave out rows that cannot be read, as many as `BrokenRows` allows.
        bleu_tokenizer: name of sacreBLEU's tokenizer; None is that of the target language.
        chat: model whose chat template writes conversations as text.
    """

    columns: dict[str, str] = field(default_factory=dict)
    split: str | None = None
    limit: int | None = None
    target: str | Path | None = None
    offline: bool = False
    min_words: int = 0
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skip_broken: bool = False
    bleu_tokenizer: BleuTokenizer | None = None
    chat: str | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise OptionError(f"--limit {self.limit} is not a positive number.", "Leave it out to read everything.")


@dataclass(frozen=True)
class RowExamples:
    """Examples from rows.

    Args:
        rows: rows of a file or a data set.
        reader: makes examples of the rows.
        layouts: columns of known layouts, in the order of the reader's roles.
        options: columns that the user names, and limits.
        numbers: classes in the order of the data's numbers, where a user names them.
    """

    rows: RowSource
    reader: ExampleReader
    layouts: tuple[tuple[str, ...], ...] = ()
    options: DataOptions = field(default_factory=DataOptions)
    numbers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the file or data set that the rows come from."""
        return self.rows.name

    def read(self, counts: SourceCounts) -> Iterator[TaskExample]:
        """Reads the rows from the start.

        Raises:
            CorpusError: with the line: no example with a label at all, a missing column, an unknown label.
            OptionError: for a column of a role that there is not.
        """
        number, before = 0, replace(counts)
        broken = BrokenRows(self.name, file_of(self.rows), self.options.skip_broken)
        for example in self._examples(counts):
            counts.rows += 1
            if isinstance(example, CorpusError):
                broken.add(example)
            elif example is None:
                counts.unlabelled += 1
            elif self.options.min_words and words_of(example) < self.options.min_words:
                counts.too_short += 1
            else:
                yield example
                number += 1
                if number == self.options.limit:  # no further row is read
                    break
        rows, too_short = counts.rows - before.rows, counts.too_short - before.too_short
        broken.check(rows)
        counts.broken += broken.number
        counts.first_broken += tuple(broken.first)
        if not number:
            reason = f"none of its {counted(rows, 'row')} has a label and text" if rows else "it is empty"
            advice = "Choose another file, split or column."
            if too_short:
                reason = f"{counted(too_short, 'example')} with fewer than {self.options.min_words} words"
                advice = "Ask for shorter ones with --data-args min-words."
            raise CorpusError(f"no examples: {reason}.", advice, path=file_of(self.rows) or self.name)

    def _examples(self, counts: SourceCounts) -> Iterator[TaskExample | CorpusError | None]:
        reader, columns, seen = self.reader, dict[str, str](), Counter[str]()
        chat = template_of(self.options.chat, offline=self.options.offline)
        for row in self.rows:
            if isinstance(row, CorpusError):
                yield row
                continue
            for part in reader.parts(replace(row, chat=chat)):
                if not columns:
                    columns = dict(choose_columns(part, reader.roles, self.layouts, self.options.columns))
                    reader = self._with_names(reader, columns.get("label", ""), part, counts)
                if isinstance(reader, TextReader) and isinstance(labels := reader.labels, ClassLabels):
                    cell = part.cells.get(columns["label"])
                    if labels.order is None and labels.is_number(cell):
                        counts.note(
                            f"The classes of {self.name} are numbers without names; they are read as {labels.numbers}. "
                            "--labels data=NAME,NAME gives another order."
                        )
                    seen[str(cell).strip().removesuffix(".0")] += 1
                try:
                    yield reader.example(part, columns)
                except CorpusError as error:
                    yield error
        if seen.keys() == {"-1", "1"} and min(seen.values()) >= FEW_LABELS:
            # Data sets write -1 where there is no label; nothing but many of that and of 1 are two classes.
            raise CorpusError(
                "labels are -1 and 1, and -1 is what data sets write for no label.",
                "Write 0 and 1, or the names of the classes.",
                path=file_of(self.rows) or self.name,
            )

    def _with_names(self, reader: ExampleReader, column: str, first: TaskRow, counts: SourceCounts) -> ExampleReader:
        """Returns the reader with the names that the user, or else the data set, has for the numbers of classes.

        Raises:
            CorpusError: if the data set has other classes than the task.
        """
        names = self.rows.class_names(column) if isinstance(self.rows, HubRows) else ()
        if isinstance(reader, TextReader) and isinstance(reader.labels, OwnLabels):
            return replace(reader, labels=replace(reader.labels, numbers=names))
        if not isinstance(reader, TextReader) or not isinstance(reader.labels, ClassLabels):
            return reader
        named_order = None
        try:
            named_order = data_order(names, reader.classes)
        except ValueError as error:
            if not self.numbers:
                raise CorpusError(str(error), DATA_ADVICE, path=first.place) from error
        order = data_order(self.numbers, reader.classes) or named_order
        if named_order not in (None, order):
            counts.note(
                f"{self.name} calls its classes {', '.join(names)}; --labels says {', '.join(self.numbers)}, which "
                "is used."
            )
        return replace(reader, labels=replace(reader.labels, order=order))


@dataclass(frozen=True)
class ChainedExamples:
    """Sources one after the other.

    Args:
        parts: the sources, at least one.
        limit: read only the first examples of all together.
    """

    parts: tuple[RowExamples, ...]
    limit: int | None = None

    @property
    def name(self) -> str:
        """Names of all chained sources, joined by `+`."""
        return "+".join(self._names)

    @property
    def _names(self) -> list[str]:
        files = [file_of(part.rows) or part.name for part in self.parts]
        return distinct_names([part.name for part in self.parts], files)

    def read(self, counts: SourceCounts) -> Iterator[TaskExample]:
        """Reads all sources; ids begin with the name of the source, since each source may count its rows from 1."""
        left, numbers = self.limit, ",".join(self.parts[0].numbers)
        if numbers:
            counts.note(f"--labels data={numbers} is applied to each of {', '.join(self._names)}.")
        for part, name in zip(self.parts, self._names, strict=True):
            if left == 0:
                return
            for example in replace(part, options=replace(part.options, limit=left)).read(counts):
                yield replace(example, id=f"{name}:{example.id}")
                left = None if left is None else left - 1


@dataclass(frozen=True)
class MemoryExamples:
    """Examples that are in memory, or a part of a source.

    Args:
        examples: the examples in order.
        name: name in tables and reports.
        notes: what to know about how they were read.
    """

    examples: tuple[TaskExample, ...]
    name: str = "given"
    notes: tuple[str, ...] = ()

    def read(self, counts: SourceCounts) -> Iterator[TaskExample]:
        """Yields the examples in order, adding one to `counts.rows` for each."""
        counts.note(*self.notes)
        for example in self.examples:
            counts.rows += 1
            yield example


# Examples of a task, which can be read any number of times; `read` yields those with labels, in order, and its counts
# grow by all rows and by those without a label.
TaskSource: TypeAlias = RowExamples | ChainedExamples | MemoryExamples


def gather(source: TaskSource, counts: SourceCounts | None = None) -> MemoryExamples:
    """Reads all examples of a source into memory, for splitting and shuffling."""
    counts = counts or SourceCounts()
    return MemoryExamples(tuple(source.read(counts)), source.name, counts.notes)


def split(source: MemoryExamples, parts: Iterable[Iterable[int]]) -> list[MemoryExamples]:
    """Divides a source into parts by index, such as a part to rank on and one to evaluate on."""
    return [replace(source, examples=tuple(source.examples[i] for i in part)) for part in parts]


@dataclass
class DataSummary(SourceCounts):
    """The data of a task as `run.json` records it.

    Args:
        name: name of the source.
        sha256: over the content of all labelled examples in order, whatever file or ids they have.
    """

    name: str = ""
    sha256: str = ""

    @classmethod
    def of(cls, name: str, counts: SourceCounts, sha256: str) -> DataSummary:
        """Builds the summary from the counts of a source that was read."""
        return cls(name=name, sha256=sha256, **asdict(counts))


def fingerprint(examples: Iterable[TaskExample]) -> str:
    """Returns the SHA-256 hex digest of the examples' texts and labels or answers, in order and without their ids."""
    digest = hashlib.sha256()
    for example in examples:
        if isinstance(example, TextExample):
            content: list[Any] = [example.texts, example.label]
        else:
            content = [example.question, example.context, list(map(astuple, example.answers))]
        digest.update(f"{json.dumps(content, ensure_ascii=False)}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
