"""What a model is taught, as a command names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from headlens.analyses.notes import embedded_notes, left_out_notes
from headlens.analyses.training.contamination import seen_notes
from headlens.analyses.training.task_training import TaskRows, hold_out
from headlens.analyses.training.text_training import TextOptions, loaded_model
from headlens.analyses.training.training_set import TrainingSet
from headlens.corpora.corpus_summary import summarise
from headlens.corpora.held_out import split_corpus
from headlens.corpora.sentence import Corpus
from headlens.corpora.sources import DEMO as DEMO_CORPUS
from headlens.corpora.sources import CorpusOptions, open_corpus, refuse_unused
from headlens.errors import CorpusError, OptionError
from headlens.models.loading import LoadedModel
from headlens.runs.run import Run
from headlens.tasks.catalogue import DEFAULT_TASK
from headlens.tasks.data_option import TaskData
from headlens.tasks.data_summary import fingerprint
from headlens.tasks.example_sources import SourceCounts, gather
from headlens.tasks.task_heads import with_task_head

TEXT: tuple[Literal["mlm"], Literal["translation"]] = ("mlm", "translation")


@dataclass(frozen=True)
class OpenedTraining:
    """A model and what it is taught.

    Args:
        loaded: the model, with the head that the task needs.
        lesson: what it is taught.
        notes: what to know about the data.
        sha256: over the content of what is learned from.
        fresh: parts of the model that began random.
    """

    loaded: LoadedModel
    lesson: TrainingSet
    notes: list[str] = field(default_factory=list)
    sha256: str = ""
    fresh: tuple[str, ...] = ()

    @property
    def untrained(self) -> list[str]:
        """What to know where a model should have learned the task before."""
        parts = ", ".join(self.fresh)
        return [f"The model was not trained for this task: {parts} began random. Train it first."] if parts else []


@dataclass(frozen=True)
class TrainingSetOptions:
    """A task and where its data comes from; fields are called as the options are.

    Args:
        data: the task, and the examples of tasks that are not about text.
        dev_data: examples to measure on; None holds out a part of the data.
        corpus: text of `mlm` and `translation`, whose translations are the `target` of `data`.
        column, target_column, split: how it is read.
        dev, dev_target: text to measure on; None holds out a part of the corpus.
        dev_share: the part that is held out; None for half of the embedded task, else a tenth.
        longest: most tokens of an example; None for what the model reads, 128 of text.
        mask_share: of `mlm`.
        label_smoothing: of `translation`.
        next_sentence: of `mlm`: whether the second half of a block follows the first is learned, too.

    Raises:
        OptionError: if something is named that the task would not look at.
    """

    data: TaskData = field(default_factory=TaskData)
    dev_data: str | None = None
    corpus: str = DEMO_CORPUS
    column: str | None = None
    target_column: str | None = None
    split: str = "train"
    dev: str | None = None
    dev_target: str | None = None
    dev_share: float | None = None
    longest: int | None = None
    mask_share: float = 0.15
    label_smoothing: float = 0.1
    next_sentence: bool = False

    def __post_init__(self) -> None:
        task, data = self.data.task, self.data
        if task == "translation-loss":
            raise OptionError("--task translation-loss is only measured.", "Train with --task translation.")
        if not 0 < self.share <= 0.9:
            raise OptionError(f"--dev-share {self.share} is not above 0 and at most 0.9.", "0.1 suits most.")
        examples = {"data": data.data, "columns": data.columns, "min-words": data.min_words, "dev-data": self.dev_data}
        texts: dict[str, object] = {"dev": self.dev, "dev-target": self.dev_target, "column": self.column}
        texts |= {"target-column": self.target_column, "target": data.target, "corpus": self.corpus != DEMO_CORPUS}
        if self.next_sentence and task != "mlm":
            raise OptionError(f"--next-sentence is not for --task {task}.", "It goes with --task mlm.")
        if task in TEXT:
            _refuse(task, examples, "--corpus")
            refuse_unused(self.corpus_options(offline=False), self.corpus, data.target, self.dev)
        else:
            _refuse(task, texts, "--data")
        if self.dev_target is not None and self.dev is None:
            raise OptionError("--dev-target names translations of --dev, which is not given.", "Give both or neither.")

    @property
    def embedded(self) -> bool:
        """Whether it is the task that comes with headlens, whose examples are few."""
        return self.data.task == DEFAULT_TASK and not self.data.data

    @property
    def share(self) -> float:
        """The part that is held out."""
        return self.dev_share or (0.5 if self.embedded else 0.1)

    @property
    def taught(self) -> TaskData:
        """The examples to learn from, of tasks that are not about text."""
        return self.data if self.embedded else self.data.taught()

    def corpus_options(self, *, offline: bool) -> CorpusOptions:
        """How the corpus of `mlm` and `translation` is read."""
        own = self.data
        return CorpusOptions(own.target, self.column, self.target_column, self.split, own.limit, offline)

    def open(self, run: Run, loaded: LoadedModel, seed: int, *, offline: bool) -> OpenedTraining:
        """The model with the head that the task needs, what it is taught, and what to know about both.

        Raises:
            InputError: whatever is wrong with the data.
        """
        how = self._text if self.data.task in TEXT else self._examples
        opened = how(run, loaded, seed, offline=offline)
        if opened.lesson.held is None:
            raise CorpusError(
                "too few examples to hold some out.", "Name some with --dev-data or --dev.", path=self._source
            )
        held = {"what is held out": fingerprint(opened.lesson.held.examples)}
        run.depend_on(loaded, {"the data": opened.sha256, **held})
        return opened

    @property
    def _source(self) -> str:
        return self.corpus if self.data.task in TEXT else "+".join(self.data.data) or self.data.task

    def _examples(self, run: Run, loaded: LoadedModel, seed: int, *, offline: bool) -> OpenedTraining:
        with run.reporter.status("reading data"):
            task, source = self.taught.open(offline=offline)
            counts = SourceCounts()
            given = gather(source, counts)
            if self.dev_data is None:
                train, held = hold_out(given, self.share)
            else:
                other = self.data.held_out(self.dev_data)
                train, held = given, gather(other.open(offline=offline)[1])
            headed = with_task_head(loaded, task, seed)
            loaded = replace(loaded, model=headed.model)
            lesson = TrainingSet.of_task(loaded, task, train, held, self.longest, counts)
        assert isinstance(lesson.data, TaskRows)
        summary = lesson.data.summary
        notes = left_out_notes(summary.too_long, summary.name, lesson.data.asker.reader.limit)
        notes += seen_notes(train, held)
        return OpenedTraining(loaded, lesson, notes, summary.sha256, tuple(headed.fresh))

    def _text(self, run: Run, loaded: LoadedModel, seed: int, *, offline: bool) -> OpenedTraining:
        kind = next(name for name in TEXT if name == self.data.task)
        text = TextOptions(
            kind,
            longest=self.longest or 128,
            mask_share=self.mask_share,
            label_smoothing=self.label_smoothing,
            next_sentence=self.next_sentence,
        )
        trainable = loaded_model(loaded, text, seed)
        loaded = replace(loaded, model=trainable.model)
        options = self.corpus_options(offline=offline)
        corpus = open_corpus(self.corpus, options)
        with run.reporter.progress(f"reading {corpus.name}", None) as advance:
            whole = summarise(corpus, advance)
        held: Corpus | None = None
        if self.dev is None:
            corpus, held = split_corpus(corpus, self.share, whole.sentences)
        else:
            held = open_corpus(self.dev, options.held_out(self.dev_target))
        notes = embedded_notes(self.corpus, whole.sentences)
        with run.reporter.status("tokenizing"):
            return OpenedTraining(loaded, TrainingSet.of_text(loaded, corpus, held, text, seed), notes, whole.sha256)


def _refuse(task: str, given: Mapping[str, object], instead: str) -> None:
    for name, value in given.items():
        if value:
            raise OptionError(f"--{name} is not for --task {task}.", f"Name its data with {instead}.")
