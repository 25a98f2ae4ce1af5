"""Opens a task and its examples from what a user writes: a name, files or data sets, and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headlens.corpora.sources import READERS
from headlens.corpora.text import ONLY_ONCE, file_kind, is_no_file
from headlens.errors import CorpusError, OptionError, counted
from headlens.options import BleuTokenizer
from headlens.tasks.catalogue import QUOTED, TaskEntry, find_task
from headlens.tasks.class_names import parse_labels, told_classes
from headlens.tasks.classification import OwnClassification, SequenceClassification
from headlens.tasks.example_parsers import parse_columns
from headlens.tasks.example_sources import ChainedExamples, RowExamples, TaskSource
from headlens.tasks.own_classes import name_classes
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
            names do not say it or are wrong; of a task whose classes the data names, all that the `data` may have.
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
        OptionError: no such task; options that make no sense.
        CorpusError: no such file, or its kind is unknown; of classes that the data names also broken data.
    """
    options = options or DataOptions()
    task, source = _rows(name, data, options)
    if isinstance(task, OwnClassification):
        task, named = name_classes(task, source, options.labels)
        assert isinstance(named, RowExamples)
        return task, named
    return task, source


def _rows(name: str, data: str | Path | None, options: DataOptions) -> tuple[Task, RowExamples]:
    """Opens a task and its examples as `open_task` does, but without the classes that only the data names."""
    entry = find_task(name, options.columns)
    own = isinstance(entry.task, OwnClassification)
    model, numbers = (
        () if own else told_classes(options.labels.get(whose, ()), classes)
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


def open_examples(
    data: TaskData, *, offline: bool = False, known: Sequence[str] = (), named: bool = True
) -> tuple[Task, TaskSource]:
    """Opens a task and its examples as options name them; errors as in `open_task`.

    Several sources are read one after the other, each in a layout of its own; the limit is that of all together.

    Args:
        data: the task and its data.
        offline: never ask the hub.
        known: classes of a model or of training data, for a task whose classes the data names, see `name_classes`.
        named: whether such data is read for its classes; without these it can be counted.
    """
    options = DataOptions(
        columns_by_role(data),
        data.data_split,
        data.limit,
        data.target,
        offline,
        data.min_words,
        parse_labels(data.labels),
        data.skip_broken,
        data.bleu_tokenizer,
    )
    source: RowExamples | ChainedExamples
    if len(data.data) < 2:
        task, source = _rows(data.task, data.data[0] if data.data else None, options)
    else:
        opened = [_rows(data.task, spec, replace(options, limit=None)) for spec in data.data]
        task, source = opened[0][0], ChainedExamples(tuple(rows for _, rows in opened), options.limit)
    if named and isinstance(task, OwnClassification):
        return name_classes(task, source, options.labels, known)
    return task, source


def columns_by_role(data: TaskData) -> dict[str, str]:
    """Returns the columns that `--columns`, `--text` and `--label` name, by role.

    Raises:
        OptionError: for a column of a role that the task does not have, or that is named twice.
    """
    columns = parse_columns(",".join(data.columns)) if data.columns else {}
    roles = find_task(data.task, ("second",) if len(data.text) == 2 else columns).reader.roles
    texts = [role for role in roles if role not in ("label", "answers")]
    if data.text and len(data.text) != len(texts):
        given = counted(len(data.text), "column")
        message = f"--text names {given}, but --task {data.task} reads {', '.join(texts)}."
        raise OptionError(message, "Name one column for each, separated by commas.")
    if data.label is not None and "label" not in roles:
        raise OptionError(f"--label is not for --task {data.task}, which has no labels.", "Leave it out.")
    named = dict(zip(texts, data.text, strict=False)) | ({} if data.label is None else {"label": data.label})
    if twice := sorted(columns.keys() & named.keys()):
        option = "--label" if twice[0] == "label" else "--text"
        raise OptionError(f"--columns {twice[0]}=… and {option} name the same column.", "Give one of them.")
    return columns | named


def open_rows(
    name: str, source: str, columns: Mapping[str, str], split: str, *, offline: bool = False
) -> tuple[TaskEntry, RowSource]:
    """Opens the rows of a task's data, whether they have labels or not; errors as in `open_task`.

    Args:
        name: name of the task.
        source: a file, or `hub:NAME[:CONFIG]`.
        columns: columns that the user names, by role.
        split: split of a data set.
        offline: never ask the hub.
    """
    entry = find_task(name, columns)
    return entry, _open(entry, source, DataOptions(dict(columns), split, offline=offline))


def _open(entry: TaskEntry, data: str | Path | None, options: DataOptions) -> RowSource:
    split = options.split or entry.split
    if options.target is not None:
        if "target" not in entry.reader.roles:
            raise OptionError(f"The task {entry.task.name} has no translations.", "Leave --target out.")
        if data is None:
            raise OptionError(
                f"{options.target} holds translations, but no source is given.", "Name the source with --data FILE."
            )
        return LineRows((Path(data), Path(options.target)))
    if data is None and entry.default is None:
        if entry.dataset is None:
            raise OptionError(f"--task {entry.task.name} needs data of your own.", "Name it with --data FILE.")
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
