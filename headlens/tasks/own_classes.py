"""The classes of data of one's own: whatever names its labels have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headlens.corpora.table import list_names
from headlens.errors import CorpusError, OptionError
from headlens.tasks.class_names import told_classes
from headlens.tasks.classification import OwnClassification
from headlens.tasks.example_parsers import OwnLabels, TextReader
from headlens.tasks.example_sources import ChainedExamples, RowExamples, SourceCounts
from headlens.tasks.examples import TextExample

MOST = 100
_FEW = 10  # so many classes may be in any data, more only where each has two examples on average
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
OwnSource = RowExamples | ChainedExamples


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
    told, classes = tuple(labels.get("model", ())), tuple(labels.get("data", ()))
    if classes and (len(classes) < 2 or len(set(classes)) < len(classes)):
        raise OptionError(
            f"--labels data={','.join(classes)}: fewer than two different classes.",
            "Name each class once, two or more.",
        )
    if not classes:
        found, examples = _labels(source)
        fitting = (tuple(names) for names in (told, known) if found <= set(names))
        classes = next(fitting, ()) or _checked(found, examples, source.name)
    named = replace(task, classes=classes, outputs=told_classes(told, classes))
    return named, _read_as(source, OwnLabels(classes))


def _labels(source: OwnSource) -> tuple[set[str], int]:
    """Returns the labels of a source, and the number of its examples."""
    labels = OwnLabels()
    examples = list(_read_as(source, labels).read(SourceCounts()))
    names = list(labels.seen)
    return {names[int(e.label)] for e in examples if isinstance(e, TextExample) and e.label is not None}, len(examples)


def _read_as(source: OwnSource, labels: OwnLabels) -> OwnSource:
    if isinstance(source, ChainedExamples):
        return replace(source, parts=tuple(_row_examples(part, labels) for part in source.parts))
    return _row_examples(source, labels)


def _row_examples(part: RowExamples, labels: OwnLabels) -> RowExamples:
    assert isinstance(part.reader, TextReader)
    return replace(part, reader=replace(part.reader, labels=labels))


def _checked(found: set[str], examples: int, name: str) -> tuple[str, ...]:
    """Returns labels as classes: in the order of their numbers where all are numbers, else of the alphabet."""
    classes = sorted(found, key=float) if all(map(_NUMBER.fullmatch, found)) else sorted(found)
    message, advice = "", "Name the column of the classes with --label, or all classes with --labels data=NAME,NAME."
    if len(classes) == 1:
        message = f"all its labels are {list_names(classes)}; a task needs two classes."
    elif len(classes) > min(MOST, max(_FEW, examples // 2)):
        message = (
            f"{examples} examples have {len(classes)} labels ({list_names(classes[:3])}, …): these look like scores or "
            "texts, not like classes."
        )
    elif len(alike := [c for c in classes if sum(c.casefold() == other.casefold() for other in found) > 1]) > 0:
        message, advice = f"its labels {list_names(alike)} differ only in case.", "Spell each class in one way."
    if message:
        raise CorpusError(message, advice, path=name)
    return tuple(classes)
