"""What a model is taught, and on what it is measured afterwards: of a task's examples, or of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from transformers import PreTrainedModel

from headlens.analyses.training.options import TextOptions
from headlens.analyses.training.task_training import TaskForward, TaskLoss, TaskRows, freeze_unused, hold_out
from headlens.analyses.training.text_training import objective_of, read_data
from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.sentence import Corpus, Example
from headlens.errors import CorpusError
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.tasks.evaluation import prepare_all
from headlens.tasks.example_sources import MemoryExamples, SourceCounts, TaskSource, gather
from headlens.tasks.examples import TextExample
from headlens.tasks.masked import MaskedLM
from headlens.tasks.reader import Reader
from headlens.tasks.task import PreparedExample, Task
from headlens.tasks.translation import Translation
from headlens.training.batch_sampler import BatchSampler
from headlens.training.hyperparameters import TrainingOptions
from headlens.training.loop import Trainer, TrainingCheckpoint, TrainingData, total_updates
from headlens.training.objectives import Objective, moved


@dataclass(frozen=True)
class TrainingCallbacks:
    """How a training is followed.

    Args:
        keeper: where its state is kept; None keeps nothing.
        progress: called with the number of updates done.
        processes: how many train together.
    """

    keeper: TrainingCheckpoint | None = None
    progress: Callable[[int], None] = lambda _: None
    processes: int = 1

    def updates(self, data: TrainingData, training: TrainingOptions) -> int:
        """Returns the number of updates that a training on this data will take, see `total_updates`."""
        order = BatchSampler(
            tuple(data.lengths), training.batch_tokens, training.accumulate, training.seed, 0, self.processes
        )
        return total_updates(training, order)


@dataclass(frozen=True)
class TrainingSet:
    """Examples to learn from and others to be measured on, as one model reads them.

        task, source = headlens.open_task("sst2", "train.tsv")
        lesson = headlens.TrainingSet.of_task(loaded, task, source)

    Args:
        task: says which part of a model runs, and what is measured.
        data: what is learned.
        objective: what is made smaller.
        held: what is measured on; None measures nothing.
        facts: what became of the data, for run.json.
    """

    task: Task
    data: TrainingData
    objective: Objective
    held: MemoryExamples | None
    facts: dict[str, Any]

    @classmethod
    def of_task(
        cls,
        loaded: LoadedModel,
        task: Task,
        source: TaskSource,
        held: TaskSource | float | None = 0.5,
        longest: int | None = None,
        counts: SourceCounts | None = None,
    ) -> TrainingSet:
        """Of labelled examples.

        Args:
            loaded: the model, with the head that the task needs.
            task: the task.
            source: what is learned.
            held: what is measured on, or the share of the source that is kept for that; None measures nothing.
            longest: a limit of tokens below the model's own; longer examples are left out.
            counts: what was left out of the source when it was gathered before.

        Raises:
            CorpusError: broken data, or nothing that the model can read.
            OptionError: if the task has no loss that can be trained.
        """
        counts = counts or SourceCounts()
        given = gather(source, counts)
        if isinstance(held, float):
            given, kept = hold_out(given, held)
        else:
            kept = None if held is None else gather(held)
        asker = TaskForward.of(task, loaded, longest)
        rows = TaskRows.of(asker, given, counts)
        return cls(task, rows, TaskLoss(asker), kept, {"data": asdict(rows.summary)})

    @classmethod
    def of_text(
        cls, loaded: LoadedModel, corpus: Corpus, held: Corpus | None, options: TextOptions, seed: int = 0
    ) -> TrainingSet:
        """Of text: masked tokens, or translations.

        Args:
            loaded: the model, with a head for that.
            corpus: what is learned.
            held: what is measured on; None measures nothing. Of `mlm` texts that are longer than the longest are cut
                into windows between words.
            options: task, masking, longest texts.
            seed: of the masks.

        Raises:
            CorpusError: if nothing of a corpus can be used.
        """
        data = read_data(loaded, corpus, options, seed)
        two_sided = options.task == "translation"
        task: Task = Translation() if two_sided else MaskedLM()
        if held is None:
            examples = None
        else:
            examples = given_pairs(held) if two_sided else given_texts(held, loaded, options.longest)
        return cls(task, data, objective_of(options), examples, {"corpus": corpus.name, "examples": len(data.lengths)})

    def prepared(self) -> Iterator[PreparedExample]:
        """The examples that are learned, then those that are measured on, as the model reads them; none of text."""
        if isinstance(self.data, TaskRows):
            yield from self.data.prepared
            if self.held is not None:
                yield from prepare_all(self.task, self.held, self.data.asker.reader, SourceCounts())

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is learned."""
        return max((p.length for p in self.data.prepared) if isinstance(self.data, TaskRows) else self.data.lengths)

    def text_lengths(self) -> Counter[int]:
        """How many different texts of these examples have how many tokens; of text, how many of what is learned."""
        texts = {row.ids for example in self.prepared() for row in example.rows}
        return Counter(map(len, texts)) or Counter(self.data.lengths)

    def teach(
        self, model: PreTrainedModel, training: TrainingOptions, callbacks: TrainingCallbacks | None = None
    ) -> None:
        """Train a model itself, what of it is not frozen and the loss depends on; its last state counts.

        Args:
            model: with the head that the task needs.
            training: length, step size, rhythm.
            callbacks: progress, and what is kept for going on after an interruption.
        """
        callbacks, before = callbacks or TrainingCallbacks(), [p.requires_grad for p in model.parameters()]
        network = self.task.network(model)
        self.freeze_unused(model)
        Trainer(training, self.objective, keeper=callbacks.keeper, progress=callbacks.progress).fit(network, self.data)
        for parameter, trained in zip(model.parameters(), before, strict=True):
            parameter.requires_grad_(trained)
        model.eval()

    def freeze_unused(self, model: PreTrainedModel) -> None:
        """Leave what the loss does not depend on as it is, see `freeze_unused` of `task_training`."""
        inputs = moved(self.data.batch((0,), 0), model.device)
        freeze_unused(self.task.network(model).eval(), self.objective, inputs)


def given_pairs(corpus: Corpus) -> MemoryExamples:
    """The sentences of a corpus with their translations as examples, numbered from 1.

    Raises:
        CorpusError: if there are no translations.
    """
    return MemoryExamples(tuple(_numbered(_pair(example, corpus.name) for example in corpus)), corpus.name)


def given_texts(corpus: Corpus, loaded: LoadedModel, longest: int | None = None) -> MemoryExamples:
    """The sentences of a corpus as examples, numbered from 1; those that are too long in windows, cut between words.

    Args:
        corpus: sentences.
        loaded: the model that is to read them.
        longest: a limit of tokens below the model's own.
    """
    limit = Reader.of(loaded, (), longest).limit
    encoder = SentenceEncoder(tokenizer_of(loaded), limit, long_sentences="window")
    return MemoryExamples(tuple(_numbered(_windows(corpus, encoder))), corpus.name)


def _windows(corpus: Corpus, encoder: SentenceEncoder) -> Iterator[tuple[str]]:
    for example in corpus:
        if encoder.encode(example) is not None:
            yield (example.source.text,)
        else:
            for window in encoder.windows(example)[0]:
                yield (window.source.sentence.text,)


def _numbered(texts: Iterable[tuple[str, ...]]) -> Iterator[TextExample]:
    return (TextExample(str(number), text) for number, text in enumerate(texts, 1))


def _pair(example: Example, name: str) -> tuple[str, ...]:
    if example.target is None:
        raise CorpusError("there are no translations.", "Name them with --target or --dev-target.", path=name)
    return example.source.text, example.target.text
