"""Opens a task and its examples from what a user writes: a name, files or data sets, and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from headlens.corpora.hub import READERS
from headlens.corpora.text import ONLY_ONCE, file_kind, is_no_file
from headlens.errors import CorpusError, OptionError
from headlens.options import BleuTokenizer
from headlens.tasks.catalogue import QUOTED, TaskEntry, find_task
from headlens.tasks.class_names import parse_labels, told_classes
from headlens.tasks.classification import SequenceClassification
from headlens.tasks.example_parsers import parse_columns
from headlens.tasks.example_sources import ChainedExamples, RowExamples, TaskSource
from headlens.tasks.row_readers import COMMAS, JSON, LINES, TABS, FileRows, HubRows, LineRows, RowSource
from headlens.tasks.task import Task
from headlens.tasks.task_options import DEFAULT_TASK, TaskData
from headlens.tasks.translation import Translation

SOURCES = "Give a file .tsv, .csv, .jsonl or .json (also .gz), or hub:NAME."


@dataclass(frozen=True)
class DataOptions:
    """Columns, split and limits with which a task's data is read.

    Args:
        columns: columns by role, where they are called otherwise than in the layouts that the task knows.
        split: split of a data set; None is the split of the task.
        limit: read only the first examples.
        target: the translations, where they are a text file of their own.
        offline: never ask the hub.
        min_words: leave out examples whose texts have fewer words together; before the limit.
        labels: the task's classes in the order of the outputs of the `model`, or of the numbers of the `data`, where
            names do not say it or are wrong.
        skip_broken: leave out rows that cannot be read, as far as `RowExamples` does.
        bleu_tokenizer: name of sacreBLEU's tokenizer; None is that of the target language.
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


def open_task(
    name: str = DEFAULT_TASK, data: str | Path | None = None, options: DataOptions | None = None
) -> tuple[Task, RowExamples]:
    """Opens a task and its examples.

    Args:
        name: name of the task, see `catalogue.CATALOGUE`.
        data: a file, or `hub:NAME[:CONFIG]`; None is the file that comes with headlens, for tasks that have one, or
            else the task's data set on the hub.
        options: columns, split and limits.

    Raises:
        OptionError: no such task; options that cannot be meant.
        CorpusError: no such file, or its kind is unknown.
    """
    entry, options = find_task(name), options or DataOptions()
    model, numbers = (
        told_classes(options.labels.get(whose, ()), classes)
        for whose, classes in (("model", entry.task.labels), ("data", entry.reader.classes))
    )
    task = replace(entry.task, outputs=model) if isinstance(entry.task, SequenceClassification) else entry.task
    if isinstance(task, Translation):
        task = Translation.of_target(options.columns.get("target") or options.target, options.bleu_tokenizer)
    return task, RowExamples(
        _open(entry, data, options),
        entry.reader,
        entry.layouts,
        options.columns,
        options.limit,
        options.min_words,
        numbers,
        options.skip_broken,
    )


def open_examples(data: TaskData, *, offline: bool = False) -> tuple[Task, TaskSource]:
    """Opens a task and its examples as options name them; errors as in `open_task`.

    Several sources are read one after the other, each in a layout of its own; the limit is that of all together.
    """
    columns = parse_columns(",".join(data.columns)) if data.columns else {}
    options = DataOptions(
        columns,
        data.data_split,
        data.limit,
        data.target,
        offline,
        data.min_words,
        parse_labels(data.labels),
        data.skip_broken,
        data.bleu_tokenizer,
    )
    if len(data.data) < 2:
        return open_task(data.task, data.data[0] if data.data else None, options)
    opened = [open_task(data.task, source, replace(options, limit=None)) for source in data.data]
    return opened[0][0], ChainedExamples(tuple(source for _, source in opened), options.limit)


def _open(entry: TaskEntry, data: str | Path | None, options: DataOptions) -> RowSource:
    split = options.split or entry.split
    if options.target is not None:
        if "target" not in entry.reader.roles:
            raise OptionError(f"The task {entry.task.name} has no translations.", "Leave --target out.")
        if data is None:
            raise OptionError(f"{options.target} is translations of what?", "Name the source with --data FILE.")
        return LineRows((Path(data), Path(options.target)))
    if data is None and entry.default is None:
        assert entry.dataset is not None
        return HubRows(entry.dataset, split, options.offline)
    spec = str(entry.default if data is None else data)
    if spec.startswith("hub:"):
        if not spec.removeprefix("hub:").strip(":"):
            raise OptionError("hub: names no data set.", "Write hub:NAME, such as hub:nyu-mll/glue:sst2.")
        return HubRows(spec.removeprefix("hub:"), split, options.offline)
    return _local(entry, spec, split, options)


def _local(entry: TaskEntry, spec: str, split: str, options: DataOptions) -> RowSource:
    path = Path(spec)
    if is_no_file(path):
        raise CorpusError("is a pipe or a device, not a file.", ONLY_ONCE, path=spec)
    if not path.exists():
        raise CorpusError("no such file.", SOURCES, path=spec)
    kind = file_kind(spec)
    tables = (*TABS, *COMMAS, *LINES, *JSON)
    if path.is_dir() or (kind in READERS and kind not in tables):
        return HubRows(spec, split, options.offline)
    # Plain text holds nothing but sentences, one a line.
    if entry.reader.roles == ("text",) and (kind not in tables or kind == ".txt"):
        return LineRows((path,))
    named = frozenset(options.columns.values())
    columns = named.union(*entry.layouts)
    columns |= {column.partition(".")[0] for column in columns}  # of translation.de: translation
    numbers = frozenset(filter(str.isdecimal, columns))
    return FileRows(path, entry.headerless, columns - numbers, named if named <= numbers else frozenset(), QUOTED)
