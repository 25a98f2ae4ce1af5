"""Names of tasks, and the options that name a task and its examples; imports neither torch nor pandas."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from headlens import shared_options
from headlens.errors import OptionError
from headlens.option_values import names
from headlens.options import CORPUS, TASK, BleuTokenizer, Checked, option

Layout = tuple[str, ...]
GLUE = "nyu-mll/glue"
_SENTENCE: tuple[Layout, ...] = (("sentence", "label"),)
_PAIR: Layout = ("sentence1", "sentence2", "label")
_NLI: tuple[Layout, ...] = (
    ("premise", "hypothesis", "label"),
    ("sentence1", "sentence2", "gold_label"),
    ("prem", "hyp", "label"),  # TaxiNLI
    ("Premise", "Hypothesis", "Label"),  # ConjNLI
    _PAIR,
)
_QUESTIONS: tuple[Layout, ...] = (("question1", "question2", "label"), ("question1", "question2", "is_duplicate"))
_THREE = ("entailment", "neutral", "contradiction")
_ENTAILED = ("entailment", "not_entailment")


@dataclass(frozen=True)
class ClassTask:
    """A task of GLUE's kind: sentences or pairs of them, each of a class. A new one is one entry of `CLASS_TASKS`.

    Args:
        name: name of the task, and of its configuration of GLUE.
        classes: names of the classes, in the order of their numbers.
        layouts: columns of the data sets: of the texts, then of the label.
        metrics: the metrics, the main one first.
        dataset: name on the hub, with its configuration; None for GLUE's.
        split: the labelled part that a model was not trained on.
        headerless: columns of the original files, where these have no header.
        submission: what GLUE calls the file with the predictions of its test set, without its ending; None where it
            takes none.
        submits_numbers: whether that file has the numbers of classes, and not their names.
    """

    name: str
    classes: tuple[str, ...]
    layouts: tuple[Layout, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    dataset: str | None = None
    split: str = "validation"
    headerless: Layout = ()
    submission: str | None = None
    submits_numbers: bool = False


CLASS_TASKS = (
    ClassTask("sst2", ("negative", "positive"), _SENTENCE, submission="SST-2", submits_numbers=True),
    ClassTask(
        "cola",
        ("unacceptable", "acceptable"),
        _SENTENCE,
        ("matthews", "accuracy"),
        headerless=("source", "label", "star", "sentence"),
        submission="CoLA",
        submits_numbers=True,
    ),
    ClassTask(
        "mrpc",
        ("not_equivalent", "equivalent"),
        (_PAIR, ("#1 String", "#2 String", "Quality")),
        ("f1", "accuracy"),
        submission="MRPC",
        submits_numbers=True,
    ),
    ClassTask(
        "qqp",
        ("not_duplicate", "duplicate"),
        _QUESTIONS,
        ("f1", "accuracy"),
        submission="QQP",
        submits_numbers=True,
    ),
    ClassTask("mnli", _THREE, _NLI, split="validation_matched", submission="MNLI-m"),
    ClassTask("mnli-mm", _THREE, _NLI, dataset=f"{GLUE}:mnli", split="validation_mismatched", submission="MNLI-mm"),
    ClassTask("qnli", _ENTAILED, (("question", "sentence", "label"),), submission="QNLI"),
    ClassTask("rte", _ENTAILED, (_PAIR,), submission="RTE"),
    ClassTask("snli", _THREE, _NLI, dataset="stanfordnlp/snli"),
)
OWN_CLASSES = "classification"  # of data whose classes no task here has
# Tasks of other kinds, which headlens.tasks.catalogue describes; it takes seconds to import.
ON_TEXT = ("mlm", "causal-lm", "translation", "translation-loss")
_GLUE = tuple(task.name for task in CLASS_TASKS)
_OF_LANGUAGE_MODELS = ("minimal-pairs", "cloze", "logit-difference")
_ON_EXAMPLES = (
    *(OWN_CLASSES, *_GLUE, "stsb", "squad", "squad2", "swag", "similarity", "paraphrase"),
    *_OF_LANGUAGE_MODELS,
)
AUTO = "auto"  # what fits the model and its data; without data causal-lm for decoders, else the bundled paraphrases
TASK_NAMES = (AUTO, *ON_TEXT, *_ON_EXAMPLES)
CHOICES = ("swag", "paraphrase", "minimal-pairs", "cloze")  # tasks that choose among candidates
DEFAULT_TASK = "paraphrase"


WRITTEN = ("translation", "squad", "squad2")  # tasks whose answers are texts
LENGTH_TELLS = ("minimal-pairs", "cloze")  # those of them in which sums over tokens decide


def guess_text(*, among_candidates: bool, length: float = 0) -> str:
    """What guesses without reading an example are: the best constant class, or a choice among candidates.

    Args:
        among_candidates: whether the task chooses among candidates.
        length: below 0 if always choosing the candidate of fewer tokens is right most often, above 0 if that of more;
            NaN where it is one or the other; 0 where lengths say nothing.
    """
    if not among_candidates:
        return "Always giving the most frequent answer"
    if not length:
        return "Choosing at random"
    if math.isnan(length):
        return "Choosing at random or by length"
    return f"Always choosing the candidate of {'more' if length > 0 else 'fewer'} tokens"


def task_name(given: object) -> str:
    """Returns the name of a task.

    Raises:
        ValueError: if there is no such task.
    """
    if (name := str(given)) not in TASK_NAMES:
        raise ValueError(f"{name!r} is not a task. Choose one of {', '.join(TASK_NAMES)}.")
    return name


# Metrics of tasks of which a lower value is better; of all others a higher one is.
LOWER_IS_BETTER = frozenset({"loss", "perplexity"})
LOGIT_DIFFERENCE = "logit_difference"
# Metrics without an upper end.
NO_UPPER_END = LOWER_IS_BETTER | {LOGIT_DIFFERENCE}
# Metrics of tasks that go to 100.
OF_A_HUNDRED = frozenset({"bleu", "chrf"})


FEW_EXAMPLES = 30  # below which nothing is concluded for a reader


def usual_margin(metric: str, baseline: float) -> float:
    """Returns the default of the smallest loss that matters.

    One point: .01 of what goes to 1, such as accuracy, F1, exact match and correlations, and 1 of what goes to 100
    (BLEU, chrF). Of losses, which have no upper end, 1 % of the baseline, and of perplexities what that makes of them,
    so that both decide alike; 0.1 of differences of logits, whose baseline may be near 0.

    Args:
        metric: of a task.
        baseline: its value with all heads.
    """
    if metric == "perplexity":
        return float(abs(baseline ** (1 / 100) - 1) * baseline)
    if metric in LOWER_IS_BETTER:
        return abs(baseline) / 100
    if metric == LOGIT_DIFFERENCE:
        return 0.1
    return 1.0 if metric in OF_A_HUNDRED else 0.01


@dataclass(frozen=True)
class TaskData(Checked):
    """A task by name, and its examples: files or data sets, their columns, split and limit."""

    task: str = option(
        AUTO,
        f"{', '.join(ON_TEXT)}, or a task with --data, such as sst2, squad or {OWN_CLASSES}; all of these: "
        f"{', '.join(_ON_EXAMPLES)}.",
        TASK,
        metavar="NAME",
        parse=task_name,
        shown="what fits model and data; without data and a task head, paraphrase",
    )
    data: tuple[str, ...] = option((), shared_options.EXAMPLE_SOURCES)
    columns: tuple[str, ...] = option((), shared_options.EXAMPLE_COLUMNS)
    data_split: str | None = option(None, shared_options.EXAMPLE_SPLIT)
    target: str | None = option(None, shared_options.TARGET_FILE)
    limit: int | None = option(None, shared_options.LIMIT)
    min_words: int = option(
        0,
        "Leave out examples whose texts together have fewer words.",
        CORPUS,
        metavar="N",
        at_least=0,
        group="data-args",
    )
    labels: tuple[str, ...] = option((), shared_options.CLASS_LABELS)
    skip_broken: bool = option(False, shared_options.SKIP_BROKEN)
    chat: str | None = option(None, shared_options.CHAT)
    bleu_tokenizer: BleuTokenizer | None = option(None, shared_options.BLEU_TOKENIZER)
    text: tuple[str, ...] = option(
        (),
        "Column of the text; for pairs, two columns separated by a comma. Short for --columns text=NAME.",
        TASK,
        metavar="NAMES",
        parse=names,
        shown="",
    )
    label: str | None = option(
        None, "Column of the class labels. Short for --columns label=NAME.", TASK, metavar="NAME", shown=""
    )

    def for_training(self) -> TaskData:
        """Returns the data for training: the split `train` of data sets, unless a split is named."""
        return replace(self, data_split=self.data_split or "train")

    def as_options(self, source: str) -> list[str]:
        """Returns words of another command line that reads held-out data alike, for a model trained on these.

        Such a model has names of its own for its classes, so that `--labels model=...` is not told again.

        Args:
            source: file or data set of the held-out data.
        """
        flags = [("--columns", ",".join(self.columns)), ("--text", ",".join(self.text)), ("--label", self.label)]
        flags += [("--labels", label) for label in self.labels if not label.startswith("model=")]
        typed = [word for flag, value in flags if value for word in (flag, value)]
        return ["--task", self.task, "--data", source, *typed, *["--data-args", "skip-broken"] * self.skip_broken]

    def held_out(self, source: str) -> TaskData:
        """Returns the options of held-out data: read alike, but all of it, and from the task's split of data sets.

        Args:
            source: file or data set of the held-out data.
        """
        return replace(self, data=(source,), data_split=None, limit=None)

    def of_same_classes(self, text: str, flag: str) -> TaskData:
        """Returns the options of held-out data of this task, or of another one whose classes are the same.

        Args:
            text: `SOURCE`, or `TASK=SOURCE`.
            flag: the option, for the message.

        Raises:
            OptionError: for a task with other classes.
        """
        name, equals, source = text.partition("=")
        if not equals or name not in TASK_NAMES:
            return self.held_out(text)
        classes = {task.name: task.classes for task in CLASS_TASKS}
        same = [other for other in classes if classes[other] == classes.get(self.task)]
        if name not in (self.task, *same):
            others = ", ".join(other for other in same if other != self.task) or "none"
            message = f"{flag} {text}: {name} does not have the classes of --task {self.task}."
            raise OptionError(message, f"Tasks with the same classes: {others}.")
        return replace(self.held_out(source), task=name)
