"""The options of training sets: what is learned, from which data, and on what it is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headlens import shared_options
from headlens.corpora.corpus_options import CorpusOptions
from headlens.errors import OptionError
from headlens.options import (
    DEMO,
    TRAINING,
    BleuTokenizer,
    Checked,
    DeclaredOption,
    Option,
    declared_options,
    option,
)
from headlens.tasks.task_options import AUTO, DEFAULT_TASK, TaskData

TextTask = Literal["mlm", "causal-lm", "translation"]
TEXT: tuple[TextTask, ...] = ("mlm", "causal-lm", "translation")
# Options of the examples of a task, which tasks of text do not look at.
_OF_EXAMPLES = ("data", "columns", "text", "label", "min_words", "labels", "dev_data")
_DEV_SHARE = Option(
    "Share of the text or data that is held out when --dev and --dev-data are not given.",
    TRAINING,
    group="data-args",
    at_least=0,
    at_most=0.9,
)
BLOCK = 128  # tokens of a block of text by default
# What names the same: of text to learn from the first, of examples the second.
SAME_DATA = (("corpus", "data"), ("column", "text"), ("dev", "dev_data"))


def named_by_task(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values of options in which data is called as its task calls it, where nothing is named both ways.

    Args:
        task: its name.
        values: by name of option; several files or columns are a matter of examples alone and stay as they are.
    """
    named = dict(values)
    for pair in SAME_DATA:
        name, other = pair[task in TEXT], pair[task not in TEXT]
        # The corpus of a run that is resumed is named even where nobody did: the one that comes with headlens.
        if (value := values.get(name)) and (name, value) != ("corpus", DEMO):
            in_list = isinstance(value, list | tuple)
            if values.get(other) or (in_list and len(value) > 1):
                return dict(values)
            single = value[0] if in_list else value
            named[other] = (single,) if other in ("data", "text") else single
            del named[name]
    return named


@dataclass(frozen=True)
class TextOptions(Checked):
    """What of a text is learned: masked tokens (`mlm`), every token (`causal-lm`), or the target side (`translation`).

    `longest` counts the tokens of a block of text, or of a side of a pair; None is `BLOCK`, or what the model reads if
    that is less.

    Raises:
        OptionError: if a share is out of range, or the task has no halves.
    """

    task: TextTask = "mlm"
    vocabulary: int = option(8000, shared_options.VOCABULARY)
    longest: int | None = option(None, shared_options.LONGEST)
    mask_share: float = option(0.15, shared_options.MASKED_SHARE)
    label_smoothing: float = option(0.1, shared_options.LABEL_SMOOTHING)
    dev_share: float = option(0.05, _DEV_SHARE)
    next_sentence: bool = option(False, shared_options.NEXT_SENTENCE)
    bleu_tokenizer: BleuTokenizer | None = option(None, shared_options.BLEU_TOKENIZER)


def refuse_others(
    task: str, given: Mapping[str, Any], others: tuple[str, ...], instead: str, declared: Mapping[str, DeclaredOption]
) -> None:
    """Refuse options that a task would not look at.

    Args:
        task: its name.
        given: what is given, by name of option.
        others: the names of these options.
        instead: what names the data of the task.
        declared: the options of the command.

    Raises:
        OptionError: naming the first of them, or if the task is none to train on.
    """
    if task == "translation-loss":
        raise OptionError(
            "--task translation-loss can only be evaluated, not trained on.", "Train with --task translation."
        )
    for name in others:
        if given.get(name):
            labelled = " For examples with labels, give --task classification." * (task in TEXT and "label" in others)
            advice = f"Name its data with {instead}.{labelled}"
            raise OptionError(f"{declared[name].flag} is not for --task {task}.", advice)


@dataclass(frozen=True)
class TrainingSetOptions(Checked):
    """A task and where its data comes from.

    The corpus is that of `mlm` and `translation`, whose translations are the `target` of `data`. Where no task is
    named, either may name the data, see `of_task`. Where nothing is named to measure on, a part is held out:
    `dev_share`, by default half of the bundled task and else a tenth. `longest` is by default what the model reads, and
    128 tokens of text.

    Raises:
        OptionError: if something is named that the task would not look at.
    """

    data: TaskData = field(default_factory=TaskData)
    dev_data: str | None = option(None, shared_options.HELD_OUT_EXAMPLES)
    corpus: str = option(DEMO, shared_options.CORPUS_SOURCE)
    column: str | None = option(None, shared_options.SENTENCE_COLUMN)
    target_column: str | None = option(None, shared_options.TARGET_COLUMN)
    split: str = option("train", shared_options.SPLIT)
    dev: str | None = option(None, shared_options.HELD_OUT_TEXT)
    dev_target: str | None = option(None, shared_options.HELD_OUT_TARGET)
    dev_share: float | None = option(
        None,
        "Share that is held out when --dev and --dev-data are not given.",
        TRAINING,
        shown="0.1; for the bundled task 0.5",
        above=0,
        at_most=0.9,
        group="data-args",
    )
    longest: int | None = option(None, shared_options.LONGEST)
    mask_share: float = option(0.15, shared_options.MASKED_SHARE)
    label_smoothing: float = option(0.1, shared_options.LABEL_SMOOTHING)
    next_sentence: bool = option(False, shared_options.NEXT_SENTENCE)

    def __post_init__(self) -> None:
        # First: what a task would not look at may lack what it goes with, which was renamed.
        if self.data.task != AUTO:  # else it is known with the model, see `of_task`
            self._refuse_others()
        super().__post_init__()

    def _refuse_others(self) -> None:
        task, data = self.data.task, self.data
        given = {**vars(self), **vars(data)}
        if task in TEXT:
            refuse_others(task, given, _OF_EXAMPLES, "--corpus", declared_options(TrainingSetOptions))
            from headlens.corpora.sources import refuse_unused

            refuse_unused(self.corpus_options(offline=False), self.corpus, data.target, self.dev)
        else:
            given["corpus"] = self.corpus != DEMO
            others = ("dev", "dev_target", "column", "target_column", "target", "corpus")
            refuse_others(task, given, others, "--data", declared_options(TrainingSetOptions))

    @property
    def named_data(self) -> TaskData:
        """The data, also where it is named as a text corpus is."""
        if self.corpus == DEMO or self.data.data:
            return self.data
        return replace(self.data, data=(self.corpus,), text=self.data.text or ((self.column,) if self.column else ()))

    def of_task(self, task: str) -> TrainingSetOptions:
        """Returns the options for a task that was not named: data is called as it calls it, whatever the user wrote.

        Args:
            task: the task that fits the model.

        Raises:
            OptionError: if something is named that the task would not look at.
        """
        corpus = None if self.corpus == DEMO else self.corpus
        given = {"corpus": corpus, "column": self.column, "dev": self.dev, "dev_data": self.dev_data}
        called = named_by_task(task, {**given, "data": self.data.data, "text": self.data.text})
        data = replace(self.data, task=task, data=called.pop("data", ()), text=called.pop("text", ()))
        corpus, column, dev, dev_data = (called.get(name) for name in ("corpus", "column", "dev", "dev_data"))
        return replace(self, data=data, corpus=corpus or DEMO, column=column, dev=dev, dev_data=dev_data)

    @property
    def embedded(self) -> bool:
        """Whether it is the task that comes with headlens, whose examples are few."""
        return self.data.task in (AUTO, DEFAULT_TASK) and not self.named_data.data

    @property
    def share(self) -> float:
        """Share of the examples that is held out: as given, half of the bundled task, else a tenth."""
        return (0.5 if self.embedded else 0.1) if self.dev_share is None else self.dev_share

    @property
    def training_data(self) -> TaskData:
        """The examples to learn from, of tasks that are not about text."""
        return self.data if self.embedded else self.data.for_training()

    def corpus_options(self, *, offline: bool) -> CorpusOptions:
        """Returns the options by which the text corpus of `mlm` and `translation` is read."""
        data = self.data
        return CorpusOptions(
            data.target, self.column, self.target_column, self.split, data.limit, data.skip_broken, offline, data.chat
        )
