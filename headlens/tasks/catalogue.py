"""All tasks by name, and the layouts that their data sets come in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from headlens.errors import OptionError
from headlens.tasks.classification import Regression, SequenceClassification
from headlens.tasks.example_parsers import EndingReader, ExampleReader, QuestionReader, TextReader
from headlens.tasks.labels import ClassLabels, ScoreLabels
from headlens.tasks.masked import MaskedLM, TranslationLoss
from headlens.tasks.multiple_choice import MultipleChoice
from headlens.tasks.question_answering import QuestionAnswering
from headlens.tasks.sentence_similarity import ParaphraseChoice, SentenceSimilarity
from headlens.tasks.task import Task
from headlens.tasks.translation import Translation

PARAPHRASES = Path(__file__).parent / "data" / "paraphrases.tsv"
Layout = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A task and the layouts that its data sets come in.

    Args:
        task: with its usual parameters.
        reader: makes examples of rows.
        layouts: columns in the order of the reader's roles: of `datasets`, of the original files, of GLUE's.
        dataset: name on the hub, with its configuration.
        split: the labelled part that a model was not trained on.
        headerless: columns of the original files, where these have no header.
        default: a file that is used when no data is named; else it is the hub's data set.
    """

    task: Task
    reader: ExampleReader
    layouts: tuple[Layout, ...]
    dataset: str | None = None
    split: str = "validation"
    headerless: Layout = ()
    default: Path | None = None


GLUE = "nyu-mll/glue"
TWO: Layout = ("sentence1", "sentence2", "label")
SENTENCE: tuple[Layout, ...] = (("sentence", "label"),)
NLI: tuple[Layout, ...] = (
    ("premise", "hypothesis", "label"),
    ("sentence1", "sentence2", "gold_label"),
    ("prem", "hyp", "label"),  # TaxiNLI
    ("Premise", "Hypothesis", "Label"),  # ConjNLI
    TWO,
)
SCORES: tuple[Layout, ...] = (TWO, ("sentence1", "sentence2", "score"))
STS_FILE: Layout = ("genre", "file", "year", "number", "label", "sentence1", "sentence2")
PARALLEL: tuple[Layout, ...] = (("source", "target"), ("translation.de", "translation.en"), ("1", "2"))
THREE = ClassLabels(("entailment", "neutral", "contradiction"))
ENTAILED = ClassLabels(("entailment", "not_entailment"))
# The columns of TaxiNLI, whose cells pandas quoted.
QUOTED = frozenset({"prem", "hyp"})


def _classes(
    name: str, labels: ClassLabels, layouts: tuple[Layout, ...], scores: Layout = ("accuracy",), texts: int = 2
) -> Entry:
    """A task of GLUE's kind: sentences or pairs, each of a class."""
    reader = TextReader(("text", "second")[:texts], labels)
    return Entry(SequenceClassification(name, labels.names, scores), reader, layouts, f"{GLUE}:{name}")


COLA = _classes("cola", ClassLabels(("unacceptable", "acceptable")), SENTENCE, ("matthews", "accuracy"), 1)
SST2 = _classes("sst2", ClassLabels(("negative", "positive")), SENTENCE, texts=1)
MRPC = _classes(
    "mrpc",
    ClassLabels(("not_equivalent", "equivalent")),
    (TWO, ("#1 String", "#2 String", "Quality")),
    ("f1", "accuracy"),
)
QQP = _classes(
    "qqp",
    ClassLabels(("not_duplicate", "duplicate")),
    (("question1", "question2", "label"), ("question1", "question2", "is_duplicate")),
    ("f1", "accuracy"),
)
MNLI = replace(_classes("mnli", THREE, NLI), split="validation_matched")
MISMATCHED = replace(_classes("mnli-mm", THREE, NLI), dataset=MNLI.dataset, split="validation_mismatched")
QNLI = _classes("qnli", ENTAILED, (("question", "sentence", "label"),))
RTE = _classes("rte", ENTAILED, (TWO,))
SNLI = replace(_classes("snli", THREE, NLI), dataset="stanfordnlp/snli")
STSB = Entry(
    Regression("stsb"), TextReader(("text", "second"), ScoreLabels()), SCORES, f"{GLUE}:stsb", headerless=STS_FILE
)
SIMILARITY = replace(STSB, task=SentenceSimilarity())
SQUAD = Entry(QuestionAnswering(), QuestionReader(), (("question", "context", "answers"),), "rajpurkar/squad")
SQUAD2 = replace(SQUAD, task=QuestionAnswering("squad2", no_answer=True), dataset="rajpurkar/squad_v2")
SWAG = Entry(
    MultipleChoice(),
    EndingReader(ClassLabels(("0", "1", "2", "3"))),
    (("sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"),),
    "allenai/swag:regular",
)
MLM = Entry(
    MaskedLM(),
    TextReader(("text",)),
    (("text",), ("sentence",), ("1",)),
    "Salesforce/wikitext:wikitext-2-raw-v1",
    headerless=("1",),
)
TRANSLATION = Entry(Translation(), TextReader(("source", "target")), PARALLEL, "wmt/wmt16:de-en", headerless=("1", "2"))
PARAPHRASE = Entry(
    ParaphraseChoice(),
    TextReader(("text", "first", "second"), ClassLabels(("first", "second"))),
    (("text", "first", "second", "label"),),
    default=PARAPHRASES,
)

CATALOGUE: dict[str, Entry] = {
    entry.task.name: entry
    for entry in (
        PARAPHRASE,
        SIMILARITY,
        replace(COLA, headerless=("source", "label", "star", "sentence")),
        *(SST2, MRPC, QQP, MNLI, MISMATCHED, QNLI, RTE, SNLI, STSB, SQUAD, SQUAD2, SWAG, MLM, TRANSLATION),
        replace(TRANSLATION, task=TranslationLoss()),
    )
}


def find_task(name: str) -> Entry:
    """The task of a name.

    Raises:
        OptionError: if there is none.
    """
    if name not in CATALOGUE:
        raise OptionError(f"There is no task {name!r}.", f"Choose one with --task: {', '.join(CATALOGUE)}.")
    return CATALOGUE[name]
