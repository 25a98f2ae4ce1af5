"""Opens a task and its examples from what a user writes: a name, files or data sets, and options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from transformers import PreTrainedModel

from headlens.attention.sites import find_sites, is_decoder_only
from headlens.corpora.sources import READERS, TREEBANKS, is_text
from headlens.corpora.table import list_names
from headlens.corpora.text import ONLY_ONCE, file_kind, is_no_file
from headlens.errors import CorpusError, InputError, OptionError, counted
from headlens.tasks.catalogue import QUOTED, TaskEntry, find_task
from headlens.tasks.class_names import named_classes, parse_labels
from headlens.tasks.classification import OwnClassification, SequenceClassification
from headlens.tasks.example_parsers import OwnLabels, TextReader, parse_columns
from headlens.tasks.example_sources import ChainedExamples, DataOptions, RowExamples, SourceCounts, TaskSource
from headlens.tasks.examples import TextExample
from headlens.tasks.row_readers import TABLES, FileRows, HubRows, LineRows, RowSource
from headlens.tasks.task import Task
from headlens.tasks.task_heads import task_of_head
from headlens.tasks.task_options import AUTO, DEFAULT_TASK, OWN_CLASSES, TaskData
from headlens.tasks.translation import Translation

MOST = 100  # classes of data of one's own
_FEW = 10  # so many classes may be in any data, more only where each has two examples on average
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
OwnSource = RowExamples | ChainedExamples
SOURCES = "Give a file .tsv, .csv, .jsonl or .json (for tasks of plain text also .txt; all also .gz), or hub:NAME."


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
        return cast("tuple[Task, RowExamples]", name_classes(task, source, options.labels))
    return task, source


def _rows(name: str, data: str | Path | None, options: DataOptions) -> tuple[Task, RowExamples]:
    """Opens a task and its examples as `open_task` does, but without the classes that only the data names."""
    entry = find_task(name, options.columns)
    model, numbers = (
        () if isinstance(entry.task, OwnClassification) else named_classes(options.labels.get(whose, ()), classes)
        for whose, classes in (("model", entry.task.labels), ("data", entry.reader.classes))
    )
    task = replace(entry.task, outputs=model) if isinstance(entry.task, SequenceClassification) else entry.task
    if isinstance(task, Translation):
        task = Translation.of_target(options.columns.get("target") or options.target, options.bleu_tokenizer)
    return task, RowExamples(open_rows(entry, data, options), entry.reader, entry.layouts, options, numbers)


def open_examples(
    data: TaskData, *, offline: bool = False, known: Sequence[str] = (), read_classes: bool = True
) -> tuple[Task, TaskSource]:
    """Opens a task and its examples as options name them; errors as in `open_task`.

    Several sources are read one after the other, each in a layout of its own; the limit is that of all together.

    Args:
        data: the task and its data.
        offline: never ask the hub.
        known: classes of a model or of training data, for a task whose classes the data names, see `name_classes`.
        read_classes: whether such data is read for its classes; without these it can be counted.
    """
    alike = {
        name: getattr(data, name) for name in ("limit", "target", "min_words", "skip_broken", "bleu_tokenizer", "chat")
    }
    labels = parse_labels(data.labels)
    options = DataOptions(columns_by_role(data), data.data_split, offline=offline, labels=labels, **alike)
    source: OwnSource
    if len(data.data) < 2:
        task, source = _rows(data.task, next(iter(data.data), None), options)
    else:
        opened = [_rows(data.task, spec, replace(options, limit=None)) for spec in data.data]
        task, source = opened[0][0], ChainedExamples(tuple(rows for _, rows in opened), options.limit)
    if read_classes and isinstance(task, OwnClassification):
        return name_classes(task, source, options.labels, known)
    return task, source


def suited_data(data: TaskData, model: PreTrainedModel, *, learns: bool = False, offline: bool = False) -> TaskData:
    """Returns the data with the task that fits a model and what is named of the data, where the task is `auto`.

    Without data it is what comes with headlens: `causal-lm` for decoders, else the paraphrases. Data with the columns
    of the latter is read as such, data with labels as classes; other data is for what the model's head is made for.

    Args:
        data: the task and its data.
        model: whose task is looked for.
        learns: whether it is to learn the task, which of translations is another than their loss.
        offline: never ask the hub.

    Raises:
        UnsupportedModelError: if that cannot be told, as the model's attention is hidden from headlens.
    """
    if data.task != AUTO:
        return data
    find_sites(model)
    usual = "causal-lm" if is_decoder_only(model) else DEFAULT_TASK
    if not data.data or (usual == DEFAULT_TASK and _can_be_read(replace(data, task=usual), offline=offline)):
        return replace(data, task=usual)
    named = {column.partition("=")[0].strip() for part in data.columns for column in part.split(",")}
    made_for = task_of_head(model)
    if made_for not in ("stsb", "swag", "squad") and (data.label is not None or "label" in named):
        made_for = OWN_CLASSES
    elif made_for is None:
        of_text = all(is_text(source) or file_kind(source) in TREEBANKS for source in data.data)
        made_for = "causal-lm" if usual != DEFAULT_TASK else "mlm" if of_text or len(data.text) == 1 else usual
    return replace(data, task="translation-loss" if made_for == "translation" and not learns else made_for)


def _can_be_read(data: TaskData, *, offline: bool) -> bool:
    """Whether the first example of data can be read as one of its task."""
    try:
        _, source = open_examples(replace(data, limit=1), offline=offline)
        return any(True for _ in source.read(SourceCounts()))
    except InputError:
        return False


@contextmanager
def tells_task(given: TaskData, task: str, model: PreTrainedModel) -> Iterator[None]:
    """Adds to errors in data which task it was read for, where data is given without one.

    Args:
        given: what the user names.
        task: the one that was chosen, see `suited_data`.
        model: for which it was.
    """
    try:
        yield
    except InputError as error:
        if given.task == AUTO and given.data:
            error.add_note(f"No --task is given: {task} was chosen for a {type(model).__name__} and this data.")
        raise


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
    shorthand = dict(zip(texts, data.text, strict=False)) | ({} if data.label is None else {"label": data.label})
    if twice := sorted(columns.keys() & shorthand.keys()):
        option = "--label" if twice[0] == "label" else "--text"
        raise OptionError(f"--columns {twice[0]}=… and {option} name the same column.", "Give one of them.")
    return columns | shorthand


def open_rows(entry: TaskEntry, data: str | Path | None, options: DataOptions) -> RowSource:
    """Opens the rows of a task's data, whether they have labels or not; arguments and errors as in `open_task`."""
    split = options.split or entry.split
    if options.target is not None:
        if "target" not in entry.reader.roles:
            raise OptionError(f"The task {entry.task.name} has no translations.", "Leave --target out.")
        if data is None:
            raise OptionError(
                f"{options.target} holds translations, but no source is given.", "Name the source with --data FILE."
            )
        return _lines(Path(data), Path(options.target))
    if data is None and entry.default is None:
        if entry.dataset is None:
            raise OptionError(f"--task {entry.task.name} needs data of your own.", "Name it with --data FILE.")
        return HubRows(entry.dataset, split, options.offline)
    if (spec := str(entry.default if data is None else data)).startswith("hub:"):
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
    if path.is_dir() or (kind in READERS and kind not in TABLES):
        return HubRows(spec, split, options.offline)
    # Plain text holds nothing but sentences, one a line.
    if entry.reader.roles == ("text",) and (kind not in TABLES or kind == ".txt"):
        return _lines(path)
    chosen = frozenset(options.columns.values())
    columns = chosen.union(*entry.layouts)
    columns |= {column.partition(".")[0] for column in columns}  # of translation.de: translation
    numbers = frozenset(filter(str.isdecimal, columns))
    return FileRows(path, entry.headerless, columns - numbers, chosen if chosen <= numbers else frozenset(), QUOTED)


def _lines(*paths: Path) -> LineRows:
    """Opens plain text; the lines of anything else are no sentences."""
    for path in paths:
        if not is_text(path):
            kind = file_kind(path)
            what = "a treebank, whose lines are words" if kind in TREEBANKS else f"a {kind} file"
            raise CorpusError(f"is {what}, not plain text.", "Save its sentences one a line, as .txt.", path=path)
    return LineRows(paths)


def name_classes(
    task: OwnClassification, source: OwnSource, labels: Mapping[str, Sequence[str]], known: Sequence[str] = ()
) -> tuple[OwnClassification, OwnSource]:
    """Returns the task with its classes, and the source with labels that are these.

    The classes are those that a user names; else those of the model, or of the training data, if they have all labels
    of the source; else the labels, sorted.

    Args:
        task: the task, without classes.
        source: the examples; they are read once for their labels.
        labels: classes that the user names, of the `model` in the order of its outputs, and of the `data`.
        known: classes of the model, or of the training data.

    Raises:
        OptionError: if the classes that the user names are fewer than two, or not those of the data.
        CorpusError: if the labels are one class, or not like classes; also as in `RowExamples.read`.
    """
    declared, classes = (tuple(labels.get(whose, ())) for whose in ("model", "data"))
    if classes and (len(classes) < 2 or len(set(classes)) < len(classes)):
        message = f"--labels data={','.join(classes)}: fewer than two different classes."
        raise OptionError(message, "Name each class once, two or more.")
    if not classes:
        seen = OwnLabels()
        examples = [e for e in _read_as(source, seen).read(SourceCounts()) if isinstance(e, TextExample)]
        names = list(seen.seen)  # also of examples that were left out
        occurring = {names[int(e.label)] for e in examples if e.label is not None}
        fitting = (tuple(given) for given in (declared, known) if occurring <= set(given))
        classes = next(fitting, ()) or _checked(occurring, len(examples), source.name)
    with_classes = replace(task, classes=classes, outputs=named_classes(declared, classes))
    return with_classes, _read_as(source, OwnLabels(classes))


def _read_as(source: OwnSource, labels: OwnLabels) -> OwnSource:
    parts = source.parts if isinstance(source, ChainedExamples) else (source,)
    read = tuple(replace(part, reader=TextReader(part.reader.roles[:-1], labels)) for part in parts)
    return replace(source, parts=read) if isinstance(source, ChainedExamples) else read[0]


def _checked(occurring: set[str], examples: int, name: str) -> tuple[str, ...]:
    """Returns labels as classes: in the order of their numbers where all are numbers, else of the alphabet."""
    classes = sorted(occurring, key=float) if all(map(_NUMBER.fullmatch, occurring)) else sorted(occurring)
    message, advice = "", "Name the column of the classes with --label, or all classes with --labels data=NAME,NAME."
    if len(classes) == 1:
        message = f"all its labels are {list_names(classes)}; a task needs two classes."
    elif len(classes) > min(MOST, max(_FEW, examples // 2)):
        message = (
            f"{examples} examples have {len(classes)} labels ({list_names(classes[:3])}, …): these look like scores or "
            "texts, not like classes."
        )
    elif len(alike := [c for c in classes if sum(c.casefold() == other.casefold() for other in occurring) > 1]) > 0:
        message, advice = f"its labels {list_names(alike)} differ only in case.", "Spell each class in one way."
    if message:
        raise CorpusError(message, advice, path=name)
    return tuple(classes)
