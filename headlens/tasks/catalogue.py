"""All tasks by name, and the layouts of their data sets; a new task of GLUE's kind is one entry of `CLASS_TASKS`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from headlens.errors import OptionError
from headlens.tasks.classification import (
    MultipleChoice,
    OwnClassification,
    ParaphraseChoice,
    Regression,
    SentenceSimilarity,
    SequenceClassification,
)
from headlens.tasks.example_parsers import (
    ClassLabels,
    ContrastReader,
    EndingReader,
    ExampleReader,
    OwnLabels,
    QuestionReader,
    ScoreLabels,
    TextReader,
)
from headlens.tasks.language_modeling import CausalLM, Cloze, LogitDifference, MinimalPairs
from headlens.tasks.masked import MaskedLM, TranslationLoss
from headlens.tasks.question_answering import QuestionAnswering
from headlens.tasks.task import Task
from headlens.tasks.task_options import AUTO, CLASS_TASKS, DEFAULT_TASK, GLUE, OWN_CLASSES, ClassTask, Layout
from headlens.tasks.translation import Translation

DATA = Path(__file__).parent / "data"
PARAPHRASES = DATA / "paraphrases.tsv"


@dataclass(frozen=True)
class TaskEntry:
    """A task and the layouts that its data sets come in.

    Args:
        task: the task with its usual parameters.
        reader: makes examples of rows.
        layouts: columns in the order of the reader's roles: of `datasets`, of the original files, of GLUE's.
        dataset: name on the hub, with its configuration; None for a task without data of its own.
        split: the labelled part that a model was not trained on.
        headerless: columns of the original files, where these have no header.
        default: a file that is used when no data is named; without it the data set on the hub is.
    """

    task: Task
    reader: ExampleReader
    layouts: tuple[Layout, ...]
    dataset: str | None = None
    split: str = "validation"
    headerless: Layout = ()
    default: Path | None = None


TWO: Layout = ("sentence1", "sentence2", "label")
SCORES: tuple[Layout, ...] = (TWO, ("sentence1", "sentence2", "score"))
STS_FILE: Layout = ("genre", "file", "year", "number", "label", "sentence1", "sentence2")
SENTENCES: tuple[Layout, ...] = (("text",), ("sentence",), ("messages",), ("1",))
PARALLEL: tuple[Layout, ...] = (("source", "target"), ("translation.de", "translation.en"), ("1", "2"))
# SWAG, SWAG with its endings in one list, and HellaSwag.
ENDINGS: tuple[Layout, ...] = (
    ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"),
    ("sent1", "sent2", *4 * ("endings",), "label"),
    ("ctx_a", "ctx_b", *4 * ("endings",), "label"),
)
# The columns of TaxiNLI, whose cells pandas quoted.
QUOTED = frozenset({"prem", "hyp"})


def _classes(task: ClassTask) -> TaskEntry:
    """Builds the entry of a task of GLUE's kind."""
    roles = ("text", "second")[: len(task.layouts[0]) - 1]  # of sentences or of pairs
    reader = TextReader(roles, ClassLabels(task.classes))
    head = SequenceClassification(task.name, task.classes, task.metrics)
    return TaskEntry(head, reader, task.layouts, task.dataset or f"{GLUE}:{task.name}", task.split, task.headerless)


STSB = TaskEntry(
    Regression("stsb"), TextReader(("text", "second"), ScoreLabels()), SCORES, f"{GLUE}:stsb", headerless=STS_FILE
)
SQUAD = TaskEntry(QuestionAnswering(), QuestionReader(), (("question", "context", "answers"),), "rajpurkar/squad")
TRANSLATION = TaskEntry(
    Translation(), TextReader(("source", "target")), PARALLEL, "wmt/wmt16:de-en", headerless=("1", "2")
)
ENTRIES = (
    TaskEntry(
        ParaphraseChoice(),
        TextReader(("text", "first", "second"), ClassLabels(("first", "second"))),
        (("text", "first", "second", "label"),),
        default=PARAPHRASES,
    ),
    replace(STSB, task=SentenceSimilarity()),
    TaskEntry(OwnClassification(), TextReader(("text",), OwnLabels()), (("text", "label"), ("sentence", "label"))),
    *map(_classes, CLASS_TASKS),
    STSB,
    SQUAD,
    TaskEntry(
        QuestionAnswering("squad2", no_answer=True), QuestionReader(no_answer=True), SQUAD.layouts, "rajpurkar/squad_v2"
    ),
    TaskEntry(MultipleChoice(), EndingReader(), ENDINGS, "allenai/swag:regular"),
    TaskEntry(
        MinimalPairs(),
        ContrastReader(("good", "bad")),
        (("good", "bad"), ("sentence_good", "sentence_bad"), ("sen", "wrong_sen")),  # ours, BLiMP, MultiBLiMP
        default=DATA / "minimal_pairs.tsv",
    ),
    TaskEntry(
        Cloze(),
        ContrastReader(("context", "good", "bad")),
        (("context", "good", "bad"), ("prompt", "right", "wrong")),
        default=DATA / "name_copying.tsv",
    ),
    TaskEntry(
        LogitDifference(),
        TextReader(("prompt", "right", "wrong")),
        (("prompt", "right", "wrong"), ("context", "good", "bad")),
        default=DATA / "name_copying.tsv",
    ),
    TaskEntry(CausalLM(), TextReader(("text",)), SENTENCES, default=DATA / "sentences.txt"),
    TaskEntry(MaskedLM(), TextReader(("text",)), SENTENCES, "Salesforce/wikitext:wikitext-2-raw-v1", headerless=("1",)),
    TRANSLATION,
    replace(TRANSLATION, task=TranslationLoss()),
)
CATALOGUE: dict[str, TaskEntry] = {entry.task.name: entry for entry in ENTRIES}


def find_task(name: str, columns: Collection[str] = ()) -> TaskEntry:
    """Returns the entry of a task; that of data of one's own is of pairs where a column is that of the `second` text.

    Args:
        name: name of the task.
        columns: roles that the user names columns for.

    `auto`, before a model says what it is, is the default of encoders.

    Raises:
        OptionError: if there is none.
    """
    if (entry := CATALOGUE.get(DEFAULT_TASK if name == AUTO else name)) is None:
        raise OptionError(f"Unknown task {name!r}.", f"Choose one with --task: {', '.join(CATALOGUE)}.")
    of_pairs = name == OWN_CLASSES and "second" in columns
    return replace(entry, reader=TextReader(("text", "second"), OwnLabels()), layouts=(TWO,)) if of_pairs else entry
